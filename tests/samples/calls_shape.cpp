// Views, copies, casts, indexing and what makes new tensors.

#include <nlohmann/json.hpp>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

Results cast(Call& c, DType dtype) {
  c.text(-1, "memory_format", "");
  return c.tensor(0, "input").to(dtype);
}

TensorOptions options(Call& c, DType otherwise = kFloat32) {
  return {.dtype = c.dtype(-1, "dtype").value_or(otherwise)};
}
TensorOptions options_like(Call& c, const Tensor& x) {
  return {.dtype = options(c, x.dtype()).dtype, .device = x.device()};
}

Results part(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const std::int64_t dim = c.integer(1, "dim", 0), step = c.integer(4, "step", 1);
  return x.slice(dim, c.integer(2, "start", 0), c.integer(3, "end", INT64_MAX), step);
}

bool holds(const Call::Json& entry, const char* key) {
  return entry.is_object() && entry.contains(key);
}

/// Python's brackets: numbers, slices and None are methods, tensors go to index().
Results brackets(Call& c) {
  Tensor x = c.tensor(0, "input");
  const Call::Json& given = c.json(1, "index");
  std::vector<Call::Json> entries;
  if (given.is_array())
    entries.assign(given.begin(), given.end());
  else
    entries.push_back(given);
  int used = 0;
  for (const Call::Json& entry : entries)
    used += entry.is_null() || holds(entry, "ellipsis") || entry.is_boolean() ? 0 : 1;
  std::vector<Tensor> indices;
  bool any = false;
  for (const Call::Json& entry : entries) {
    const auto d = static_cast<std::int64_t>(indices.size());
    if (entry.is_null()) {
      x = x.unsqueeze(d);
      indices.emplace_back();
    } else if (holds(entry, "ellipsis")) {
      while (static_cast<int>(indices.size()) < x.dim() - used) indices.emplace_back();
    } else if (holds(entry, "slice")) {
      const Call::Json& bounds = entry.at("slice");
      const auto bound = [&](int i, std::int64_t otherwise) {
        return bounds[static_cast<std::size_t>(i)].is_null() ? otherwise
                                                             : bounds[static_cast<std::size_t>(i)].get<std::int64_t>();
      };
      x = x.slice(d, bound(0, 0), bound(1, INT64_MAX), bound(2, 1));
      indices.emplace_back();
      --used;
    } else if (entry.is_number_integer()) {
      x = x.select(d, entry.get<std::int64_t>());
      --used;
    } else if (holds(entry, "tensor")) {
      const Tensor tensor = c.tensor_of(entry);
      indices.push_back(tensor);
      any = true;
      --used;
    } else {
      throw NotExpressible{"an index of this kind"};
    }
  }
  return any ? x.index(indices) : x;
}

Results cut(Call& c) {
  const Tensor x = c.tensor(0, "input");
  const std::int64_t dim = c.integer(2, "dim", 0);
  if (!c.is_list(1, "split_sizes")) return split(x, c.integer(1, "split_size"), dim);
  const Shape sizes = c.shape(1, "split_sizes");
  return split_with_sizes(x, {sizes.begin(), sizes.end()}, dim);
}

}  // namespace

