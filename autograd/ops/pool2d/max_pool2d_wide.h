#pragma once

// Max pooling of one plane by windows of 2 x 2 with vectors of sixteen outputs. For .cpp files only.

#include <cstdint>

#include "lockstep/autograd/ops/pool2d/max_pool2d_relu.h"

namespace lockstep::max_pool_rows {

/// What pool_plane() and spread_plane() of max_pool2d_rows.h do.
using PoolPlane = void (*)(const float* in, std::int64_t width, std::int64_t oh, std::int64_t ow, float* out,
                           std::uint8_t* positions);
using SpreadPlane = void (*)(const float* grad, const std::uint8_t* positions, std::int64_t h, std::int64_t width,
                             float* image);

/// For a processor with AVX-512 (x86-64 alone).
PoolPlane pool_plane_avx512(bool with_positions, ReluPlace relu);
void spread_plane_avx512(const float* grad, const std::uint8_t* positions, std::int64_t h, std::int64_t width,
                         float* image);

}  // namespace lockstep::max_pool_rows
