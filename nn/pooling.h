#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops/interpolate/interpolate.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The functions of the same names as modules; their options are the functions' own.

/// Maximum over windows: [n, c, h, w] to [n, c, oh, ow]; see max_pool2d().
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(Size2d kernel, MaxPool2dOptions options = {}) : kernel_(kernel), options_(options) {}
  MaxPool2d(Module* parent, std::string_view name, Size2d kernel, MaxPool2dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d kernel_;
  MaxPool2dOptions options_;
};

/// The opposite of MaxPool2d: `unpool(x, indices)` for max_pool2d_with_indices(); see max_unpool2d().
class MaxUnpool2d : public ModuleOf<MaxUnpool2d> {
 public:
  explicit MaxUnpool2d(Size2d kernel, MaxUnpool2dOptions options = {}) : kernel_(kernel), options_(options) {}
  MaxUnpool2d(Module* parent, std::string_view name, Size2d kernel, MaxUnpool2dOptions options = {})
      : ModuleOf(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x, const Tensor& indices);  ///< `indices`: int64, of the sizes of x
  /// With the sizes of a result of its own.
  Tensor forward(const Tensor& x, const Tensor& indices, Size2d output_size);

 private:
  Size2d kernel_;
  MaxUnpool2dOptions options_;
};

/// The windows of images as columns; see unfold().
class Unfold : public Module {
 public:
  explicit Unfold(Size2d kernel, UnfoldOptions options = {}) : kernel_(kernel), options_(options) {}
  Unfold(Module* parent, std::string_view name, Size2d kernel, UnfoldOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d kernel_;
  UnfoldOptions options_;
};

/// Columns added up into images of `size`; see fold().
class Fold : public Module {
 public:
  Fold(Size2d size, Size2d kernel, UnfoldOptions options = {}) : size_(size), kernel_(kernel), options_(options) {}
  Fold(Module* parent, std::string_view name, Size2d size, Size2d kernel, UnfoldOptions options = {})
      : Module(parent, name), size_(size), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d size_, kernel_;
  UnfoldOptions options_;
};

/// Mean over windows: [n, c, h, w] to [n, c, oh, ow]; see avg_pool2d().
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(Size2d kernel, AvgPool2dOptions options = {}) : kernel_(kernel), options_(options) {}
  AvgPool2d(Module* parent, std::string_view name, Size2d kernel, AvgPool2dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d kernel_;
  AvgPool2dOptions options_;
};

/// Mean over as many windows as make `output` of any size: see adaptive_avg_pool2d().
class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Size2d output) : output_(output) {}
  AdaptiveAvgPool2d(Module* parent, std::string_view name, Size2d output) : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d output_;
};

/// Largest element of as many windows as make `output` of any size: see adaptive_max_pool2d().
class AdaptiveMaxPool2d : public Module {
 public:
  explicit AdaptiveMaxPool2d(Size2d output) : output_(output) {}
  AdaptiveMaxPool2d(Module* parent, std::string_view name, Size2d output) : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  Size2d output_;
};

/// Maximum over windows of [n, c, length]; see max_pool1d(). A stride of 0 is the kernel's size.
class MaxPool1d : public Module {
 public:
  explicit MaxPool1d(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0)
      : kernel_(kernel), stride_(stride), padding_(padding) {}
  MaxPool1d(Module* parent, std::string_view name, std::int64_t kernel, std::int64_t stride = 0,
            std::int64_t padding = 0)
      : Module(parent, name), kernel_(kernel), stride_(stride), padding_(padding) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t kernel_, stride_, padding_;
};

/// Mean over windows of [n, c, length]; see avg_pool1d(). A stride of 0 is the kernel's size.
class AvgPool1d : public Module {
 public:
  explicit AvgPool1d(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0)
      : kernel_(kernel), stride_(stride), padding_(padding) {}
  AvgPool1d(Module* parent, std::string_view name, std::int64_t kernel, std::int64_t stride = 0,
            std::int64_t padding = 0)
      : Module(parent, name), kernel_(kernel), stride_(stride), padding_(padding) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t kernel_, stride_, padding_;
};

