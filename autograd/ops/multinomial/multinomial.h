#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Indices (int64) drawn with the given probabilities, which need not add up to 1: [classes] gives [count], [rows,
/// classes] gives [rows, count]. Semantics of torch.multinomial; takes no gradient. Each call draws one key from
/// RandomStream::general (Note [Random keys]). Without `replacement` no index comes twice in a row: those are drawn one
/// after the other, by the race of Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006). Throws
/// Error for other shapes, integers, and on the CPU for values that are negative or not finite, rows that add up to 0,
/// or, without replacement, fewer classes of more than 0 than are drawn; on CUDA devices, whose values the host does
/// not wait for, what is drawn from such rows is any class.
Tensor multinomial(const Tensor& probabilities, std::int64_t count = 1, bool replacement = false);

/// Normal numbers with these means and standard deviations, which broadcast; no gradient goes to either. Draws as
/// randn(). torch.normal.
Tensor normal(const Tensor& mean, const Tensor& std);
Tensor normal(const Tensor& mean, double std = 1.0);  ///< one standard deviation for all
Tensor normal(double mean, const Tensor& std);        ///< one mean for all
/// 1 with the probability that each element of p holds, else 0, in p's dtype; takes no gradient. Draws as rand().
Tensor bernoulli(const Tensor& p);
/// 1 with probability p, else 0, in the shape, dtype and device of `like`. Throws Error unless 0 <= p <= 1.
Tensor bernoulli(const Tensor& like, double p);

namespace detail {
/// Numbers above 0 with the density lambd exp(-lambd x), for Tensor::exponential_().
Tensor exponential(const Shape& sizes, double lambd, const TensorOptions& options);
}  // namespace detail

}  // namespace lockstep
