#include "lockstep/autograd/anomaly.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/check.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

namespace {
LOCKSTEP_INITIAL_EXEC thread_local constinit int alive_here = 0;
}

constinit std::atomic<int> AnomalyMode::alive_{0};

AnomalyMode::AnomalyMode() {
  ++alive_;
  ++alive_here;
}

AnomalyMode::~AnomalyMode() {
  --alive_here;
  --alive_;
}

bool AnomalyMode::enabled_here() {
  return alive_here > 0;
}

namespace detail {
namespace {

bool has_nan(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return false;
  const std::vector<double> values = tensor.to_vector<double>();
  return std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

}  // namespace

void check_input(const Tensor& input) {
  if (!has_nan(input)) return;
  const AutogradMeta* meta = autograd_meta(input);
  if (!meta || !meta->grad_fn)
    throw_error(fmt::format("[AnomalyMode] a NaN comes in with a tensor of shape {} that no recorded operation made",
                            to_string(input.sizes())));
  std::string_view operation = meta->grad_fn->name();
  constexpr std::string_view kEnding = "Backward";
  if (operation.ends_with(kEnding)) operation.remove_suffix(kEnding.size());
  throw_error(fmt::format("[AnomalyMode] {} gave the first NaN, in a result of shape {}; look at what goes into it",
                          operation, to_string(input.sizes())));
}

void check_gradients(const Node& node, std::span<const Tensor> results) {
  for (std::size_t i = 0; i < results.size(); ++i)
    if (has_nan(results[i]))
      throw_error(fmt::format("[AnomalyMode] {} gave the first NaN, in the gradient of its input {} of shape {}",
                              node.name(), i, to_string(results[i].sizes())));
}

}  // namespace detail
}  // namespace lockstep
