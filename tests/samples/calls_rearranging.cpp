// Elements at other places, scans, and products by other names.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

/// A list of integers, or the integers from this position on.
Shape integers(Call& c, int position, const char* name) {
  if (!c.given(position, name)) return {};
  if (c.is_list(position, name)) return c.shape(position, name);
  Shape values;
  for (int i = position; i < c.positions(); ++i) values.push_back(c.integer(i, name));
  return values.empty() ? c.shape(position, name) : values;
}

Results padded(Call& c, PadMode mode) {
  c.text(2, "mode", "");
  const Shape padding = c.shape(1, "pad");
  return pad(c.tensor(0, "input"), std::vector<std::int64_t>(padding.begin(), padding.end()), mode,
             c.real(3, "value", 0.0));
}

Results summed_products(Call& c) {
  const std::vector<Tensor> operands = c.tensors(0, "operands");
  return einsum(c.text(1, "equation", ""), operands);
}

Results several(std::vector<Tensor> tensors) {
  return tensors;
}

Results sorted(Call& c) {
  const Tensor x = c.tensor(0, "input");
  c.flag(-1, "stable", true);
  const TopK found = sort(x, c.integer(1, "dim", -1), c.flag(2, "descending", false));
  return several({found.values, found.indices});
}

template <typename Op>
Operation running(const char* name, Op op) {
  return {name, [op](Call& c) -> Results {
            const Tensor x = c.tensor(0, "input");
            return op(x, c.integer(1, "dim"), c.dtype(-1, "dtype"));
          }};
}

template <typename Op>
Operation product(const char* name, Op op) {
  return {name, [op](Call& c) -> Results { return op(c.tensor(0, "input"), c.tensor(1, "other")); }};
}

template <typename Op>
Operation plus_product(const char* name, Op op) {
  return {name, [op](Call& c) -> Results {
            return op(c.tensor(0, "input"), c.tensor(1, "a"), c.tensor(2, "b"), c.real(-1, "beta", 1.0),
                      c.real(-1, "alpha", 1.0));
          }};
}

}  // namespace

std::vector<Operation> rearranging_calls() {
  return {
      {"nn.functional.pad.constant", [](Call& c) { return padded(c, PadMode::constant); }},
      {"nn.functional.pad.reflect", [](Call& c) { return padded(c, PadMode::reflect); }},
      {"nn.functional.pad.replicate", [](Call& c) { return padded(c, PadMode::replicate); }},
      {"nn.functional.pad.circular", [](Call& c) { return padded(c, PadMode::circular); }},
      {"nn.functional.one_hot",
       [](Call& c) -> Results { return one_hot(c.tensor(0, "input"), c.integer(1, "num_classes", -1)); }},
      {"nn.functional.pixel_shuffle",
       [](Call& c) -> Results { return pixel_shuffle(c.tensor(0, "input"), c.integer(1, "upscale_factor")); }},
      {"nn.functional.pixel_unshuffle",
       [](Call& c) -> Results { return pixel_unshuffle(c.tensor(0, "input"), c.integer(1, "downscale_factor")); }},
      {"repeat", [](Call& c) -> Results { return repeat(c.tensor(0, "input"), integers(c, 1, "repeats")); }},
      {"tile", [](Call& c) -> Results { return tile(c.tensor(0, "input"), integers(c, 1, "dims")); }},
      {"flip", [](Call& c) -> Results { return flip(c.tensor(0, "input"), integers(c, 1, "dims")); }},
      {"roll",
       [](Call& c) -> Results {
         return roll(c.tensor(0, "input"), c.shape(1, "shifts"), c.shape_or_empty(2, "dims"));
       }},
      {"unbind", [](Call& c) { return several(unbind(c.tensor(0, "input"), c.integer(1, "dim", 0))); }},
      {"unflatten",
       [](Call& c) -> Results { return unflatten(c.tensor(0, "input"), c.integer(1, "dim"), c.shape(2, "sizes")); }},
      {"movedim",
       [](Call& c) -> Results {
         return movedim(c.tensor(0, "input"), c.shape(1, "source"), c.shape(2, "destination"));
       }},
      {"diagonal",
       [](Call& c) -> Results {
         return diagonal(c.tensor(0, "input"), c.integer(1, "offset", 0), c.integer(2, "dim1", 0),
                         c.integer(3, "dim2", 1));
       }},
      {"sort", sorted},
      {"argsort",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         c.flag(-1, "stable", true);
         return argsort(x, c.integer(1, "dim", -1), c.flag(2, "descending", false));
       }},
      {"scatter",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input"), index = c.tensor(2, "index");
         const std::int64_t dim = c.integer(1, "dim");
         if (c.given(-1, "reduce")) {
           if (c.text(-1, "reduce", "") != "add" || !c.is_tensor(3, "src"))
             throw NotExpressible{"scatter_add() adds tensors"};
           return scatter_add(x, dim, index, c.tensor(3, "src"));
         }
         if (!c.is_tensor(3, "src")) return scatter(x, dim, index, c.number(3, "value"));
         return scatter(x, dim, index, c.tensor(3, "src"));
       }},
      {"scatter_add",
       [](Call& c) -> Results {
         return scatter_add(c.tensor(0, "input"), c.integer(1, "dim"), c.tensor(2, "index"), c.tensor(3, "src"));
       }},
      {"index_add",
       [](Call& c) -> Results {
         const Tensor source = c.tensor(3, "source");
         const double alpha = c.real(-1, "alpha", 1.0);
         return index_add(c.tensor(0, "input"), c.integer(1, "dim"), c.tensor(2, "index"),
                          alpha == 1.0 ? source : (source * alpha).to(source.dtype()));
       }},
      {"eye",
       [](Call& c) -> Results {
         const std::int64_t rows = c.integer(0, "n");
         const std::int64_t columns = c.integer(1, "m", rows);
         return eye(rows, columns, {.dtype = c.dtype(-1, "dtype").value_or(kFloat32)});
       }},
      {"linspace",
       [](Call& c) -> Results {
         return linspace(c.real(0, "start", 0.0), c.real(1, "end", 0.0), c.integer(2, "steps"),
                         {.dtype = c.dtype(-1, "dtype").value_or(kFloat32)});
       }},
      {"std",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const Shape dims = c.shape_or_empty(1, "dim");
         const double correction = c.real(-1, "correction", c.flag(-1, "unbiased", true) ? 1.0 : 0.0);
         return std(x, dims, correction, c.flag(-1, "keepdim", false));
       }},
      {"prod",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return prod(x, c.integer_or_none(1, "dim"), c.flag(2, "keepdim", false), c.dtype(-1, "dtype"));
       }},
      running("cumsum", cumsum),
      running("cumprod", cumprod),
      product("bmm", bmm),
      product("mv", mv),
      product("outer", outer),
      plus_product("addmm", addmm),
      plus_product("baddbmm", baddbmm),
      {"einsum", summed_products},
  };
}

}  // namespace lockstep::testing
