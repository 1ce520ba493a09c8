// Reductions, softmax and products.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

template <typename Op>
Operation reduction(const char* name, Op op) {
  return {name, [op](Call& c) -> Results {
            const Tensor x = c.tensor(0, "input");
            return op(x, c.shape_or_empty(1, "dim"), c.flag(2, "keepdim", false));
          }};
}

/// All dimensions by number if none was given.
Shape named(const Tensor& x, Shape dims) {
  if (dims.empty())
    for (int d = 0; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

template <typename Op>
Results total(Call& c, Op op) {
  const Tensor x = c.tensor(0, "input");
  const Shape dims = c.shape_or_empty(1, "dim");
  const bool keepdim = c.flag(2, "keepdim", false);
  const std::optional<DType> dtype = c.dtype(-1, "dtype");
  return dtype ? op(x, dims, keepdim, *dtype) : op(x, dims, keepdim);
}

template <typename Op>
Operation index(const char* name, Op op) {
  return {name, [op](Call& c) -> Results {
            return op(c.tensor(0, "input"), c.integer_or_none(1, "dim"), c.flag(2, "keepdim", false));
          }};
}

Results variance(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const Shape dims = c.shape_or_empty(1, "dim");
  double correction = c.flag(-1, "unbiased", true) ? 1.0 : 0.0;
  correction = c.real(-1, "correction", correction);
  return var(x, dims, correction, c.flag(-1, "keepdim", false));
}

/// torch.norm(): an order, a number or "fro", then the dimensions.
Results norm_of_order(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const bool frobenius = c.given(1, "p") && c.json(1, "p").is_string();
  if (frobenius && c.text(1, "p", "") != "fro") throw NotExpressible{"there is no norm " + c.text(1, "p", "")};
  const Shape dims = c.shape_or_empty(2, "dim");
  const bool keepdim = c.flag(3, "keepdim", false);
  const std::optional<DType> dtype = c.dtype(-1, "dtype");
  if (frobenius && !dtype) return norm(x, dims, keepdim);
  return vector_norm(x, frobenius ? 2.0 : c.real(1, "p", 2.0), dims, keepdim, dtype);
}

}  // namespace

std::vector<Operation> reduction_calls() {
  return {
      {"sum", [](Call& c) { return total(c, [](const auto&... all) { return sum(all...); }); }},
      {"mean", [](Call& c) { return total(c, [](const auto&... all) { return mean(all...); }); }},
      reduction("amax", [](const Tensor& x, const Shape& dims, bool keep) { return max(x, named(x, dims), keep); }),
      reduction("amin", [](const Tensor& x, const Shape& dims, bool keep) { return min(x, named(x, dims), keep); }),
      reduction("all", [](const auto&... all) { return lockstep::all(all...); }),
      reduction("any", [](const auto&... all) { return any(all...); }),
      reduction("nansum", [](const auto&... all) { return nansum(all...); }),
      reduction("nanmean", [](const auto&... all) { return nanmean(all...); }),
      reduction("logsumexp", [](const auto&... all) { return logsumexp(all...); }),
      {"max.reduction_no_dim", [](Call& c) -> Results { return max(c.tensor(0, "input")); }},
      {"min.reduction_no_dim", [](Call& c) -> Results { return min(c.tensor(0, "input")); }},
      index("argmax", [](const auto&... all) { return argmax(all...); }),
      index("argmin", [](const auto&... all) { return argmin(all...); }),
      {"var", variance},
      {"var.unbiased",
       [](Call& c) -> Results { return var(c.tensor(0, "input"), {}, c.flag(1, "unbiased", true) ? 1.0 : 0.0); }},
      {"norm", norm_of_order},
      {"norm.fro", norm_of_order},
      {"norm.inf", norm_of_order},
      {"linalg.vector_norm",
       [](Call& c) -> Results {
         return vector_norm(c.tensor(0, "x"), c.real(1, "ord", 2.0), c.shape_or_empty(2, "dim"),
                            c.flag(3, "keepdim", false), c.dtype(-1, "dtype"));
       }},
      {"softmax",
       [](Call& c) -> Results { return softmax(c.tensor(0, "input"), c.integer(1, "dim"), c.dtype(-1, "dtype")); }},
      {"softmax.with_dtype",
       [](Call& c) -> Results { return softmax(c.tensor(0, "input"), c.integer(1, "dim"), c.dtype(-1, "dtype")); }},
      {"log_softmax",
       [](Call& c) -> Results { return log_softmax(c.tensor(0, "input"), c.integer(1, "dim"), c.dtype(-1, "dtype")); }},
      {"log_softmax.with_dtype",
       [](Call& c) -> Results { return log_softmax(c.tensor(0, "input"), c.integer(1, "dim"), c.dtype(-1, "dtype")); }},
      {"matmul", [](Call& c) -> Results { return matmul(c.tensor(0, "input"), c.tensor(1, "other")); }},
      {"__rmatmul__", [](Call& c) -> Results { return matmul(c.tensor(1, "other"), c.tensor(0, "input")); }},
      {"mm", [](Call& c) -> Results { return c.tensor(0, "input").mm(c.tensor(1, "mat2")); }},
  };
}

}  // namespace lockstep::testing
