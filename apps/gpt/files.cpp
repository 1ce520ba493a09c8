#include "apps/gpt/files.h"

#include <fstream>
#include <iterator>

#include "lockstep/core/check.h"
#include "lockstep/nn/atomic_file.h"

namespace lockstep::gpt {

std::string read_file(const std::string& path, const char* what) {
  std::ifstream file(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  LOCKSTEP_CHECK(file.is_open() && !file.bad() && (file.good() || file.eof()), "[gpt] {} '{}' cannot be read", what,
                 path);
  return content;
}

void write_file(const std::string& path, std::string_view content) {
  nn::detail::AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace lockstep::gpt