std::vector<Operation> shape_calls() {
  return {
      {"view", [](Call& c) -> Results { return c.tensor(0, "input").view(c.shape(1, "shape")); }, false},
      {"view_as", [](Call& c) -> Results { return c.tensor(0, "input").view(c.tensor(1, "other").sizes()); }, false},
      {"reshape", [](Call& c) -> Results { return c.tensor(0, "input").reshape(c.shape(1, "shape")); }},
      {"reshape_as", [](Call& c) -> Results { return c.tensor(0, "input").reshape(c.tensor(1, "other").sizes()); }},
      {"flatten",
       [](Call& c) -> Results {
         return c.tensor(0, "input").flatten(c.integer(1, "start_dim", 0), c.integer(2, "end_dim", -1));
       }},
      {"ravel", [](Call& c) -> Results { return c.tensor(0, "input").flatten(); }},
      {"transpose",
       [](Call& c) -> Results { return c.tensor(0, "input").transpose(c.integer(1, "dim0"), c.integer(2, "dim1")); }},
      {"t", [](Call& c) -> Results { return c.tensor(0, "input").t(); }},
      {"permute", [](Call& c) -> Results { return c.tensor(0, "input").permute(c.shape(1, "dims")); }},
      {"expand", [](Call& c) -> Results { return c.tensor(0, "input").expand(c.shape(1, "size")); }},
      {"expand_as", [](Call& c) -> Results { return c.tensor(0, "input").expand_as(c.tensor(1, "other")); }},
      {"broadcast_to", [](Call& c) -> Results { return c.tensor(0, "input").expand(c.shape(1, "size")); }},
      {"squeeze",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return c.given(1, "dim") ? x.squeeze(c.integer(1, "dim")) : x.squeeze();
       }},
      {"squeeze.multiple", [](Call& c) -> Results { return c.tensor(0, "input").squeeze(c.shape(1, "dim")); }},
      {"unsqueeze", [](Call& c) -> Results { return c.tensor(0, "input").unsqueeze(c.integer(1, "dim")); }},
      {"slice", part},
      {"narrow",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         if (c.is_tensor(2, "start") && c.tensor(2, "start").dtype() == kBool)
           throw NotExpressible{"a start is an integer"};
         const std::int64_t start =
             c.is_tensor(2, "start") ? c.tensor(2, "start").item<std::int64_t>() : c.integer(2, "start");
         return x.narrow(c.integer(1, "dim"), start, c.integer(3, "length"));
       }},
      {"select",
       [](Call& c) -> Results { return c.tensor(0, "input").select(c.integer(1, "dim"), c.integer(2, "index")); }},
      {"split", cut},
      {"split.list_args", cut},
      {"split_with_sizes", cut},
      {"chunk",
       [](Call& c) -> Results { return chunk(c.tensor(0, "input"), c.integer(1, "chunks"), c.integer(2, "dim", 0)); }},
      {"cat", [](Call& c) -> Results { return cat(c.tensors(0, "tensors"), c.integer(1, "dim", 0)); }},
      {"stack", [](Call& c) -> Results { return stack(c.tensors(0, "tensors"), c.integer(1, "dim", 0)); }},
      {"index_select",
       [](Call& c) -> Results { return c.tensor(0, "input").index_select(c.integer(1, "dim"), c.tensor(2, "index")); }},
      {"gather",
       [](Call& c) -> Results { return c.tensor(0, "input").gather(c.integer(1, "dim"), c.tensor(2, "index")); }},

      {"__getitem__", [](Call& c) { return brackets(c); }},
      {"index_put",
       [](Call& c) -> Results {
         std::vector<Tensor> indices;
         for (const auto& entry : c.json(1, "indices")) indices.push_back(c.tensor_of(entry));
         return index_put(c.tensor(0, "input"), indices, c.tensor(2, "values"), c.flag(3, "accumulate", false));
       }},
      {"masked_select", [](Call& c) -> Results { return c.tensor(0, "input").masked_select(c.tensor(1, "mask")); }},
      {"masked_fill",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input"), mask = c.tensor(1, "mask");
         return c.is_tensor(2, "value") ? x.masked_fill(mask, c.tensor(2, "value"))
                                        : x.masked_fill(mask, c.number(2, "value"));
       }},
      {"nonzero",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         if (!c.flag(-1, "as_tuple", false)) return nonzero(x);
         const Tensor positions = nonzero(x.dim() == 0 ? x.unsqueeze(0) : x);
         std::vector<Tensor> columns;
         for (std::int64_t d = 0; d < positions.size(1); ++d) columns.push_back(positions.select(1, d));
         return columns;
       }},
      {"topk",
       [](Call& c) -> Results {
         c.flag(4, "sorted", true);
         const auto [values, indices] =
             topk(c.tensor(0, "input"), c.integer(1, "k"), c.integer(2, "dim", -1), c.flag(3, "largest", true));
         return std::vector<Tensor>{values, indices};
       }},
      {"tril", [](Call& c) -> Results { return tril(c.tensor(0, "input"), c.integer(1, "diagonal", 0)); }},
      {"triu", [](Call& c) -> Results { return triu(c.tensor(0, "input"), c.integer(1, "diagonal", 0)); }},
      {"multinomial",
       [](Call& c) -> Results {
         return multinomial(c.tensor(0, "input"), c.integer(1, "num_samples"), c.flag(2, "replacement", false));
       }},
      {"zero_",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         const Tensor copy = x.clone();  // a leaf that requires gradients cannot be changed
         copy.zero_();
         return copy;
       }},
      {"fill",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return c.is_tensor(1, "value") ? zeros(x.sizes(), options_of(x)).copy_(c.tensor(1, "value"))
                                        : full(x.sizes(), c.number(1, "value").to_double(), options_of(x));
       }},

      {"clone", [](Call& c) -> Results { return c.tensor(0, "input").clone(); }},
      {"contiguous", [](Call& c) -> Results { return c.tensor(0, "input").contiguous(); }},
      {"to",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return c.given(-1, "dtype") ? x.to(*c.dtype(-1, "dtype")) : x.to(*c.dtype(1, "dtype"));
       }},
      {"float", [](Call& c) { return cast(c, kFloat32); }},
      {"double", [](Call& c) { return cast(c, kFloat64); }},
      {"half", [](Call& c) { return cast(c, kFloat16); }},
      {"bfloat16", [](Call& c) { return cast(c, kBFloat16); }},
      {"long", [](Call& c) { return cast(c, kInt64); }},
      {"int", [](Call& c) { return cast(c, kInt32); }},
      {"byte", [](Call& c) { return cast(c, kUInt8); }},
      {"bool", [](Call& c) { return cast(c, kBool); }},
      {"item",
       [](Call& c) -> Results { return scalar_tensor(c.tensor(0, "input").item<double>(), {.dtype = kFloat64}); }},

      {"zeros_like",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return zeros(x.sizes(), options_like(c, x));
       }},
      {"ones_like",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return ones(x.sizes(), options_like(c, x));
       }},
      {"full_like",
       [](Call& c) -> Results {
         const Tensor x = c.tensor(0, "input");
         return full(x.sizes(), c.number(1, "fill_value").to_double(), options_like(c, x));
       }},
      {"zeros", [](Call& c) -> Results { return zeros(c.shape(0, "size"), options(c)); }},
      {"ones", [](Call& c) -> Results { return ones(c.shape(0, "size"), options(c)); }},
      {"full",
       [](Call& c) -> Results { return full(c.shape(0, "size"), c.number(1, "fill_value").to_double(), options(c)); }},
      {"scalar_tensor", [](Call& c) -> Results { return scalar_tensor(c.number(0, "value").to_double(), options(c)); }},
      {"arange",
       [](Call& c) -> Results {
         if (c.positions() == 1 && !c.given(-1, "end"))
           return arange(0.0, c.number(0, "end").to_double(), 1.0, options(c, kInt64));
         return arange(c.number(0, "start").to_double(), c.number(1, "end").to_double(), c.real(2, "step", 1.0),
                       options(c, kInt64));
       }},
  };
}

}  // namespace lockstep::testing
