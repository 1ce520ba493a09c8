#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/layer_norm/layer_norm.h"

namespace lockstep {

/// The C channels of input [N, C, ...] in `groups` groups of neighbours, each normalised over its channels and
/// positions as by layer_norm(), then times weight [C] plus bias [C]. Wu and He, "Group normalization" (2018);
/// semantics of torch.nn.functional.group_norm; one group for each channel is instance normalisation. Dtypes as
/// layer_norm(). Throws Error unless groups divides C and a group has elements.
Tensor group_norm(const Tensor& input, std::int64_t groups, const LayerNormOptions& options = {});

}  // namespace lockstep
