#include "lockstep/distributed/parallel/data_parallel.h"

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

TrainingStepOptions with_devices(TrainingStepOptions options, const std::vector<Device>& devices) {
  LOCKSTEP_CHECK(!devices.empty(), "[DataParallel] no devices were given");
  options.devices = devices;
  return options;
}

}  // namespace

DataParallel::DataParallel(const TrainingStep::Factory& factory, std::vector<Device> devices,
                           TrainingStepOptions options)
    : devices_(std::move(devices)), step_(factory, with_devices(std::move(options), devices_)) {}

}  // namespace lockstep::distributed
