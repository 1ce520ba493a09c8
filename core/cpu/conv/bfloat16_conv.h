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
/// Pairs need numbers whose products are neither tiny nor huge. That is asked of all images at once; where it is not
/// so, as with infinities, all is computed in float32.

/// True where a convolution of bfloat16 goes by products, whatever the processor.
bool conv_goes_by_products(const Conv& conv);

// By pairs, on the threads of parallel_for, where a convolution goes by products. False, with nothing that counts
// written, if this processor, or what is asked of it, has no pairs, or if the numbers are not for them.

/// out = conv(x, weight) + bias, then max(0, out) if `relu`, each rounded once. `bias` may be null.
bool conv_bfloat16_forward(const Conv& conv, const BFloat16* x, const BFloat16* weight, const float* bias, bool relu,
                           BFloat16* out);
/// The gradient of x, rounded once.
bool conv_bfloat16_backward_data(const Conv& conv, const BFloat16* grad, const BFloat16* weight, BFloat16* x_grad);
/// The gradient of weight, rounded once.
bool conv_bfloat16_backward_weight(const Conv& conv, const BFloat16* grad, const BFloat16* x, BFloat16* weight_grad);

}  // namespace lockstep::cpu
