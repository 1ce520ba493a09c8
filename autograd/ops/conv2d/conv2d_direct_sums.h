#pragma once

// The innermost sums of direct convolution's backward passes, compiled for several instruction sets. For .cpp files
// only.

#include <cstdint>

namespace lockstep::conv2d_direct {

/// For one tap and some channels of the image, the sums over all output channels of weight * gradient at up to three
/// runs of eight positions. Weights are [out][channels of the image], gradients [out][grad_plane].
struct ScatterArguments {
  const float* grad;
  std::int64_t out, grad_plane;
  const float* weights;
  std::int64_t plane;  ///< of the image
};
/// to[i] is where the first channel gets the sums of run i, which are added to what is there.
using Scatter8 = void (*)(const ScatterArguments&, float* const* to);

/// For some output channels and neighbouring taps, the sums of gradient * image over the positions of all images: rows
/// of `row_vecs` vectors of eight. They are added to sums[channel * sums_stride + tap].
struct SweepArguments {
  const float* grad;
  const float* image;
  std::int64_t count, grad_stride, image_stride;
  std::int64_t rows, row_vecs, grad_pitch, grad_plane, image_pitch;
  float* sums;
  std::int64_t sums_stride;
  std::int64_t channels;  ///< of the output
};
using Sweep = void (*)(const SweepArguments&);

/// The sums of one instruction set. All give the same bits: a run's lanes and a tap's eight sums stay what they are.
struct Sums {
  static constexpr int kMostChannels = 8, kMostRuns = 3, kMostTaps = 5, kMostOutputs = 16;
  int channels;                                      ///< of the image, to a scatter, at most
  Scatter8 scatters[kMostChannels][kMostRuns] = {};  ///< by channels - 1, runs - 1
  int outputs[kMostTaps] = {};                       ///< by taps - 1: output channels to a sweep, at most
  Sweep sweeps[kMostOutputs][kMostTaps] = {};        ///< by output channels - 1, taps - 1
};

/// For the build's own instruction set, and for AVX-512 (x86-64 alone).
extern const Sums kSums, kSumsAvx512;

/// Those to use here.
const Sums& sums_in_use();

}  // namespace lockstep::conv2d_direct
