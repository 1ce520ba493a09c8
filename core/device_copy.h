#pragma once

#include "core/tensor.h"

namespace lockstep {

/// Note [Device copies]
/// What core needs of accelerators to copy and fill. A device layer installs itself at start-up; without one, a tensor
/// on such a device cannot exist, and these throw Error.
struct DeviceCopyFunctions {
  void (*copy)(const Tensor& source, const Tensor& target) = nullptr;
  void (*fill)(const Tensor& tensor, double value) = nullptr;
};
void set_device_copy(DeviceCopyFunctions functions);

/// At least one of the two is not on the CPU.
void copy_across_devices(const Tensor& source, const Tensor& target);
void fill_on_device(const Tensor& tensor, double value);

}  // namespace lockstep
