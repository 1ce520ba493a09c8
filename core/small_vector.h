#pragma once

#include <cstddef>
#include <initializer_list>
#include <new>
#include <span>
#include <utility>

namespace lockstep {

/// A vector whose first N elements live inside it: gradient lists and graph edges rarely have more than three.
template <typename T, std::size_t N>
class SmallVector {
 public:
  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) {
    reserve(values.size());
    for (const T& value : values) push_back(value);
  }
  explicit SmallVector(std::size_t count) { resize(count); }
  SmallVector(const SmallVector& other) {
    reserve(other.size_);
    for (const T& value : other) push_back(value);
  }
  SmallVector(SmallVector&& other) noexcept { take(other); }
  ~SmallVector() {
    if (size_ > 0 || !is_inline()) destroy();
  }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) *this = SmallVector(other);
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      if (size_ > 0 || !is_inline()) destroy();
      take(other);
    }
    return *this;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  /// A view of the elements.
  operator std::span<const T>() const { return {data_, size_}; }

  void push_back(T value) {
    if (size_ == capacity_) grow(capacity_ * 2);
    new (data_ + size_) T(std::move(value));
    ++size_;
  }
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) grow(capacity);
  }
  /// New elements are value-initialised.
  void resize(std::size_t count) {
    reserve(count);
    while (size_ > count) data_[--size_].~T();
    while (size_ < count) new (data_ + size_++) T();
  }
  void clear() { resize(0); }

 private:
  T* inline_data() { return reinterpret_cast<T*>(inline_); }
  bool is_inline() const { return data_ == reinterpret_cast<const T*>(inline_); }
  [[gnu::noinline]] void grow(std::size_t capacity) {
    T* data = static_cast<T*>(::operator new (capacity * sizeof(T), std::align_val_t{alignof(T)}));
    for (std::size_t i = 0; i < size_; ++i) {
      new (data + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    free_heap();
    data_ = data;
    capacity_ = capacity;
  }
  void free_heap() {
    if (!is_inline()) ::operator delete (data_, std::align_val_t{alignof(T)});
  }
  void destroy() {
    for (std::size_t i = size_; i > 0; --i) data_[i - 1].~T();
    free_heap();
    data_ = inline_data();
    size_ = 0;
    capacity_ = N;
  }
  void take(SmallVector& other) {
    if (other.is_inline()) {
      data_ = inline_data();
      for (std::size_t i = 0; i < other.size_; ++i) new (data_ + i) T(std::move(other.data_[i]));
      size_ = other.size_;
      other.clear();
    } else {
      data_ = std::exchange(other.data_, other.inline_data());
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, N);
    }
  }

  alignas(T) unsigned char inline_[N * sizeof(T)];
  T* data_ = inline_data();
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
};

}  // namespace lockstep
