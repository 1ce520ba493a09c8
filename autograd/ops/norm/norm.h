#pragma once

#include <optional>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// The root of the sum of squares over all elements (empty dims) or the given dims; torch.linalg.vector_norm of order
/// 2. Its gradient where it is 0 is 0. Throws Error unless `x` is floating-point.
Tensor norm(const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// norm() of an order, as in libtorch: norm(x, 1) is the sum of magnitudes. Dimensions of the Euclidean norm stand in
/// braces: norm(x, {1}).
template <typename T, typename D = Shape>
requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && std::convertible_to<D, Shape>) Tensor
    norm(const Tensor& x, T order, const D& dims = D(), bool keepdim = false) {
  return x.norm(order, dims, keepdim);
}
/// The norm of any order, as torch.linalg.vector_norm: sum(|x|^order)^(1 / order); for infinity and -infinity the
/// largest and the smallest magnitude, for 0 the number of elements other than 0. Its gradient where it is 0 is 0. With
/// a `dtype` x is cast to it first. Throws Error unless `x` is floating-point then.
Tensor vector_norm(const Tensor& x, double order = 2.0, const Shape& dims = {}, bool keepdim = false,
                   std::optional<DType> dtype = std::nullopt);

namespace linalg {

/// See there.
using lockstep::vector_norm;
/// Norms of matrices, which lie in the two dimensions `dims`, as torch.linalg.matrix_norm: the root of the sum of
/// squares ("fro"), the largest (1) or smallest (-1) sum of magnitudes of a column, or of a row (infinity, -infinity),
/// the largest (2) or smallest (-2) singular value, or the sum of those ("nuc"). Of no elements the largest is 0.
/// Throws Error for other orders, and for the smallest of none.
Tensor matrix_norm(const Tensor& x, std::string_view order = "fro", const Shape& dims = {-2, -1}, bool keepdim = false);
Tensor matrix_norm(const Tensor& x, double order, const Shape& dims = {-2, -1}, bool keepdim = false);
/// As torch.linalg.norm: the Euclidean norm over all elements.
Tensor norm(const Tensor& x);
/// Of an order: over one dimension vector_norm(), over two matrix_norm(); empty dims are all that x has.
Tensor norm(const Tensor& x, double order, const Shape& dims = {}, bool keepdim = false);
Tensor norm(const Tensor& x, std::string_view order, const Shape& dims = {}, bool keepdim = false);

}  // namespace linalg

/// x / max(norm(x), eps) along dim, for the norm of any order. Semantics of torch.nn.functional.normalize.
Tensor normalize(const Tensor& x, double order = 2.0, std::int64_t dim = 1, double eps = 1e-12);
/// The cosine of the angle between a and b along dim; both broadcast, and norms are at least eps. Semantics of
/// torch.nn.functional.cosine_similarity.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim = 1, double eps = 1e-8);
/// The norm of a - b + eps along the last dimension. Semantics of torch.nn.functional.pairwise_distance.
Tensor pairwise_distance(const Tensor& a, const Tensor& b, double order = 2.0, double eps = 1e-6, bool keepdim = false);

/// The distances [..., n, m] of the rows of a [..., n, d] and b [..., m, d], as torch.cdist: the norm, of any order, of
/// each difference; leading dimensions broadcast. Its gradient where a distance is 0 is 0. Euclidean distances of more
/// than 25 rows are computed from a product, as PyTorch does: to about the square root of the dtype's precision where
/// rows are close. Otherwise the differences, n m d elements, are held at once. Throws Error for fewer than two
/// dimensions, or rows of different lengths.
Tensor cdist(const Tensor& a, const Tensor& b, double order = 2.0);

}  // namespace lockstep