/// Mean over as many windows of [n, c, length] as make `output`; see adaptive_avg_pool1d().
class AdaptiveAvgPool1d : public Module {
 public:
  explicit AdaptiveAvgPool1d(std::int64_t output) : output_(output) {}
  AdaptiveAvgPool1d(Module* parent, std::string_view name, std::int64_t output)
      : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t output_;
};

/// Images of another size: `Upsample({.scale_factor = 2})`; see interpolate().
class Upsample : public Module {
 public:
  explicit Upsample(InterpolateOptions options) : options_(options) {}
  Upsample(Module* parent, std::string_view name, InterpolateOptions options)
      : Module(parent, name), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  InterpolateOptions options_;
};

/// Channels to pixels: see pixel_shuffle().
class PixelShuffle : public Module {
 public:
  explicit PixelShuffle(std::int64_t upscale_factor) : factor_(upscale_factor) {}
  PixelShuffle(Module* parent, std::string_view name, std::int64_t upscale_factor)
      : Module(parent, name), factor_(upscale_factor) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t factor_;
};

/// A frame of the given mode around the last dimensions: `Pad2d({1, 1, 1, 1}, PadMode::reflect)` is PyTorch's
/// ReflectionPad2d(1), PadMode::replicate its ReplicationPad2d, PadMode::constant its ZeroPad2d; see pad().
class Pad2d : public Module {
 public:
  explicit Pad2d(std::vector<std::int64_t> padding, PadMode mode = PadMode::constant, double value = 0.0)
      : padding_(std::move(padding)), mode_(mode), value_(value) {}
  Pad2d(Module* parent, std::string_view name, std::vector<std::int64_t> padding, PadMode mode = PadMode::constant,
        double value = 0.0)
      : Module(parent, name), padding_(std::move(padding)), mode_(mode), value_(value) {}
  Tensor forward(Tensor x) override;

 private:
  std::vector<std::int64_t> padding_;
  PadMode mode_;
  double value_;
};

/// Maximum over windows of volumes [n, c, d, h, w]; see max_pool3d().
class MaxPool3d : public Module {
 public:
  explicit MaxPool3d(Size3d kernel, MaxPool3dOptions options = {}) : kernel_(kernel), options_(options) {}
  MaxPool3d(Module* parent, std::string_view name, Size3d kernel, MaxPool3dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size3d kernel_;
  MaxPool3dOptions options_;
};

/// Mean over windows of volumes; see avg_pool3d().
class AvgPool3d : public Module {
 public:
  explicit AvgPool3d(Size3d kernel, AvgPool3dOptions options = {}) : kernel_(kernel), options_(options) {}
  AvgPool3d(Module* parent, std::string_view name, Size3d kernel, AvgPool3dOptions options = {})
      : Module(parent, name), kernel_(kernel), options_(options) {}
  Tensor forward(Tensor x) override;

 private:
  Size3d kernel_;
  AvgPool3dOptions options_;
};

/// Mean over as many windows of volumes as make `output`; see adaptive_avg_pool3d().
class AdaptiveAvgPool3d : public Module {
 public:
  explicit AdaptiveAvgPool3d(Size3d output) : output_(output) {}
  AdaptiveAvgPool3d(Module* parent, std::string_view name, Size3d output) : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  Size3d output_;
};

/// Largest element of as many windows of [n, c, length] as make `output`; see adaptive_max_pool1d().
class AdaptiveMaxPool1d : public Module {
 public:
  explicit AdaptiveMaxPool1d(std::int64_t output) : output_(output) {}
  AdaptiveMaxPool1d(Module* parent, std::string_view name, std::int64_t output)
      : Module(parent, name), output_(output) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t output_;
};

/// Pixels to channels: see pixel_unshuffle().
class PixelUnshuffle : public Module {
 public:
  explicit PixelUnshuffle(std::int64_t downscale_factor) : factor_(downscale_factor) {}
  PixelUnshuffle(Module* parent, std::string_view name, std::int64_t downscale_factor)
      : Module(parent, name), factor_(downscale_factor) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t factor_;
};

}  // namespace lockstep::nn
