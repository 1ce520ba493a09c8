#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace lockstep {

/// Base of objects that count their references themselves; hold them in IntrusivePtr. Not copyable.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void retain() const { count_.fetch_add(1, std::memory_order_relaxed); }  ///< adds a reference
  /// True if this was the last reference.
  bool release() const {
    // A sole owner needs no read-modify-write: nobody else can retain.
    if (count_.load(std::memory_order_acquire) == 1) return true;
    return count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  /// References now; a hint if other threads have some.
  std::uint32_t use_count() const { return count_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

  /// The two ends of a life that can begin again, for objects that outlive their last reference. True if this was the
  /// first reference.
  bool retain_first() const { return count_.fetch_add(1, std::memory_order_acq_rel) == 0; }
  /// Adds a reference unless the last one is gone; with release_to_zero() only.
  bool retain_if_held() const {
    std::uint32_t count = count_.load(std::memory_order_relaxed);
    while (count != 0)
      if (count_.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel)) return true;
    return false;
  }
  /// True if this was the last reference; the count is zero then, which release() does not promise.
  bool release_to_zero() const { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  mutable std::atomic<std::uint32_t> count_{0};
};

/// Calls intrusive_delete(T*) at zero, found by argument-dependent lookup; the default deletes.
template <typename T>
void intrusive_delete(T* object) {
  delete object;
}

/// A smart pointer to a RefCounted object: one word, and the count lies in the object.
template <typename T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  IntrusivePtr(std::nullptr_t) {}
  explicit IntrusivePtr(T* object) : object_(object) {
    if (object_) object_->retain();
  }
  IntrusivePtr(const IntrusivePtr& other) : IntrusivePtr(other.object_) {}
  IntrusivePtr(IntrusivePtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  /// From a pointer to a derived class.
  template <typename U>
  requires std::is_convertible_v<U*, T*> IntrusivePtr(const IntrusivePtr<U>& other)
      : IntrusivePtr(static_cast<T*>(other.get())) {}
  ~IntrusivePtr() { reset(); }
  /// Takes over a reference that was counted already.
  static IntrusivePtr adopt(T* object) {
    IntrusivePtr result;
    result.object_ = object;
    return result;
  }

  IntrusivePtr& operator=(IntrusivePtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  void reset() {
    if (T* object = std::exchange(object_, nullptr); object && object->release()) intrusive_delete(object);
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const IntrusivePtr& a, const IntrusivePtr& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

/// A new T from the arguments.
template <typename T, typename... Args>
IntrusivePtr<T> make_intrusive(Args&&... args) {
  return IntrusivePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace lockstep
