#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/size2d.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct Conv2dOptions {
  Size2d stride = 1;
  Size2d padding = 0;
  Size2d dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  bool relu = false;  ///< apply relu in the same pass
  bool pool = false;  ///< take the maximum of windows of 2 x 2 in the same pass, before relu
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

  Parameter weight;
  Parameter bias;

 private:
  Conv2dOptions options_;
};

}  // namespace lockstep::nn
