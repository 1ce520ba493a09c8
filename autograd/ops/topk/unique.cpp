// Different elements, and sets of them.

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/topk/topk.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

Tensor on_host(const Tensor& x) {
  return as_contiguous(move_values(x.detach(), {}));
}

/// -1, 0 or 1 for two rows of `width` elements; NaN is above all numbers and equal to nothing.
template <typename T>
int compare(const T* a, const T* b, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const bool below = a[i] < b[i] || (b[i] != b[i] && a[i] == a[i]);
    const bool above = b[i] < a[i] || (a[i] != a[i] && b[i] == b[i]);
    if (below || above) return below ? -1 : 1;
  }
  return 0;
}

/// The half types as float32, which tells all of their values apart.
Tensor comparable(const Tensor& rows) {
  return rows.is_floating_point() && element_size(rows.dtype()) == 2 ? cast_values(rows, kFloat32) : rows;
}

struct Groups {
  std::vector<std::int64_t> first;  ///< row of each group
  Tensor inverse, counts;
};

/// Integers that lie close together are counted instead of sorted. False: they do not, and nothing was done.
template <typename T>
bool group_by_counting(const T* values, std::int64_t n, Groups& groups, std::vector<std::int64_t>& counts) {
  if (n == 0) return false;
  const auto [least, most] = std::minmax_element(values, values + n);
  const std::uint64_t range = static_cast<std::uint64_t>(*most) - static_cast<std::uint64_t>(*least);
  if (range > 4 * static_cast<std::uint64_t>(n) + 1024) return false;
  const auto place = [least = static_cast<std::uint64_t>(*least)](T value) {
    return static_cast<std::size_t>(static_cast<std::uint64_t>(value) - least);
  };
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(range) + 1);  // how often, then which group
  for (std::int64_t i = 0; i < n; ++i) ++numbers[place(values[i])];
  for (std::int64_t& number : numbers) {
    if (number == 0) continue;
    counts.push_back(number);
    number = static_cast<std::int64_t>(counts.size()) - 1;
  }
  groups.first.resize(counts.size());
  std::int64_t* const inverse = groups.inverse.data<std::int64_t>();
  for (std::int64_t i = n - 1; i >= 0; --i) {
    inverse[i] = numbers[place(values[i])];
    groups.first[static_cast<std::size_t>(inverse[i])] = i;
  }
  return true;
}

/// Rows [n, width], in their order or in rising order, put into groups of neighbours that are equal.
Groups group(const Tensor& values, bool in_order) {
  const std::int64_t n = values.size(0), width = values.size(1);
  Groups groups;
  groups.inverse = zeros({n}, {.dtype = kInt64});
  std::vector<std::int64_t> order, counts;
  bool counted = false;
  if (!in_order && width == 1 && !values.is_floating_point())
    dispatch_all(values.dtype(), "unique", [&]<typename T>() {
      if constexpr (std::is_integral_v<T>) counted = group_by_counting(values.data<T>(), n, groups, counts);
    });
  if (counted) {
    groups.counts = tensor(counts);
    return groups;
  }
  order.resize(static_cast<std::size_t>(n));
  if (!in_order && width == 1)
    order = argsort(values.view({n})).to_vector<std::int64_t>();
  else
    std::iota(order.begin(), order.end(), std::int64_t{0});
  dispatch_all(values.dtype(), "unique", [&]<typename T>() {
    const T* rows = values.data<T>();
    const auto row = [&](std::int64_t i) { return rows + i * width; };
    if (!in_order && width != 1)
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int64_t a, std::int64_t b) { return compare(row(a), row(b), width) < 0; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const T* here = row(order[i]);
      const bool same = i > 0 && std::equal(here, here + width, row(order[i - 1]));
      if (!same) {
        groups.first.push_back(order[i]);
        counts.push_back(0);
      }
      ++counts.back();
      groups.inverse.data<std::int64_t>()[order[i]] = static_cast<std::int64_t>(counts.size()) - 1;
    }
  });
  groups.counts = tensor(counts);
  return groups;
}

Unique of_elements(const Tensor& x, bool in_order, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  const NoGradGuard values_only;
  const Tensor host = on_host(x).view({x.numel(), 1});
  const Groups groups = group(comparable(host), in_order);
  return {move_values(host.view({-1}).index_select(0, tensor(groups.first)), x.device()),
          move_values(groups.inverse.view(x.sizes()), x.device()), move_values(groups.counts, x.device())};
}

}  // namespace

Unique unique(const Tensor& x) {
  return of_elements(x, false, "unique");
}
Unique unique_consecutive(const Tensor& x) {
  return of_elements(x, true, "unique_consecutive");
}

Unique unique(const Tensor& x, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0, "[unique] expected a tensor with dimensions");
  const NoGradGuard values_only;
  const int d = wrap_dim(dim, x.dim(), "unique");
  const Tensor host = on_host(x.detach().movedim(d, 0));
  const std::int64_t n = host.size(0);
  LOCKSTEP_CHECK(n == 0 || host.numel() > 0, "[unique] there are no elements to tell the slices of {} apart by",
                 to_string(x.sizes()));
  const Groups groups = group(comparable(host.view({n, n == 0 ? 0 : host.numel() / n})), false);
  const Tensor values = host.index_select(0, tensor(groups.first)).movedim(0, d).contiguous();
  return {move_values(values, x.device()), move_values(groups.inverse, x.device()),
          move_values(groups.counts, x.device())};
}

Tensor isin(const Tensor& x, const Tensor& among) {
  LOCKSTEP_CHECK(x.defined() && among.defined(), "[isin] a tensor is undefined");
  const DType dtype = promote_types(x.dtype(), among.dtype());
  const Tensor values = on_host(comparable(cast_values(x.detach(), dtype)));
  const Tensor set = copy_contiguous(on_host(comparable(cast_values(among.detach(), dtype))));
  const Tensor out = zeros(x.sizes(), {.dtype = kBool});
  dispatch_all(values.dtype(), "isin", [&]<typename T>() {
    T* first = set.data<T>();
    T* last = std::remove_if(first, first + set.numel(), [](T value) { return value != value; });
    std::sort(first, last);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const T value = values.data<T>()[i];
      out.data<bool>()[i] = value == value && std::binary_search(first, last, value);
    }
  });
  return move_values(out, x.device());
}

}  // namespace lockstep
