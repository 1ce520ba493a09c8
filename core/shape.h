#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep {

/// Up to kMaxDims integers stored inline: sizes, strides, or a list of dimensions. Never allocates.
class Shape {
 public:
  static constexpr int kMaxDims = 8;  ///< a longer list throws Error

  constexpr Shape() = default;
  /// One value: `zeros(3)`, `x.sum(0)`.
  template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) constexpr Shape(T value)
      : values_{static_cast<std::int64_t>(value)}, count_(1) {}
  constexpr Shape(std::initializer_list<std::int64_t> values) { assign(values.begin(), values.size()); }
  Shape(std::span<const std::int64_t> values) { assign(values.data(), values.size()); }
  Shape(const std::vector<std::int64_t>& values) { assign(values.data(), values.size()); }
  /// `count` times `value`.
  static Shape filled(int count, std::int64_t value);

  constexpr int dim() const { return count_; }  ///< number of values
  constexpr std::size_t size() const { return static_cast<std::size_t>(count_); }
  constexpr bool empty() const { return count_ == 0; }
  constexpr std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  constexpr std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  constexpr const std::int64_t* begin() const { return values_.data(); }
  constexpr const std::int64_t* end() const { return values_.data() + count_; }
  constexpr std::int64_t* begin() { return values_.data(); }
  constexpr std::int64_t* end() { return values_.data() + count_; }
  std::int64_t back() const { return values_[static_cast<std::size_t>(count_ - 1)]; }

  void push_back(std::int64_t value);
  /// Inserts before position i, 0 <= i <= dim().
  void insert(int i, std::int64_t value);
  void erase(int i);

  /// Product of the values; 1 for a scalar. As sizes: the number of elements.
  constexpr std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int64_t v : *this) n *= v;
    return n;
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.count_ != b.count_) return false;
    for (int i = 0; i < a.count_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  constexpr void assign(const std::int64_t* values, std::size_t count) {
    if (count > kMaxDims) throw_too_many(count);
    count_ = static_cast<int>(count);
    for (std::size_t i = 0; i < count; ++i) values_[i] = values[i];
  }
  [[noreturn]] static void throw_too_many(std::size_t count);

  std::array<std::int64_t, kMaxDims> values_{};
  int count_ = 0;
};

/// "[2, 3]".
std::string to_string(const Shape& shape);
std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// Row-major strides, in elements.
Shape contiguous_strides(const Shape& sizes);
/// True if two elements may lie at one address, as in an expanded tensor; false for every layout that a permutation of
/// dimensions, with or without gaps, can make.
bool strides_may_overlap(const Shape& sizes, const Shape& strides);

/// Wraps a negative dimension; throws Error naming `op` if it is outside [-dims, dims). A scalar counts as one dim.
int wrap_dim(std::int64_t dim, int dims, const char* op);

/// NumPy's broadcasting: the common shape, or an Error naming `op` and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);

}  // namespace lockstep
