#pragma once

#include <string>

#include "lockstep/core/tensor.h"
#include "lockstep/data/image.h"

namespace lockstep::data {

/// A photographed, scanned or drawn digit made to look like MNIST's: 28 x 28, one channel, bright ink on black.
/// Accepts 1 to 4 channels (transparent parts count as background), any size, dark ink on light paper or light on dark
/// (told apart by the brightness of the border). The ink is cropped, scaled by area to fit 20 x 20 with its proportions
/// kept, and placed with its centre of mass at the centre of the field, as the makers of MNIST did
/// (yann.lecun.com/exdb/mnist). `name` stands in messages.
/// Throws Error if the image is empty or shows no ink (all pixels nearly alike).
Image digit_from_image(const Image& image, const std::string& name);

/// float32 [1, 1, H, W]: (byte / 255 - mean) / std, by default MNIST's.
Tensor digit_tensor(const Image& digit, float mean = 0.1307f, float std = 0.3081f);

}  // namespace lockstep::data
