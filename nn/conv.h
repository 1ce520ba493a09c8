#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of Conv2d.
struct Conv2dOptions {
  Size2d stride = 1;                         ///< step of the window, down and to the right
  Size2d padding = 0;                        ///< zeros on each side, kValid or kSame
  Size2d dilation = 1;                       ///< distance between the taps of the kernel
  std::int64_t groups = 1;                   ///< input channels are divided into so many groups
  bool bias = true;                          ///< add a bias for each output channel
  PadMode padding_mode = PadMode::constant;  ///< what stands in the padding: zeros, or elements of x
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

/// Options of Conv1d.
struct Conv1dOptions {
  std::int64_t stride = 1;                   ///< step of the window
  std::int64_t padding = 0;                  ///< zeros on each side; -1: a result of x's length
  std::int64_t dilation = 1;                 ///< distance between the taps of the kernel
  std::int64_t groups = 1;                   ///< input channels are divided into so many groups
  bool bias = true;                          ///< add a bias for each output channel
  PadMode padding_mode = PadMode::constant;  ///< what stands in the padding: zeros, or elements of x
};

/// 1-D convolution of [n, in, length]; see lockstep::conv1d. Parameters weight [out, in / groups, k] and bias [out],
/// drawn as PyTorch's.
class Conv1d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, Conv1dOptions options = {});
  Conv1d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel,
         Conv1dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [out, in / groups, k]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  Conv1dOptions options_;
};

/// Options of ConvTranspose2d.
struct ConvTranspose2dOptions {
  Size2d stride = 1;          ///< distance of the windows in the result
  Size2d padding = 0;         ///< rows and columns left out of the result on each side
  Size2d output_padding = 0;  ///< of the result, more rows and columns at the end; below the stride
  std::int64_t groups = 1;    ///< input channels are divided into so many groups
  bool bias = true;           ///< add a bias for each output channel
  Size2d dilation = 1;        ///< distance between the taps of the kernel
};

/// Transpose of a 2-D convolution; see lockstep::conv_transpose2d. Parameters weight [in, out / groups, kh, kw] and
/// bias [out], drawn as PyTorch's.
class ConvTranspose2d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel, ConvTranspose2dOptions options = {});
  ConvTranspose2d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size2d kernel,
                  ConvTranspose2dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [in, out / groups, kh, kw]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  ConvTranspose2dOptions options_;
};

/// Options of ConvTranspose1d.
struct ConvTranspose1dOptions {
  std::int64_t stride = 1;          ///< distance of the windows in the result
  std::int64_t padding = 0;         ///< elements left out of the result on each side
  std::int64_t output_padding = 0;  ///< of the result, more elements at the end; below the stride
  std::int64_t groups = 1;          ///< input channels are divided into so many groups
  bool bias = true;                 ///< add a bias for each output channel
  std::int64_t dilation = 1;        ///< distance between the taps of the kernel
};

/// Transpose of a 1-D convolution; see lockstep::conv_transpose1d. Parameters weight [in, out / groups, k] and bias
/// [out], drawn as PyTorch's.
class ConvTranspose1d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  ConvTranspose1d(std::int64_t in, std::int64_t out, std::int64_t kernel, ConvTranspose1dOptions options = {});
  ConvTranspose1d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel,
                  ConvTranspose1dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [in, out / groups, k]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  ConvTranspose1dOptions options_;
};

/// Options of Conv3d.
struct Conv3dOptions {
  Size3d stride = 1;                         ///< step of the window
  Size3d padding = 0;                        ///< zeros on each side
  Size3d dilation = 1;                       ///< distance between the taps of the kernel
  std::int64_t groups = 1;                   ///< input channels are divided into so many groups
  bool bias = true;                          ///< add a bias for each output channel
  PadMode padding_mode = PadMode::constant;  ///< what stands in the padding: zeros, or elements of x
};

/// 3-D convolution of [n, in, d, h, w]; see lockstep::conv3d. Parameters weight [out, in / groups, kd, kh, kw] and bias
/// [out], drawn as PyTorch's.
class Conv3d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  Conv3d(std::int64_t in, std::int64_t out, Size3d kernel, Conv3dOptions options = {});
  Conv3d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size3d kernel,
         Conv3dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [out, in / groups, kd, kh, kw]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  Conv3dOptions options_;
};

/// Options of ConvTranspose3d.
struct ConvTranspose3dOptions {
  Size3d stride = 1;          ///< distance of the windows in the result
  Size3d padding = 0;         ///< layers, rows and columns left out of the result on each side
  Size3d output_padding = 0;  ///< of the result, more of them at the end; below the stride
  std::int64_t groups = 1;    ///< input channels are divided into so many groups
  bool bias = true;           ///< add a bias for each output channel
  Size3d dilation = 1;        ///< distance between the taps of the kernel
};

/// Transpose of a 3-D convolution; see lockstep::conv_transpose3d. Parameters weight [in, out / groups, kd, kh, kw] and
/// bias [out], drawn as PyTorch's.
class ConvTranspose3d : public Module {
 public:
  /// Throws Error unless groups divides both channel counts.
  ConvTranspose3d(std::int64_t in, std::int64_t out, Size3d kernel, ConvTranspose3dOptions options = {});
  ConvTranspose3d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size3d kernel,
                  ConvTranspose3dOptions options = {});
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [in, out / groups, kd, kh, kw]
  Parameter bias;    ///< [out]; undefined without bias

 private:
  ConvTranspose3dOptions options_;
};

}  // namespace lockstep::nn
