#include "lockstep/core/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/requirements.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {
namespace {

// Asked once: devices do not come and go under a running process.
struct Devices {
  int count = 0;
  std::string why_none;
  std::vector<std::string> obstacles;  // by device: why it cannot be used; mostly empty

  Devices() {
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) {
      look_at_architectures();
      return;
    }
    count = 0;
    cudaGetLastError();  // the failure is handled here, later calls should not meet it
    int driver = 0, runtime = 0;
    if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaRuntimeGetVersion(&runtime) == cudaSuccess)
      why_none = explain_driver(driver, runtime);
    else if (status == cudaErrorNoDevice || status == cudaSuccess)
      why_none = "no CUDA device was found";
    else
      why_none =
          fmt::format("CUDA devices cannot be counted: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  }

  // Devices for which there is no code are counted all the same, as their numbers are the driver's, unless all are
  // such.
  void look_at_architectures() {
    for (int device = 0; device < count; ++device) {
      int major = 0, minor = 0;
      LOCKSTEP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
      LOCKSTEP_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
      obstacles.push_back(explain_architecture(LOCKSTEP_CUDA_ARCHITECTURES, major, minor));
    }
    if (std::ranges::any_of(obstacles, &std::string::empty)) return;
    why_none = fmt::format("cuda:0 is there, but {}", obstacles.front());
    count = 0;
  }
};

const Devices& devices() {
  static const Devices instance;
  return instance;
}

}  // namespace

bool is_built() {
  return true;
}
int device_count() {
  return devices().count;
}
std::string why_unavailable() {
  return devices().why_none;
}

const std::string& device_obstacle(int index) {
  return devices().obstacles[static_cast<std::size_t>(index)];
}

std::string device_name(int index) {
  require_device(index);
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

std::string describe_arithmetic(int index) {
  require_device(index);
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  int driver = 0;
  int runtime = 0;
  LOCKSTEP_CUDA_CHECK(cudaDriverGetVersion(&driver));
  LOCKSTEP_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return fmt::format("{} ({}.{}), driver {}.{}, runtime {}.{}, TF32 {}{}", properties.name, properties.major,
                     properties.minor, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                     allow_tf32() ? "on" : "off",
                     deterministic() ? ""
                     : benchmark()   ? ", not deterministic, algorithms measured"
                                     : ", not deterministic");
}

std::string device_uuid(int index) {
  require_device(index);
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

bool can_access_peer(int from, int to) {
  require_device(from);
  require_device(to);
  int can = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, from, to));
  return can != 0;
}

bool is_capturing(int device) {
  const Stream stream = Stream::current(device);
  if (!stream.handle()) return false;  // the default stream cannot be captured
  const DeviceGuard guard(device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LOCKSTEP_CUDA_CHECK(cudaStreamIsCapturing(stream.handle(), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace lockstep::cuda
