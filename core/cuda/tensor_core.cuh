#pragma once

// Products of small matrices by a warp, on tensor cores. For .cu files only.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/core/cuda/element.cuh"

namespace lockstep::cuda {

/// Note [Fragments]
/// A warp computes C[16 x 8] += A[16 x 16] B[16 x 8], each lane holding a part of each matrix. With g = lane / 4 and
/// t = lane % 4, a lane holds of A the pairs (row g, columns 2t and 2t + 1), (row g + 8, the same), (row g, columns
/// 2t + 8 and 2t + 9), (row g + 8, the same); of B the pairs (rows 2t and 2t + 1, column g), (rows 2t + 8 and 2t + 9,
/// column g); and of C rows g and g + 8 in columns 2t and 2t + 1. That is the layout of mma.m16n8k16 for 16-bit types
/// ("Parallel Thread Execution ISA", Matrix Fragments). float takes the same: two of mma.m16n8k8 whose columns of A,
/// and rows of B with them, are taken in the order in which the lanes hold them. So a pair of C's of neighbouring
/// columns is a fragment A of the next product, without an exchange.

/// Two neighbours, as mma takes them.
template <typename T>
struct alignas(2 * sizeof(T)) Two {
  T value[2];
};

template <typename T>
struct FragmentA {
  Two<T> pairs[4];
};
template <typename T>
struct FragmentB {
  Two<T> pairs[2];
};

/// How float is multiplied: by its 10 leading bits of mantissa (TF32), or by these and the next ones, in three products
/// that leave out less than 2^-21 of the whole one. In the latter an infinity, or a number that its leading bits round
/// to one, makes a NaN of whatever it is multiplied by.
enum class FloatProducts { tf32, split };

template <typename T>
__device__ inline Two<T> make_two(float a, float b) {
  return {{to_element<T>(a), to_element<T>(b)}};
}

/// Four matrices of 8 x 8 from shared memory. Each lane says where a row begins that it reads for the warp: rows 0 to 7
/// of the first matrix by lanes 0 to 7, and so on; 16 bytes, aligned so. With g = lane / 4 and t = lane % 4 a lane gets
/// of each matrix (row g, columns 2t and 2t + 1), or, transposed, (rows 2t and 2t + 1, column g). For 16-bit types.
template <bool kTransposed, typename T>
__device__ inline void load_matrices(Two<T> (&found)[4], const T* row) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDACC__)
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  std::uint32_t words[4];
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at));
  memcpy(found, words, sizeof words);
#else
  __shared__ const T* of_warps[32][32];
  const T*(&rows)[32] = of_warps[threadIdx.x / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  rows[lane] = row;
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j)
      found[i].value[j] = kTransposed ? rows[8 * i + 2 * t + j][g] : rows[8 * i + g][2 * t + j];
  }
  __syncwarp();
#endif
}

namespace detail {

__device__ inline std::uint32_t as_word(float value) {
  std::uint32_t word;
  memcpy(&word, &value, sizeof word);
  return word;
}
__device__ inline float as_float(std::uint32_t word) {
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

/// Rounded to TF32, half away from zero.
__device__ inline float to_tf32(float value) {
#if defined(__CUDACC__)
  std::uint32_t word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return as_float(word);
#else
  const std::uint32_t word = as_word(value);
  if ((word & 0x7f800000u) == 0x7f800000u) return value;
  return as_float((word + 0x1000u) & 0xffffe000u);
#endif
}

/// The leading bits of a value, rounded half away from zero, and what they leave: 12 bits and a sign, of which tensor
/// cores take the first 11. Three instructions at full rate; the rounding that the device has runs at a fraction of it.
/// A NaN may round to 0, but then what is left is a NaN.
__device__ inline void halve(float value, float& high, float& low) {
  high = as_float((as_word(value) + 0x1000u) & 0xffffe000u);
  low = value - high;
}

#if defined(__CUDACC__)
/// Columns of A and rows of B: t and t + 4.
__device__ inline void multiply_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(as_word(a[0])), "r"(as_word(a[1])), "r"(as_word(a[2])), "r"(as_word(a[3])), "r"(as_word(b[0])),
        "r"(as_word(b[1])));
}
#else
/// What mma does, for the emulated device: the lanes put the matrices together, and each computes its part.
template <typename T>
inline void multiply_together(float (&c)[4], const FragmentA<T>& a, const FragmentB<T>& b) {
  struct Matrices {
    float a[16][16], b[16][8];
  };
  __shared__ Matrices of_warps[32];
  Matrices& all = of_warps[threadIdx.x / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 8; ++i)
    all.a[g + i / 2 % 2 * 8][2 * t + i / 4 * 8 + i % 2] = from_element<float>(a.pairs[i / 2].value[i % 2]);
  for (int i = 0; i < 4; ++i) all.b[2 * t + i / 2 * 8 + i % 2][g] = from_element<float>(b.pairs[i / 2].value[i % 2]);
  __syncwarp();
  for (int k = 0; k < 16; ++k)
    for (int i = 0; i < 4; ++i) c[i] += all.a[g + i / 2 * 8][k] * all.b[k][2 * t + i % 2];
  __syncwarp();
}
#endif

}  // namespace detail

/// C += A B. All lanes of the warp take part.
template <FloatProducts = FloatProducts::tf32, typename T>
__device__ inline void multiply(float (&c)[4], const FragmentA<T>& a, const FragmentB<T>& b) {
#if defined(__CUDACC__)
  std::uint32_t wa[4], wb[2];
  memcpy(wa, a.pairs, sizeof wa);
  memcpy(wb, b.pairs, sizeof wb);
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(wa[0]), "r"(wa[1]), "r"(wa[2]), "r"(wa[3]), "r"(wb[0]), "r"(wb[1]));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(wa[0]), "r"(wa[1]), "r"(wa[2]), "r"(wa[3]), "r"(wb[0]), "r"(wb[1]));
  }
#else
  detail::multiply_together(c, a, b);
#endif
}

template <FloatProducts kHow>
__device__ inline void multiply(float (&c)[4], const FragmentA<float>& a, const FragmentB<float>& b) {
  FragmentA<float> a_high, a_low;
  FragmentB<float> b_high, b_low;
  const auto take = [](float value, float& high, float& low) {
    if constexpr (kHow == FloatProducts::split)
      detail::halve(value, high, low);
    else
      high = detail::to_tf32(value);
  };
#pragma unroll
  for (int i = 0; i < 8; ++i)
    take(a.pairs[i / 2].value[i % 2], a_high.pairs[i / 2].value[i % 2], a_low.pairs[i / 2].value[i % 2]);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    take(b.pairs[i / 2].value[i % 2], b_high.pairs[i / 2].value[i % 2], b_low.pairs[i / 2].value[i % 2]);
  const auto add = [&c](const FragmentA<float>& x, const FragmentB<float>& y) {
#if defined(__CUDACC__)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Two<float>*p = x.pairs + 2 * half, q = y.pairs[half];
      detail::multiply_tf32(c, {p[0].value[0], p[1].value[0], p[0].value[1], p[1].value[1]}, {q.value[0], q.value[1]});
    }
#else
    detail::multiply_together(c, x, y);
#endif
  };
  if constexpr (kHow == FloatProducts::split) {
    add(a_low, b_high);
    add(a_high, b_low);
  }
  add(a_high, b_high);
}

}  // namespace lockstep::cuda
