#pragma once

// Names for an error message. For .cpp files only.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::nn::detail {

/// Collects names; an error line shows the first few and the number of the others.
class NameList {
 public:
  NameList() = default;
  explicit NameList(const std::vector<std::string>& names) {
    for (const std::string& name : names) add(name);
  }
  void add(std::string name) {
    if (++count_ > kShown) return;
    if (!text_.empty()) text_ += ", ";
    text_ += std::move(name);
  }
  bool empty() const { return count_ == 0; }
  /// "" if empty, else label, names and a semicolon.
  std::string text(const char* label) const {
    if (empty()) return {};
    const std::string more = count_ > kShown ? " and " + std::to_string(count_ - kShown) + " more" : "";
    return label + text_ + more + ";";
  }

 private:
  static constexpr std::size_t kShown = 10;
  std::size_t count_ = 0;
  std::string text_;
};

}  // namespace lockstep::nn::detail
