#include "lockstep/distributed/collectives/tree_sum.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kTile = 1024;

/// What to do with one part: it is put on the stack, or added to the top of it; then so many times the two topmost
/// entries become one.
struct Step {
  bool adds = false;
  int joins = 0;
};

struct Plan {
  std::vector<Step> steps;
  std::size_t depth = 0;
};

Plan make_plan(std::span<const TreeNode> nodes) {
  Plan plan;
  std::vector<TreeNode> stack;
  for (TreeNode node : nodes) {
    int joins = 0;
    for (; !stack.empty() && are_siblings(stack.back(), node); ++joins) {
      stack.pop_back();
      node = parent(node);
    }
    stack.push_back(node);
    plan.steps.push_back({joins > 0, std::max(joins - 1, 0)});
    plan.depth = std::max(plan.depth, stack.size() + static_cast<std::size_t>(std::max(joins - 1, 0)));
  }
  LOCKSTEP_CHECK(stack.size() == 1, "[tree_sum] {} parts leave {} nodes of the shard tree; expected one", nodes.size(),
                 stack.size());
  return plan;
}

/// The sum as the dtype holds it.
template <typename T>
compute_t<T> rounded_sum(compute_t<T> a, compute_t<T> b) {
  return static_cast<compute_t<T>>(static_cast<T>(a + b));
}

template <typename T>
void sum_tiles(T* output, std::span<const void* const> parts, const Plan& plan, std::int64_t count, double divisor) {
  using C = compute_t<T>;
  // A tile at a time: one pass over memory however many parts there are.
  std::vector<C> stack(plan.depth * kTile);
  for (std::int64_t start = 0; start < count; start += kTile) {
    const std::int64_t n = std::min(kTile, count - start);
    C* top = stack.data() - kTile;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + start;
      if (plan.steps[p].adds) {
        for (std::int64_t i = 0; i < n; ++i) top[i] = rounded_sum<T>(top[i], static_cast<C>(part[i]));
      } else {
        top += kTile;
        for (std::int64_t i = 0; i < n; ++i) top[i] = static_cast<C>(part[i]);
      }
      for (int join = 0; join < plan.steps[p].joins; ++join) {
        C* left = top - kTile;
        for (std::int64_t i = 0; i < n; ++i) left[i] = rounded_sum<T>(left[i], top[i]);
        top = left;
      }
    }
    T* target = output + start;
    if (divisor != 1.0) {
      const C by = static_cast<C>(divisor);
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<T>(static_cast<C>(top[i] / by));
    } else {
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<T>(top[i]);
    }
  }
}

}  // namespace

void tree_sum(DType dtype, void* output, std::span<const void* const> parts, std::span<const TreeNode> nodes,
              std::int64_t count, double divisor) {
  LOCKSTEP_CHECK(!parts.empty() && parts.size() == nodes.size(), "[tree_sum] {} parts for {} nodes", parts.size(),
                 nodes.size());
  const Plan plan = make_plan(nodes);
  dispatch_floating(dtype, "tree_sum",
                    [&]<typename T>() { sum_tiles(static_cast<T*>(output), parts, plan, count, divisor); });
}

}  // namespace lockstep::distributed
