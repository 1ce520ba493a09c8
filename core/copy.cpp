#include "lockstep/core/copy.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/integer_cast.h"

namespace lockstep {
namespace {

template <typename S, typename T>
T convert(S value) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<compute_t<S>>(value) != compute_t<S>(0);
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<compute_t<S>>) {
    return integer_cast<T>(static_cast<compute_t<S>>(value));
  } else {
    return static_cast<T>(static_cast<compute_t<T>>(static_cast<compute_t<S>>(value)));
  }
}

/// At least kPiece bytes that do not overlap the others, in pieces of which the last may lie over the one before it.
template <std::size_t kPiece>
[[gnu::always_inline]] inline void copy_pieces(char* to, const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i + kPiece <= bytes; i += kPiece) std::memcpy(to + i, from + i, kPiece);
  std::memcpy(to + bytes - kPiece, from + bytes - kPiece, kPiece);
}

/// A row of `bytes` bytes; short ones without a call.
[[gnu::always_inline]] inline void copy_row(char* to, const char* from, std::size_t bytes) {
  constexpr std::size_t kShort = 512;
  if (bytes > kShort)
    std::memcpy(to, from, bytes);
  else if (bytes >= 32)
    copy_pieces<32>(to, from, bytes);
  else if (bytes >= 16)
    copy_pieces<16>(to, from, bytes);
  else if (bytes >= 4)
    copy_pieces<4>(to, from, bytes);
  else
    for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

template <typename S, typename T>
void copy_loop(const cpu::StridedLoop<2>& loop, const S* source, T* target) {
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    T* to = target + offset[0];
    const S* from = source + offset[1];
    if (stride[0] == 1 && stride[1] == 1) {
      if constexpr (std::is_same_v<S, T>) {
        copy_row(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                 static_cast<std::size_t>(length) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < length; ++i) to[i] = convert<S, T>(from[i]);
      }
    } else if (stride[0] == 1 && stride[1] == 0) {
      std::fill_n(to, length, convert<S, T>(*from));
    } else if (stride[0] == 1 && stride[1] == -1) {
      for (std::int64_t i = 0; i < length; ++i) to[i] = convert<S, T>(from[-i]);
    } else {
      for (std::int64_t i = 0; i < length; ++i) to[i * stride[0]] = convert<S, T>(from[i * stride[1]]);
    }
  });
}

/// to[j * to_stride + i] = from[i * from_stride + j] for i < rows and j < columns. Rows of both are long apart, so they
/// are gone through in squares, whose lines stay in the cache.
template <typename Word>
void transpose_block(const Word* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, Word* to,
                     std::int64_t to_stride) {
  constexpr std::int64_t kSide = 8;
  for (std::int64_t i = 0; i < rows; i += kSide)
    for (std::int64_t j = 0; j < columns; j += kSide) {
      const std::int64_t height = std::min(kSide, rows - i), width = std::min(kSide, columns - j);
      const Word* square = from + i * from_stride + j;
      Word* turned = to + j * to_stride + i;
      if constexpr (sizeof(Word) == sizeof(float)) {
        if (height == kSide && width == kSide) {
          cpu::Vec8 m[8];
          for (std::int64_t r = 0; r < kSide; ++r) std::memcpy(&m[r], square + r * from_stride, sizeof m[r]);
          cpu::transpose8(m);
          for (std::int64_t r = 0; r < kSide; ++r) std::memcpy(turned + r * to_stride, &m[r], sizeof m[r]);
          continue;
        }
      }
      for (std::int64_t c = 0; c < width; ++c)
        for (std::int64_t r = 0; r < height; ++r) turned[c * to_stride + r] = square[r * from_stride + c];
    }
}

