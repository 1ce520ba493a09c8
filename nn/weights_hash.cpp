#include <algorithm>

#include "lockstep/core/copy.h"
#include "lockstep/core/sha256.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

namespace {

std::string sha256_of(std::vector<NamedTensor> tensors) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  Sha256 hash;
  for (const NamedTensor& t : tensors) {
    const Tensor value = as_contiguous(move_values(t.tensor.detach(), Device()));
    const LibraryAccess access;
    hash.update(value.raw_data(), value.nbytes());
  }
  return to_hex(hash.finish());
}

}  // namespace

std::string weights_sha256(const Module& module) {
  return sha256_of(module.named_parameters());
}

std::string state_sha256(const Module& module) {
  return sha256_of(module.state());
}

}  // namespace lockstep::nn
