#include "lockstep/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <type_traits>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/free_list.h"

namespace lockstep {

void* TensorImpl::operator new(std::size_t bytes) {
  return FreeList<sizeof(TensorImpl)>::allocate(bytes);
}
void TensorImpl::operator delete(void* pointer) noexcept {
  FreeList<sizeof(TensorImpl)>::release(pointer);
}

std::int64_t Tensor::size(std::int64_t d) const {
  LOCKSTEP_CHECK(dim() > 0, "[size] a scalar has no dimension {}", d);
  return impl_->sizes[wrap_dim(d, dim(), "size")];
}

void Tensor::throw_undefined() {
  detail::throw_error(
      "the tensor is undefined: it was constructed without a value or moved from, or it is the grad() of a tensor that "
      "no backward() has reached; test with defined()");
}

void Tensor::throw_dtype_mismatch(DType wanted) const {
  detail::throw_error(fmt::format("a {} tensor was accessed as {}; convert it with to()", name(dtype()), name(wanted)));
}

namespace {

template <typename T, typename S>
bool holds(S value) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, bool> || !std::is_integral_v<T>)
    return true;
  else if constexpr (!std::is_integral_v<S>)
    return std::trunc(value) >= S(Limits::min()) && std::trunc(value) < std::ldexp(S(1), Limits::digits);
  else if constexpr (std::is_signed_v<T>)
    return std::int64_t{value} >= std::int64_t{Limits::min()} && std::int64_t{value} <= std::int64_t{Limits::max()};
  else
    return value >= 0 && static_cast<std::uint64_t>(value) <= std::uint64_t{Limits::max()};
}

}  // namespace

template <typename T>
T Tensor::item() const {
  LOCKSTEP_CHECK(defined(), "[item] the tensor is undefined");
  LOCKSTEP_CHECK(numel() == 1, "[item] expected a tensor with one element, found shape {}", to_string(sizes()));
  const LibraryAccess access;
  const Tensor host = move_values(*this, Device(kCPU));
  return dispatch_all(dtype(), "item", [&]<typename S>() {
    const S value = *host.data<S>();
    if constexpr (std::is_same_v<S, bool>) {
      return static_cast<T>(value ? 1 : 0);
    } else {
      const auto number = static_cast<compute_t<S>>(value);
      LOCKSTEP_CHECK(holds<T>(number), "[item] {} is out of the range of the integer type that was asked for, {} to {}",
                     number, +std::numeric_limits<T>::min(), +std::numeric_limits<T>::max());
      return static_cast<T>(number);
    }
  });
}

template <typename T>
std::vector<T> Tensor::to_vector() const {
  LOCKSTEP_CHECK(defined(), "[to_vector] the tensor is undefined");
  const LibraryAccess access;
  const Tensor host = as_contiguous(cast_values(move_values(detach(), Device(kCPU)), dtype_of<T>));
  const T* data = host.data<T>();
  return std::vector<T>(data, data + host.numel());
}

template bool Tensor::item<bool>() const;
template char Tensor::item<char>() const;
template signed char Tensor::item<signed char>() const;
template unsigned char Tensor::item<unsigned char>() const;
template short Tensor::item<short>() const;
template unsigned short Tensor::item<unsigned short>() const;
template int Tensor::item<int>() const;
template unsigned Tensor::item<unsigned>() const;
template long Tensor::item<long>() const;
template unsigned long Tensor::item<unsigned long>() const;
template long long Tensor::item<long long>() const;
template unsigned long long Tensor::item<unsigned long long>() const;
template float Tensor::item<float>() const;
template double Tensor::item<double>() const;
template long double Tensor::item<long double>() const;
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;
template std::vector<bool> Tensor::to_vector<bool>() const;

Tensor Tensor::as_strided(const Shape& sizes, const Shape& strides, std::int64_t offset) const {
  LOCKSTEP_CHECK(defined(), "[as_strided] the tensor is undefined");
  LOCKSTEP_CHECK(sizes.dim() == strides.dim(), "[as_strided] {} sizes but {} strides", sizes.dim(), strides.dim());
  std::int64_t numel = 1;
  std::int64_t last = offset;
  bool overflow = false;
  for (int d = 0; d < sizes.dim(); ++d) {
    LOCKSTEP_CHECK(sizes[d] >= 0 && strides[d] >= 0, "[as_strided] negative sizes {} or strides {}", to_string(sizes),
                   to_string(strides));
    std::int64_t reach = 0;
    overflow = overflow || __builtin_mul_overflow(numel, sizes[d], &numel) ||
               __builtin_mul_overflow(std::max<std::int64_t>(sizes[d] - 1, 0), strides[d], &reach) ||
               __builtin_add_overflow(last, reach, &last);
  }
  const auto limit = static_cast<std::int64_t>(impl_->storage->bytes() / element_size(dtype()));
  LOCKSTEP_CHECK(offset >= 0 && !overflow && (numel == 0 || last < limit),
                 "[as_strided] sizes {} with strides {} from {} reach outside a storage of {} elements",
                 to_string(sizes), to_string(strides), offset, limit);
  auto impl = make_intrusive<TensorImpl>();
  impl->storage = impl_->storage;
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->numel = numel;
  impl->dtype = impl_->dtype;
  impl->contiguous = true;
  std::int64_t expected = 1;
  for (int d = sizes.dim() - 1; d >= 0 && numel != 0; --d) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) {
      impl->contiguous = false;
      break;
    }
    expected *= sizes[d];
  }
  return Tensor(std::move(impl));
}

Tensor Tensor::detach() const {
  LOCKSTEP_CHECK(defined(), "[detach] the tensor is undefined");
  auto impl = make_intrusive<TensorImpl>();
  impl->storage = impl_->storage;
  impl->sizes = impl_->sizes;
  impl->strides = impl_->strides;
  impl->offset = impl_->offset;
  impl->numel = impl_->numel;
  impl->dtype = impl_->dtype;
  impl->contiguous = impl_->contiguous;
  return Tensor(std::move(impl));
}

}  // namespace lockstep
