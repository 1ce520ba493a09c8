#pragma once

// The tiles of direct convolution, compiled for several instruction sets. For .cpp files only.

#include <cstdint>

namespace lockstep::conv2d_direct {

/// What a tile reads: `channels` planes of an image, and weights in the order (channel, ky, kx, output channel).
struct TileArguments {
  const float* image;
  std::int64_t channels, plane, pitch, kh, kw;
  const float* weights;
  const float* bias;  ///< for each output channel, or null
  bool relu;
  float* out;
  std::int64_t out_plane, out_pitch;
};

/// Computes some output channels at some vectors of neighbouring positions, which start at the given offsets of image
/// and result. Each sum begins with the bias and is one chain of fused multiply-adds in the order (channel, ky, kx), so
/// the size of a tile does not enter its bits.
using Tile = void (*)(const TileArguments&, const std::int32_t* in_offset, const std::int32_t* out_offset);

/// The tiles of one instruction set.
struct Tiles {
  static constexpr int kMaxVectors = 6;
  int lanes;                           ///< positions of a vector
  int vectors;                         ///< of the largest tile, at most kMaxVectors
  Tile tiles[4][4][kMaxVectors] = {};  ///< by the kernel's width (1, 3, 5, any other), output channels - 1, vectors - 1

  /// Those of 1 to 4 output channels and kernels `kw` wide, by vectors - 1.
  const Tile* row(int channels, std::int64_t kw) const {
    return tiles[kw == 1 ? 0 : kw == 3 ? 1 : kw == 5 ? 2 : 3][channels - 1];
  }
};

/// For the build's own instruction set, and for AVX-512 (on x86-64): vectors of eight positions, of sixteen, and of
/// eight in each of two rows.
extern const Tiles kTiles, kTilesAvx512, kTilesOfSixteen, kTilesOfTwoRows;

}  // namespace lockstep::conv2d_direct
