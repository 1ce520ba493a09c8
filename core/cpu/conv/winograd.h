#pragma once

#include <cstdint>

#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep::cpu::conv_detail {

/// Note [Minimal filtering]
/// A kernel of 3 x 3 and stride 1 is computed by S. Winograd's minimal filtering F(2 x 2, 3 x 3), as in Lavin, Gray:
/// Fast Algorithms for Convolutional Neural Networks, 2016: a tile of 2 x 2 results sees 4 x 4 elements of the image,
/// and
///   tile = A^T (sum over channels of (G weight G^T) * (B^T elements B)) A
/// with 16 multiplications element by element, where 36 would be needed tap by tap. Each of the 16 is a matrix product
/// over the channels by the kernels of gemm, in the order of Note [Order of a product]. Besides 1/2 the matrices hold
/// 0, 1 and -1:
///   B^T = 1  0 -1  0    G = 1    0    0     A^T = 1  1  1  0
///         0  1  1  0        1/2  1/2  1/2         0  1 -1 -1
///         0 -1  1  0        1/2 -1/2  1/2
///         0  1  0 -1        0    0    1
/// and rounding errors are about those of the plain sum. B and A are applied to the columns' index first, then to the
/// rows'; the gradient of the weights is the transpose, G^T (sum over tiles of (A grad A^T) * (B^T elements B)) G, with
/// tiles in the order image, row, column, in chains of chain_rows() rows of tiles, which are added up in order. As no
/// tile is computed from another's elements, a result depends on the 4 x 4 elements around its tile alone.
///
/// An infinity or NaN among these would reach all four results, though some do not see it, and the sums of large
/// numbers may exceed the range where the results do not. So images with a result that is not finite are computed again
/// tap by tap, as products, and so is a gradient of the weights with an element that is not.

/// Tiles are pairs of rows and of columns of a result.
constexpr std::int64_t kTileSide = 2, kReach = 4, kPoints = 16, kTaps = 9;

/// True where minimal filtering serves and pays; depends on no batch size, so that an image's result does not either.
bool winograd_serves(const Conv& conv);

/// out = conv(x, weight) + bias, and its gradients; as the functions of conv.h. A sink, and the gradient of weights: of
/// one group.
void winograd_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out,
                      const ConvSink* sink, InstructionSet set);
void winograd_backward_data(const Conv& conv, const float* grad, const float* weight, float* x_grad,
                            InstructionSet set);
void winograd_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad,
                              InstructionSet set);

/// The same as products, whatever the sizes: conv.cpp, image_gradient.cpp and weight_gradient.cpp.
void product_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out,
                     const ConvSink* sink, InstructionSet set);
void product_backward_data(const Conv& conv, const float* grad, const float* weight, float* x_grad, InstructionSet set);
void product_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad,
                             InstructionSet set);

}  // namespace lockstep::cpu::conv_detail
