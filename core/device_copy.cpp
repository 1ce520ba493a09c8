#include "core/device_copy.h"

#include "core/check.h"

namespace lockstep {
namespace {
DeviceCopyFunctions installed;
}

void set_device_copy(DeviceCopyFunctions functions) {
  installed = functions;
}

void copy_across_devices(const Tensor& source, const Tensor& target) {
  LOCKSTEP_CHECK(installed.copy, "[copy] there is no copy from {} to {} in this build", to_string(source.device()),
                 to_string(target.device()));
  installed.copy(source, target);
}

void fill_on_device(const Tensor& tensor, double value) {
  LOCKSTEP_CHECK(installed.fill, "[fill] there is no fill for {} in this build", to_string(tensor.device()));
  installed.fill(tensor, value);
}

}  // namespace lockstep
