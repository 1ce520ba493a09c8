#pragma once

// A parameter that a TensorParallel divides. For .cpp files only.

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/distributed/tensor_parallel/tensor_parts.h"

namespace lockstep::distributed {

/// A parameter that is divided.
struct TensorParallel::Divided {
  std::string name;
  Tensor parameter;
  TensorDivision division;
  const char* what = "";      ///< outputs, inputs or rows, for messages
  std::int64_t heads = 0;     ///< of which each shard has as many, where they must not be cut
  std::function<void()> set;  ///< has the layer compute with its part
};

}  // namespace lockstep::distributed
