#include "lockstep/distributed/parallel/recorded_collectives.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/workers/ranks.h"

namespace lockstep::distributed::functional {
namespace {

using Rows = std::vector<std::int64_t>;

/// How many rows go to each rank, and come from it; empty: the same from all.
struct Route {
  ProcessGroupPtr group;
  Rows to = {}, from = {};
};

std::int64_t sum_of(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

void check(const Tensor& x, const ProcessGroupPtr& group, const char* function) {
  LOCKSTEP_CHECK(group, "[{}] the group is null", function);
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[{}] expected a floating-point tensor, found {}", function,
                 x.defined() ? name(x.dtype()) : "an undefined one");
  Ranks::check_recorded(*group, function);
}
void check_rows(const Rows& rows, const Tensor& x, const ProcessGroupPtr& group, const char* function,
                const char* what) {
  LOCKSTEP_CHECK(std::ssize(rows) == group->world_size() && std::ranges::all_of(rows, [](auto n) { return n >= 0; }),
                 "[{}] expected {} for each of {} ranks, 0 or more, found [{}]", function, what, group->world_size(),
                 fmt::join(rows, ", "));
  LOCKSTEP_CHECK(x.dim() >= 1, "[{}] expected x [N, *], found a tensor without dimensions", function);
}

/// As `x`, with so many rows.
Tensor with_rows(const Tensor& x, std::int64_t rows) {
  Shape sizes = x.sizes();
  sizes[0] = rows;
  return empty(sizes, options_of(x));
}
Rows elements_of(const Rows& rows, const Tensor& x) {
  std::int64_t width = 1;
  for (int d = 1; d < x.dim(); ++d) width *= x.size(d);
  Rows elements = rows;
  for (std::int64_t& each : elements) each *= width;
  return elements;
}

Tensor values_of(const Tensor& x) {
  return as_contiguous(x.detach());
}

Tensor gathered(const Tensor& x, const Route& route) {
  const Tensor out = with_rows(x, x.size(0) * route.group->world_size());
  route.group->all_gather(out, values_of(x))->wait();
  return out;
}
Tensor scattered_sum(const Tensor& x, const Route& route) {
  const Tensor out = with_rows(x, x.size(0) / route.group->world_size());
  route.group->reduce_scatter(out, values_of(x))->wait();
  return out;
}
Tensor summed(const Tensor& x, const Route& route) {
  const Tensor out = copy_contiguous(x.detach());
  route.group->all_reduce(out)->wait();
  return out;
}
Tensor exchanged(const Tensor& x, const Route& route) {
  const Tensor out = with_rows(x, sum_of(route.from));
  route.group->all_to_all_uneven(out, values_of(x), elements_of(route.from, x), elements_of(route.to, x))->wait();
  return out;
}

/// kFunction of x, recorded; kTranspose makes of the output's gradient the input's, along the route back.
template <auto kFunction, auto kTranspose>
Tensor recorded(const Tensor& x, const Route& route, const char* title);

template <auto kFunction, auto kTranspose>
class OfRoute final : public Node {
 public:
  const char* name() const override { return title; }
  TensorList apply(TensorList grads) override { return {kTranspose(grads[0], back)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {recorded<kTranspose, kFunction>(grads[0], back, title)};
  }
  Route back;
  const char* title = "";
};

template <auto kFunction, auto kTranspose>
Tensor recorded(const Tensor& x, const Route& route, const char* title) {
  Tensor out;
  {
    const NoGradGuard values_only;
    out = kFunction(x, route);
  }
  if (auto* node = record<OfRoute<kFunction, kTranspose>>(out, {&x})) {
    node->back = {.group = route.group, .to = route.from, .from = route.to};
    node->title = title;
  }
  return out;
}

}  // namespace

Tensor all_gather(const Tensor& x, const ProcessGroupPtr& group) {
  check(x, group, "all_gather");
  LOCKSTEP_CHECK(x.dim() >= 1, "[all_gather] expected x [N, *], found a tensor without dimensions; use unsqueeze(0)");
  return recorded<gathered, scattered_sum>(x, {.group = group}, "AllGatherBackward");
}

Tensor all_gather(const Tensor& x, const Rows& rows, const ProcessGroupPtr& group) {
  check(x, group, "all_gather");
  check_rows(rows, x, group, "all_gather", "rows");
  const auto own = rows[static_cast<std::size_t>(group->rank())];
  LOCKSTEP_CHECK(x.size(0) == own, "[all_gather] rank {} gives {} rows, of which it has {}", group->rank(), own,
                 x.size(0));
  // Each rank sends its rows to all: as many copies of them, one after the other.
  const auto ranks = static_cast<std::size_t>(group->world_size());
  return all_to_all(cat(std::vector<Tensor>(ranks, x), 0), rows, Rows(ranks, own), group);
}

Tensor all_reduce(const Tensor& x, const ProcessGroupPtr& group) {
  check(x, group, "all_reduce");
  return recorded<summed, summed>(x, {.group = group}, "AllReduceBackward");
}

Tensor reduce_scatter(const Tensor& x, const ProcessGroupPtr& group) {
  check(x, group, "reduce_scatter");
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(0) % group->world_size() == 0,
                 "[reduce_scatter] expected x [ranks * N, *] for {} ranks, found {}", group->world_size(),
                 to_string(x.sizes()));
  return recorded<scattered_sum, gathered>(x, {.group = group}, "ReduceScatterBackward");
}

Tensor all_to_all(const Tensor& x, const Rows& output_rows, const Rows& input_rows, const ProcessGroupPtr& group) {
  check(x, group, "all_to_all");
  check_rows(output_rows, x, group, "all_to_all", "rows of the result");
  check_rows(input_rows, x, group, "all_to_all", "rows of x");
  LOCKSTEP_CHECK(sum_of(input_rows) == x.size(0), "[all_to_all] {} rows are to be sent, of which x {} has {}",
                 sum_of(input_rows), to_string(x.sizes()), x.size(0));
  return recorded<exchanged, exchanged>(x, {.group = group, .to = input_rows, .from = output_rows}, "AllToAllBackward");
}

}  // namespace lockstep::distributed::functional
