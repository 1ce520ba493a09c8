#pragma once

#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Matrix product with torch.matmul's rules:
/// - both 1-D: the dot product, a scalar;
/// - both 2-D: the matrix product;
/// - 1-D and 2-D: a vector is a row on the left and a column on the right; that dimension is dropped from the result;
/// - otherwise batched: the last two dimensions are matrices, the leading ones broadcast.
/// Tensors of one dtype on one device; float16 and bfloat16 accumulate in float, integers wrap. An empty inner
/// dimension gives zeros. Throws Error for bool tensors, scalars, and sizes that do not fit.
Tensor matmul(const Tensor& a, const Tensor& b);

/// matmul() of two matrices; of batches [n, i, k] and [n, k, j]; of a matrix and a vector; of two vectors. They throw
/// Error for other shapes.
Tensor mm(const Tensor& a, const Tensor& b);
Tensor bmm(const Tensor& a, const Tensor& b);
Tensor mv(const Tensor& a, const Tensor& b);
Tensor dot(const Tensor& a, const Tensor& b);
/// [i] and [j] to [i, j]: all products.
Tensor outer(const Tensor& a, const Tensor& b);
/// beta x + alpha matmul(a, b), for matrices (addmm) and batches of them (baddbmm). With a beta of 0 the values of x do
/// not count, NaN either, and with an alpha of 0 those of the product. An x of another dtype is promoted with the
/// product, whatever beta is. Throws Error unless x broadcasts to the product's shape.
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);

/// beta x + alpha times: a matrix and a vector (addmv), the products of all elements of two vectors (addr), and the sum
/// of the products of a batch (addbmm).
Tensor addmv(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);
Tensor addr(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);
Tensor addbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0);
/// Sums of products along the last dimension of both, whose sizes are equal: [*, k] and [+, k] to [*, +].
Tensor inner(const Tensor& a, const Tensor& b);
/// Sums of products along the last `dims` dimensions of a and the first ones of b, or along those that are named.
Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims = 2);
Tensor tensordot(const Tensor& a, const Tensor& b, const Shape& dims_a, const Shape& dims_b);
/// Kronecker's product: every element of a times all of b.
Tensor kron(const Tensor& a, const Tensor& b);
/// The cross product along a dimension of size 3; both broadcast. torch.linalg.cross.
Tensor cross(const Tensor& a, const Tensor& b, std::int64_t dim = -1);
/// a_i W_k b_j summed over i and j, plus bias: a [*, i] and b [*, j], weight [out, i, j] and bias [out] (or undefined)
/// to [*, out].
Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias = {});
/// Sums of products by Einstein's convention, as torch.einsum: einsum("bij,bjk->bik", {a, b}). Letters name dimensions;
/// those that are not in the result are summed, equal letters in one operand take its diagonal, and "..." stands for
/// dimensions that broadcast. Without "->" the result has the letters that occur once, in alphabetical order. Operands
/// are multiplied from left to right, each pair as one matmul() of permuted views. Throws Error for an equation that
/// does not fit the operands.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

}  // namespace lockstep