/// Copies where the target is dense along the last dimension and the source along another one. False: it is not so.
template <typename Word>
bool copy_turned(const cpu::StridedLoop<2>& loop, const Word* source, Word* target) {
  constexpr std::int64_t kLeast = 8, kBlock = 64;  // a block of 64 x 64 words stays in the first-level cache
  const int last = loop.sizes.dim() - 1;
  if (loop.strides[0][last] != 1 || loop.sizes[last] < kLeast) return false;
  if (loop.strides[1][last] == 1 || loop.strides[1][last] == 0) return false;
  int turned = -1;
  for (int d = 0; d < last; ++d)
    if (loop.strides[1][d] == 1 && loop.sizes[d] >= kLeast) turned = d;
  if (turned < 0) return false;
  const std::int64_t rows = loop.sizes[last], columns = loop.sizes[turned];
  const std::int64_t row_blocks = (rows + kBlock - 1) / kBlock, column_blocks = (columns + kBlock - 1) / kBlock;
  const std::int64_t blocks = row_blocks * column_blocks, outer = loop.numel / (rows * columns);
  const std::int64_t words = std::min(rows, kBlock) * std::min(columns, kBlock);
  parallel_for(outer * blocks, std::max<std::int64_t>(1, cpu::kElementBlock / words),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t index = begin; index < end; ++index) {
                   const std::int64_t row = index % blocks % row_blocks * kBlock;
                   const std::int64_t column = index % blocks / row_blocks * kBlock;
                   const Word* from = source + row * loop.strides[1][last] + column;
                   Word* to = target + row + column * loop.strides[0][turned];
                   std::int64_t rest = index / blocks;
                   for (int d = last - 1; d >= 0; --d) {
                     if (d == turned) continue;
                     from += rest % loop.sizes[d] * loop.strides[1][d];
                     to += rest % loop.sizes[d] * loop.strides[0][d];
                     rest /= loop.sizes[d];
                   }
                   transpose_block(from, loop.strides[1][last], std::min(kBlock, rows - row),
                                   std::min(kBlock, columns - column), to, loop.strides[0][turned]);
                 }
               });
  return true;
}

// Values of equal dtype move as bytes of that width, which keeps the number of instantiations small.
template <typename Word>
void copy_words(const cpu::StridedLoop<2>& loop, const Tensor& source, const Tensor& target) {
  if (copy_turned(loop, static_cast<const Word*>(source.raw_data()), static_cast<Word*>(target.raw_data()))) return;
  copy_loop(loop, static_cast<const Word*>(source.raw_data()), static_cast<Word*>(target.raw_data()));
}

/// To a floating-point dtype, by way of C.
template <typename C>
void copy_through(const cpu::StridedLoop<2>& loop, const Tensor& source, const Tensor& target) {
  const cpu::RowSource<C> from{source.raw_data(), source.dtype()};
  const cpu::RowTarget<C> to{target.raw_data(), target.dtype()};
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    C buffer[cpu::kRowChunk];
    for (std::int64_t i = 0; i < length; i += cpu::kRowChunk) {
      const std::int64_t count = length - i < cpu::kRowChunk ? length - i : cpu::kRowChunk;
      const std::int64_t at = offset[0] + i * stride[0], at_source = offset[1] + i * stride[1];
      if (to.writable(stride[0])) {
        cpu::load_row(source.dtype(), cpu::element_address(from.data, at_source, from.dtype), stride[1], count,
                      static_cast<C*>(to.data) + at);
      } else {
        to.finish(from.row(at_source, stride[1], count, buffer), at, stride[0], count);
      }
    }
  });
}

void copy_on_cpu(const Tensor& source, const Tensor& target) {
  const auto loop = cpu::plan_loop<2>(target.sizes(), {&target, &source});
  if (loop.numel == 0) return;
  if (source.dtype() == target.dtype()) {
    switch (element_size(source.dtype())) {
      case 1:
        return copy_words<std::uint8_t>(loop, source, target);
      case 2:
        return copy_words<std::uint16_t>(loop, source, target);
      case 4:
        return copy_words<std::uint32_t>(loop, source, target);
      default:
        return copy_words<std::uint64_t>(loop, source, target);
    }
  }
  if (is_floating_point(target.dtype())) {
    const bool wide = source.dtype() == kFloat64 || target.dtype() == kFloat64;
    return wide ? copy_through<double>(loop, source, target) : copy_through<float>(loop, source, target);
  }
  dispatch_all(source.dtype(), "copy", [&]<typename S>() {
    const auto to = [&]<typename T>() { copy_loop<S, T>(loop, source.data<S>(), target.data<T>()); };
    if (target.dtype() == kBool) return to.template operator()<bool>();
    dispatch_integer(target.dtype(), "copy", to);
  });
}

}  // namespace

