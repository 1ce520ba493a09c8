#include "lockstep/nn/weights_hash.h"

#include <algorithm>

#include "lockstep/core/copy.h"
#include "lockstep/core/sha256.h"

namespace lockstep::nn {

std::string weights_sha256(const Module& module) {
  std::vector<NamedTensor> parameters = module.named_parameters();
  std::ranges::sort(parameters, {}, &NamedTensor::name);
  Sha256 hash;
  for (const NamedTensor& p : parameters) {
    const Tensor value = as_contiguous(move_values(p.tensor.detach(), Device()));
    hash.update(value.raw_data(), value.nbytes());
  }
  return to_hex(hash.finish());
}

}  // namespace lockstep::nn
