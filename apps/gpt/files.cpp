#include "apps/gpt/files.h"

#include "lockstep/core/atomic_file.h"

namespace lockstep::gpt {

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace lockstep::gpt
