#include <mutex>
#include <string>
#include <unordered_set>

#include "lockstep/core/checksum.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {
namespace {

thread_local OperationLabel current_label;

std::string_view interned(std::string text) {
  // Never destroyed: records of the last operations may be written while the process ends.
  static auto* const texts = new std::unordered_set<std::string>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  return *texts->insert(std::move(text)).first;
}

}  // namespace

OperationLabel::OperationLabel(std::string_view text) {
  std::string kept(text.substr(0, kMaxBytes));
  if (text.size() > kMaxBytes) {
    std::size_t end = kMaxBytes - 3;
    while (end > 0 && (static_cast<unsigned char>(kept[end]) & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
    kept.replace(end, std::string::npos, "...");
  }
  text_ = interned(std::move(kept));
  if (text_.empty()) return;
  Checksum sum;
  sum.update(text_.data(), text_.size());
  hash_ = sum.value();
}

LabelScope::LabelScope(OperationLabel label) : before_(current_label) {
  current_label = label;
}

LabelScope::~LabelScope() {
  current_label = before_;
}

OperationLabel LabelScope::current() {
  return current_label;
}

}  // namespace lockstep::distributed
