// Elements that an index names, orders, sets, grids and products by other names.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

Results several(std::vector<Tensor> tensors) {
  return tensors;
}
Results both(const TopK& found) {
  return several({found.values, found.indices});
}

Operation scattered(const char* name) {
  return {name, [](Call& c) -> Results {
            const Tensor x = c.tensor(0, "input"), index = c.tensor(2, "index"), source = c.tensor(3, "src");
            return scatter_reduce(x, c.integer(1, "dim"), index, source, c.text(4, "reduce", ""),
                                  c.flag(5, "include_self", true));
          }};
}

Operation index_reduced(const char* name) {
  return {name, [](Call& c) -> Results {
            const Tensor x = c.tensor(0, "input"), index = c.tensor(2, "index"), source = c.tensor(3, "source");
            return index_reduce(x, c.integer(1, "dim"), index, source, c.text(4, "reduce", ""),
                                c.flag(5, "include_self", true));
          }};
}

template <typename Op>
Operation along(const char* name, Op op) {
  return {name, [op](Call& c) -> Results { return op(c.tensor(0, "input"), c.integer(1, "dim")); }};
}

template <typename Op>
Operation of_two(const char* name, Op op) {
  return {name, [op](Call& c) -> Results { return op(c.tensor(0, "input"), c.tensor(1, "other")); }};
}

/// The tensors, as a list or one by one.
std::vector<Tensor> list(Call& c) {
  if (c.is_list(0, "tensors")) return c.tensors(0, "tensors");
  std::vector<Tensor> all;
  for (int i = 0; i < c.positions(); ++i) all.push_back(c.tensor(i, "tensors"));
  return all;
}

template <typename Op>
Operation of_list(const char* name, Op op) {
  return {name, [op](Call& c) -> Results { return op(list(c)); }};
}

template <typename Op>
Operation plus_product(const char* name, Op op) {
  return {name, [op](Call& c) -> Results {
            return op(c.tensor(0, "input"), c.tensor(1, "a"), c.tensor(2, "b"), c.real(-1, "beta", 1.0),
                      c.real(-1, "alpha", 1.0));
          }};
}

/// The results that were asked for.
Results set_of(Call& c, const Unique& found, const char* inverse, const char* counts) {
  std::vector<Tensor> out{found.values};
  if (c.flag(-1, inverse, false)) out.push_back(found.inverse);
  if (c.flag(-1, counts, false)) out.push_back(found.counts);
  return out;
}

Results sorted_set(Call& c) {
  const Tensor x = c.tensor(0, "input");
  if (!c.flag(-1, "sorted", true)) throw NotExpressible{"sets are in order"};
  const auto dim = c.integer_or_none(-1, "dim");
  return set_of(c, dim ? unique(x, *dim) : unique(x), "return_inverse", "return_counts");
}

Results split_at(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const std::int64_t dim = c.integer(2, "dim", 0);
  const char* name = "indices_or_sections";
  if (c.is_tensor(1, name)) {
    const Tensor at = c.tensor(1, name);
    return at.dim() == 0 ? tensor_split(x, at.item<std::int64_t>(), dim)
                         : tensor_split(x, at.to_vector<std::int64_t>(), dim);
  }
  if (!c.is_list(1, name)) return tensor_split(x, c.integer(1, name), dim);
  const Shape at = c.shape(1, name);
  return tensor_split(x, std::vector<std::int64_t>(at.begin(), at.end()), dim);
}

Results repeated(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const auto dim = c.integer_or_none(2, "dim");
  c.integer_or_none(-1, "output_size");  // what follows from the repetitions
  if (c.is_tensor(1, "repeats")) {
    const Tensor times = c.tensor(1, "repeats");
    return dim ? repeat_interleave(x, times, *dim) : repeat_interleave(x, times);
  }
  const std::int64_t times = c.integer(1, "repeats");
  return dim ? repeat_interleave(x, times, *dim) : repeat_interleave(x, times);
}

