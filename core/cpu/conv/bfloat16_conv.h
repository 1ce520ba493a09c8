#pragma once

#include <cstdint>

#include "lockstep/core/cpu/conv/conv.h"
#include "lockstep/core/dtype.h"

namespace lockstep::cpu {

/// Note [Convolutions of bfloat16]
/// With many channels they are products by pairs (Note [Products of bfloat16]), with the bits of Note [Implicit
/// products] and Note [Order of a weight gradient] on the values as float32, which other processors compute: so the
/// sizes alone decide, and minimal filtering has no part in it, for which the pairs make up. Positions of a result are
/// gone through as they lie among the zeros around the image, so that any sixteen read neighbours; what comes out
/// between two rows is left out. In the gradient of the weights the result's gradient is 0 there.
///
/// Pairs need numbers whose products are neither tiny nor huge. That is asked of all of x, the weights or the gradient
/// at once; where it is not so, as with infinities, all is computed in float32.

/// True where a convolution of bfloat16 goes by products, whatever the processor.
bool conv_goes_by_products(const Conv& conv);

/// Whether pairs add a and b as fused multiply-adds do; false if this processor, or what is asked of it, has none.
bool conv_goes_by_pairs(const BFloat16* a, std::int64_t a_count, const BFloat16* b, std::int64_t b_count);

// By pairs, on the threads of parallel_for, only where both of these are true. `bias` may be null.

/// out = conv(x, weight) + bias, then max(0, out) if `relu`, each rounded once.
void conv_bfloat16_forward(const Conv& conv, const BFloat16* x, const BFloat16* weight, const float* bias, bool relu,
                           BFloat16* out);
/// The gradient of x, rounded once.
void conv_bfloat16_backward_data(const Conv& conv, const BFloat16* grad, const BFloat16* weight, BFloat16* x_grad);
/// The gradient of weight, rounded once.
void conv_bfloat16_backward_weight(const Conv& conv, const BFloat16* grad, const BFloat16* x, BFloat16* weight_grad);

}  // namespace lockstep::cpu