void copy_values(const Tensor& source, const Tensor& target) {
  LOCKSTEP_CHECK(source.defined() && target.defined(), "[copy] an undefined tensor was given");
  LOCKSTEP_CHECK(broadcast_shapes(source.sizes(), target.sizes(), "copy") == target.sizes(),
                 "[copy] values of shape {} do not fit into shape {}", to_string(source.sizes()),
                 to_string(target.sizes()));
  source.storage()->settle();
  target.storage()->before_change();
  const LibraryAccess access;
  if (source.device().is_cpu() && target.device().is_cpu()) return copy_on_cpu(source, target);
  cuda::copy(source, target);
}

bool lies_turned(const Tensor& tensor) {
  constexpr std::int64_t kLeast = 8, kSmall = 4096;  // as copy_turned() asks; what is small stays in the cache
  const int last = tensor.dim() - 1;
  if (last < 1 || tensor.numel() < kSmall || tensor.sizes()[last] < kLeast) return false;
  if (tensor.strides()[last] == 0 || tensor.strides()[last] == 1) return false;
  for (int d = 0; d < last; ++d)
    if (tensor.strides()[d] == 1 && tensor.sizes()[d] >= kLeast) return true;
  return false;
}

Tensor copy_contiguous(const Tensor& tensor) {
  Tensor out = empty_like(tensor);
  copy_values(tensor, out);
  return out;
}

Tensor as_contiguous(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : copy_contiguous(tensor);
}

Tensor cast_values(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  Tensor out = empty(tensor.sizes(), {.dtype = dtype, .device = tensor.device()});
  copy_values(tensor, out);
  return out;
}

Tensor move_values(const Tensor& tensor, Device device) {
  if (tensor.device() == device) return tensor;
  Tensor out = empty(tensor.sizes(), {.dtype = tensor.dtype(), .device = device});
  copy_values(tensor, out);
  return out;
}

void fill_values(const Tensor& tensor, Scalar value) {
  tensor.storage()->before_change();
  const LibraryAccess access;
  if (tensor.device().is_cuda()) return cuda::fill(tensor, value);
  const auto loop = cpu::plan_loop<1>(tensor.sizes(), {&tensor});
  if (loop.numel == 0) return;
  dispatch_all(tensor.dtype(), "fill", [&]<typename T>() {
    const T filler =
        value.is_floating_point() ? convert<double, T>(value.to_double()) : convert<std::int64_t, T>(value.to_int64());
    T* data = tensor.data<T>();
    cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
      const T value_here = filler;  // no element can be it, so vectors of it are stored
      T* row = data + offset[0];
      if (stride[0] == 1)
        for (std::int64_t i = 0; i < length; ++i) row[i] = value_here;
      else
        for (std::int64_t i = 0; i < length; ++i) row[i * stride[0]] = value_here;
    });
  });
}

Tensor rows(const Tensor& tensor, std::int64_t start, std::int64_t length) {
  LOCKSTEP_CHECK(tensor.defined() && tensor.dim() > 0, "[rows] expected a tensor with at least one dimension");
  LOCKSTEP_CHECK(start >= 0 && length >= 0 && start + length <= tensor.sizes()[0],
                 "[rows] rows {} to {} are outside of shape {}", start, start + length, to_string(tensor.sizes()));
  Shape sizes = tensor.sizes();
  sizes[0] = length;
  return tensor.as_strided(sizes, tensor.strides(), tensor.offset() + start * tensor.strides()[0]);
}

}  // namespace lockstep
