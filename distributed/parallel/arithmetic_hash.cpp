#include "lockstep/distributed/parallel/arithmetic_hash.h"

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/sha256.h"

namespace lockstep::distributed {
namespace {

// Numbers of 24 bits, spread over [0.5, 1.5) x scale, that are the same everywhere.
Tensor numbers(const Shape& shape, std::uint32_t seed, Device device, float scale = 1.0f) {
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = (0.5f + static_cast<float>(state >> 9) * 0x1p-23f) * scale;
  }
  return move_values(tensor(values), device).reshape(shape);
}

}  // namespace

std::string arithmetic_hash(Device device) {
  Sha256 hash;
  const auto take = [&](const Tensor& result) {
    const Tensor here = as_contiguous(move_values(result.detach(), Device()));
    const LibraryAccess access;
    hash.update(here.raw_data(), here.nbytes());
  };
  {
    const NoGradGuard no_grad;
    // Sizes that leave tails in any blocking.
    const Tensor a = numbers({67, 131}, 1, device), b = numbers({131, 77}, 2, device);
    take(a.matmul(b));
    take(cast_values(a, kBFloat16).matmul(cast_values(b, kBFloat16)));
    const Tensor x = numbers({4099}, 3, device);
    for (const auto& function : {exp, log, sqrt, rsqrt, tanh, sigmoid}) take(function(x));
    take(x.sum());
    take(mul(numbers({1031}, 4, device, 0x1p-125f), 0x1p-3));
  }
  const EnableGradGuard recording;
  const Tensor image = numbers({3, 5, 13, 11}, 5, device), kernel = numbers({9, 5, 3, 3}, 6, device);
  image.set_requires_grad(true);
  kernel.set_requires_grad(true);
  const Tensor out = conv2d(image, kernel, {}, {.padding = 1});
  take(out);
  mul(out, out.detach()).sum().backward();
  take(image.grad());
  take(kernel.grad());
  return to_hex(hash.finish());
}

}  // namespace lockstep::distributed
