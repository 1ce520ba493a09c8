#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of Conv2d.
struct Conv2dOptions {
  Size2d stride = 1;        ///< step of the window, down and to the right
  Size2d padding = 0;       ///< zeros on each side, kValid or kSame
  Size2d dilation = 1;      ///< distance between the taps of the kernel
  std::int64_t groups = 1;  ///< input channels are divided into so many groups
  bool bias = true;         ///< add a bias for each output channel
};

/// 2-D convolution of [n, in, h, w]; see lockstep::conv2d. Parameters weight [out, in / groups, kh, kw] and bias [out],
/// drawn as PyTorch's.
class Conv2d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, Conv2dOptions options = {});
  Conv2d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size2d kernel,
         Conv2dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [out, in / groups, kh, kw]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  Conv2dOptions options_;
};

}  // namespace lockstep::nn
