#pragma once

#include <string_view>

namespace lockstep::distributed {

/// A few words on what an operation is for, such as "bucket 2: fc1.weight, fc1.bias". Made once (equal texts share one
/// copy, which stays until the process ends, so that even a signal handler may read it), then as cheap as a pointer.
class OperationLabel {
 public:
  /// Longer texts are cut, with "..." at the end.
  static constexpr std::size_t kMaxBytes = 240;

  constexpr OperationLabel() = default;
  explicit OperationLabel(std::string_view text);

  std::string_view text() const { return text_; }  ///< up to kMaxBytes
  /// With a 0 at its end.
  const char* c_str() const { return text_.data(); }
  bool empty() const { return text_.empty(); }

 private:
  std::string_view text_ = "";
};

/// Labels the operations that this thread issues while the object lives; the innermost counts.
///
///   const OperationLabel label("loss and count");  // once
///   const LabelScope scope(label);
///   group.all_reduce(totals);                      // "all_reduce #7 (float64 [2], sum; loss and count)"
class LabelScope {
 public:
  explicit LabelScope(OperationLabel label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

  /// Of this thread; empty outside all scopes.
  static OperationLabel current();

 private:
  OperationLabel before_;
};

}  // namespace lockstep::distributed