Results quantiles(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const auto dim = c.integer_or_none(2, "dim");
  const bool keepdim = c.flag(3, "keepdim", false);
  if (c.text(-1, "interpolation", "linear") != "linear") throw NotExpressible{"quantiles are interpolated linearly"};
  return c.is_tensor(1, "q") ? quantile(x, c.tensor(1, "q"), dim, keepdim)
                             : quantile(x, c.real(1, "q", 0.0), dim, keepdim);
}

Results dotted(Call& c) {
  const Tensor a = c.tensor(0, "a"), b = c.tensor(1, "b");
  if (!c.is_list(2, "dims")) return tensordot(a, b, c.integer(2, "dims", 2));
  const auto& dims = c.json(2, "dims");
  const auto shape = [](const nlohmann::json& entry) { return Shape(entry.get<std::vector<std::int64_t>>()); };
  return tensordot(a, b, shape(dims.at(0)), shape(dims.at(1)));
}

}  // namespace

std::vector<Operation> indexing_calls() {
  return {
      scattered("scatter_reduce.sum"),
      scattered("scatter_reduce.prod"),
      scattered("scatter_reduce.mean"),
      scattered("scatter_reduce.amax"),
      scattered("scatter_reduce.amin"),
      index_reduced("index_reduce.prod"),
      index_reduced("index_reduce.mean"),
      index_reduced("index_reduce.amax"),
      index_reduced("index_reduce.amin"),
      {"index_copy",
       [](Call& c) -> Results {
         return index_copy(c.tensor(0, "input"), c.integer(1, "dim"), c.tensor(2, "index"), c.tensor(3, "source"));
       }},
      {"index_fill",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input"), index = c.tensor(2, "index");
         const std::int64_t dim = c.integer(1, "dim");
         return c.is_tensor(3, "value") ? index_fill(x, dim, index, c.tensor(3, "value"))
                                        : index_fill(x, dim, index, c.number(3, "value"));
       }},
      {"masked_scatter",
       [](Call& c) -> Results {
         return masked_scatter(c.tensor(0, "input"), c.tensor(1, "mask"), c.tensor(2, "source"));
       }},
      {"take_along_dim",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input"), index = c.tensor(1, "indices");
         const auto dim = c.integer_or_none(2, "dim");
         return dim ? take_along_dim(x, index, *dim) : take_along_dim(x, index);
       }},
      {"take", [](Call& c) -> Results { return take(c.tensor(0, "input"), c.tensor(1, "index")); }},
      along("cummax", [](const Tensor& x, std::int64_t dim) { return both(cummax(x, dim)); }),
      along("cummin", [](const Tensor& x, std::int64_t dim) { return both(cummin(x, dim)); }),
      along("logcumsumexp", [](const Tensor& x, std::int64_t dim) { return logcumsumexp(x, dim); }),
      {"kthvalue",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return both(kthvalue(x, c.integer(1, "k"), c.integer(2, "dim", -1), c.flag(3, "keepdim", false)));
       }},
      {"median",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const auto dim = c.integer_or_none(1, "dim");
         return dim ? both(median(x, *dim, c.flag(2, "keepdim", false))) : Results(median(x));
       }},
      {"quantile", quantiles},
      {"searchsorted",
       [](Call& c) -> Results {
         Tensor sorted = c.tensor(0, "sorted_sequence");
         if (c.given(-1, "sorter")) sorted = sorted.gather(-1, c.tensor(-1, "sorter"));
         const bool small = c.flag(-1, "out_int32", false), right = c.flag(-1, "right", false);
         const std::string side = c.text(-1, "side", "");
         if (!c.is_tensor(1, "input")) return searchsorted(sorted, c.number(1, "input"), small, right, side);
         return searchsorted(sorted, c.tensor(1, "input"), small, right, side);
       }},
      {"bucketize",
       [](Call& c) -> Results {
         return bucketize(c.tensor(0, "input"), c.tensor(1, "boundaries"), c.flag(-1, "out_int32", false),
                          c.flag(-1, "right", false));
       }},
      {"histc",
       [](Call& c) -> Results {
         return histc(c.tensor(0, "input"), c.integer(1, "bins", 100), c.real(2, "min", 0.0), c.real(3, "max", 0.0));
       }},
      {"isin", [](Call& c) -> Results { return isin(c.tensor(0, "elements"), c.tensor(1, "test_elements")); }},
      {"unique", sorted_set},
      {"unique_consecutive",
       [](Call& c) { return set_of(c, unique_consecutive(c.tensor(0, "input")), "return_inverse", "return_counts"); }},
      {"bincount",
       [](Call& c) -> Results {
         return bincount(c.tensor(0, "input"), c.tensor_or_none(1, "weights"), c.integer(2, "minlength", 0));
       }},
      {"repeat_interleave", repeated},
      {"meshgrid.variadic_tensors", [](Call& c) -> Results { return meshgrid(list(c), c.text(-1, "indexing", "ij")); }},
      {"rot90",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return rot90(x, c.integer(1, "k", 1), c.given(2, "dims") ? c.shape(2, "dims") : Shape{0, 1});
       }},
      {"fliplr", [](Call& c) -> Results { return fliplr(c.tensor(0, "input")); }},
      {"flipud", [](Call& c) -> Results { return flipud(c.tensor(0, "input")); }},
      {"tril_indices",
       [](Call& c) -> Results {
         return tril_indices(c.integer(0, "row"), c.integer(1, "col"), c.integer(2, "offset", 0))
             .to(c.dtype(-1, "dtype").value_or(kInt64));
       }},
      {"triu_indices",
       [](Call& c) -> Results {
         return triu_indices(c.integer(0, "row"), c.integer(1, "col"), c.integer(2, "offset", 0))
             .to(c.dtype(-1, "dtype").value_or(kInt64));
       }},
      {"unfold_copy",
       [](Call& c) -> Results {
         return windows(c.tensor(0, "input"), c.integer(1, "dimension"), c.integer(2, "size"), c.integer(3, "step"));
       }},
      {"diag", [](Call& c) -> Results { return diag(c.tensor(0, "input"), c.integer(1, "diagonal", 0)); }},
      {"diag_embed",
       [](Call& c) -> Results {
         return diag_embed(c.tensor(0, "input"), c.integer(1, "offset", 0), c.integer(2, "dim1", -2),
                           c.integer(3, "dim2", -1));
       }},
      of_list("block_diag", block_diag),
      {"trace", [](Call& c) -> Results { return trace(c.tensor(0, "input")); }},
      of_list("cartesian_prod", cartesian_prod),
      {"tensor_split", split_at},
      of_list("hstack", hstack),
      of_list("vstack", vstack),
      of_list("dstack", dstack),
      of_list("column_stack", column_stack),
      plus_product("addmv", addmv),
      plus_product("addr", addr),
      plus_product("addbmm", addbmm),
      of_two("inner", inner),
      of_two("dot", dot),
      of_two("kron", kron),
      {"tensordot", dotted},
      {"cross",
       [](Call& c) -> Results {
         const Tensor a = c.tensor(0, "input"), b = c.tensor(1, "other");
         if (const auto dim = c.integer_or_none(2, "dim")) return cross(a, b, *dim);
         for (int d = 0; d < a.dim(); ++d)  // torch.cross's old default: the first dimension of size 3
           if (a.size(d) == 3) return cross(a, b, d);
         throw NotExpressible{"there is no dimension of size 3"};
       }},
      {"nn.functional.bilinear",
       [](Call& c) -> Results {
         return bilinear(c.tensor(0, "input1"), c.tensor(1, "input2"), c.tensor(2, "weight"),
                         c.tensor_or_none(3, "bias"));
       }},
  };
}

}  // namespace lockstep::testing
