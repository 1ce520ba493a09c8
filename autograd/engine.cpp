#include "lockstep/autograd/engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/anomaly.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/graph_task.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/profile_modules.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

bool later(const IntrusivePtr<Node>& a, const IntrusivePtr<Node>& b) {
  return a->sequence() < b->sequence();
}

}  // namespace

thread_local constinit GraphTask* GraphTask::current_ = nullptr;

namespace {

/// Nobody else sees this memory, which is not that of what is laid out or will be (Note [Channels last]).
bool is_own(const Tensor& slot) {
  const auto* const computation = pending_result_of<Computation>(slot);
  if (computation && computation->follows_laid_out()) return false;
  return slot.impl()->use_count() == 1 && slot.storage()->use_count() == 1 && slot.is_contiguous();
}

/// Adds to what has arrived at a node with that many outputs.
void add_pending(TensorList& pending, std::uint32_t outputs, std::uint32_t input, Tensor grad) {
  if (pending.empty()) {
    if (outputs <= 1) return pending.push_back(std::move(grad));
    pending.resize(outputs);
  }
  Tensor& slot = pending[input];
  if (!slot.defined()) {
    slot = std::move(grad);
  } else if (GradMode::enabled()) {
    slot = add(slot, grad);
  } else if (Tensor sum = elementwise_sum(slot, grad); sum.defined()) {
    slot = std::move(sum);
  } else if (is_own(slot)) {
    add_values_(slot, grad);
  } else {
    slot = add_values(slot, grad);
  }
}

/// Where gradients enter the graph.
std::vector<Edge> edges_of_roots(const char* what, std::span<const Tensor> roots, std::span<const Tensor> gradients) {
  LOCKSTEP_CHECK(roots.size() == gradients.size() && !roots.empty(),
                 "[{}] expected one gradient for each of the roots, found {} roots and {} gradients", what,
                 roots.size(), gradients.size());
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    LOCKSTEP_CHECK(roots[i].defined(), "[{}] root {} is undefined", what, i);
    LOCKSTEP_CHECK(gradients[i].defined() && gradients[i].sizes() == roots[i].sizes() &&
                       gradients[i].dtype() == roots[i].dtype() && gradients[i].device() == roots[i].device(),
                   "[{}] the gradient of root {} does not match it: expected {} {} on {}", what, i,
                   name(roots[i].dtype()), to_string(roots[i].sizes()), to_string(roots[i].device()));
    if (AnomalyMode::enabled()) detail::check_input(roots[i]);
    edges.push_back(gradient_edge(roots[i]));
    LOCKSTEP_CHECK(
        edges.back().node,
        "[{}] the tensor does not require gradients: it was computed from no tensor that does, or under a NoGradGuard",
        what);
  }
  return edges;
}

}  // namespace

bool Engine::added_to_pending(GraphTask& task, Node& node, const TensorList& grads) {
  if (node.edges_.size() != 1 || grads.size() != 1 || !node.edges_[0].node || AnomalyMode::enabled()) return false;
  const TensorList& pending = task.work_of(node.edges_[0].node.get()).pending_grads;
  if (pending.empty()) return false;
  const Tensor& sum = pending[node.edges_[0].input];
  return sum.defined() && is_own(sum) && node.add_to(grads[0], sum);
}

// A part of run(): a call would move the lists once more.
[[gnu::always_inline]] inline void Engine::run_node(GraphTask& task, Node& node, TensorList& grads, bool create_graph,
                                                    TensorList& results) {
  std::optional<profile::ModuleScope> module;
  if (profile::enabled()) [[unlikely]]
    module.emplace(profile::module_of(&node));
  const profile::Scope scope("backward", profile::enabled() ? node.name() : "");
  if (create_graph)
    results = node.apply_recorded(std::move(grads));
  else if (added_to_pending(task, node, grads))
    return;
  else
    results = node.apply(std::move(grads));
  if (results.size() != node.edges_.size()) [[unlikely]]
    throw Error(
        fmt::format("[backward] {} returned {} gradient(s) for {} input(s); its apply() is to return one for "
                    "each, undefined for 0",
                    node.name(), results.size(), node.edges_.size()));
  if (AnomalyMode::enabled()) detail::check_gradients(node, results);
}

void Engine::leave_results(DeferredGradients::OfNode& left, TensorList& results) {
  if (results.empty()) return;
  left.values.resize(results.size());
  for (std::size_t i = 0; i < results.size(); ++i)
    if (left.edges[i].node) left.values[i] = std::move(results[i]);
}

void Engine::finish_node(GraphTask& task, Node& node, TensorList& left, TensorList& results) {
  if (node.gradients_are_apart())
    run_node(task, node, left, false, results);
  else
    results = std::move(left);
  node.release_saved();
}

void Engine::run(GraphTask& task, const std::vector<Edge>& edges, std::span<const Tensor> gradients, bool retain_graph,
                 std::vector<Tensor>* collected, bool hooks_of_leaves, bool create_graph) {
  const GradModeGuard recording(create_graph);
  std::vector<IntrusivePtr<Node>> ready;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    Node* node = edges[i].node.get();
    add_pending(task.work_of(node).pending_grads, node->num_outputs_, edges[i].input, gradients[i]);
  }
  for (const Edge& edge : edges)
    if (task.work_of(edge.node.get()).dependencies == 0 && task.is_wanted(edge.node.get()) &&
        std::find(ready.begin(), ready.end(), edge.node) == ready.end())
      ready.push_back(edge.node);
  if (!collected) task.add_deferred_to(ready);
  std::make_heap(ready.begin(), ready.end(), later);

  const profile::Scope scope("pass", "backward");
  const autocast::Pause no_autocast;
  while (!ready.empty()) {
    if (ready.size() > 1) std::pop_heap(ready.begin(), ready.end(), later);
    const IntrusivePtr<Node> node = std::move(ready.back());
    ready.pop_back();

    Node::Work& work = task.work_of(node.get());
    TensorList grads = std::move(work.pending_grads);
    work.pending_grads.clear();
    TensorList results;
    DeferredGradients::OfNode* const left = task.deferred_at(node.get());
    if (left && !collected) [[unlikely]] {  // hooks ran in the first part
      finish_node(task, *node, left->values, results);
    } else {
      bool any = false;
      for (const Tensor& grad : grads) any = any || grad.defined();
      if (any && node->has_hooks() && (hooks_of_leaves || !node->leaf_)) node->run_hooks(grads);
      if (any && collected) task.collect(node.get(), grads, *collected);
      const bool runs = task.is_to_run(node.get()), again = left && node->gradients_are_apart();
      if (any && again) left->values = grads;
      if (any && runs) run_node(task, *node, grads, create_graph, results);
      if (left && !again) leave_results(*left, results);
      if (!retain_graph && runs && !again) node->release_saved();
    }
    for (std::size_t i = 0; i < node->edges_.size(); ++i) {
      const Edge& edge = node->edges_[i];
      if (!edge.node || !task.is_wanted(edge.node.get())) continue;
      Node& next = *edge.node;
      Node::Work& of_next = task.work_of(&next);
      if (!results.empty() && results[i].defined())
        add_pending(of_next.pending_grads, next.num_outputs_, edge.input, std::move(results[i]));
      if (--of_next.dependencies == 0) {
        ready.push_back(edge.node);
        if (ready.size() > 1) std::push_heap(ready.begin(), ready.end(), later);
      }
    }
  }
  // A callback may queue another.
  for (std::size_t i = 0; i < task.callbacks.size(); ++i) {
    const auto callback = std::move(task.callbacks[i]);
    callback();
  }
}

bool Engine::retains_graph() {
  const GraphTask* const task = GraphTask::current();
  return task && !task->frees();
}

void Engine::backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph) {
  const std::vector<Edge> edges = edges_of_roots("backward", roots, gradients);
  GraphTask task(retain_graph);
  task.discover(edges);
  run(task, edges, gradients, retain_graph, nullptr, true, false);
}

Tensor Engine::backward_to(const Tensor& input, std::span<const Tensor> roots, std::span<const Tensor> gradients,
                           DeferredGradients& deferred) {
  const std::vector<Edge> edges = edges_of_roots("backward", roots, gradients);
  const Edge wanted = gradient_edge(input);
  LOCKSTEP_CHECK(wanted.node, "[backward] the input, of shape {}, does not require gradients",
                 to_string(input.sizes()));
  std::vector<Tensor> result(1);
  {
    GraphTask task(false);
    task.discover(edges);
    task.collect_at({wanted});
    task.defer_to(deferred);
    std::vector<Edge> first;
    std::vector<Tensor> seeds;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const bool leads = task.is_wanted(edges[i].node.get());
      (leads ? first : deferred.edges_).push_back(edges[i]);
      (leads ? seeds : deferred.gradients_).push_back(gradients[i]);
    }
    run(task, first, seeds, false, &result, true, false);
  }
  std::erase_if(deferred.nodes_, [](const DeferredGradients::OfNode& each) { return each.values.empty(); });
  for (DeferredGradients::OfNode& each : deferred.nodes_) each.node->edges_ = std::move(each.edges);
  return result.front();
}

void Engine::backward_deferred(DeferredGradients deferred, std::span<const Tensor> roots,
                               std::span<const Tensor> gradients) {
  std::vector<Edge> edges = std::move(deferred.edges_);
  std::vector<Tensor> seeds = std::move(deferred.gradients_);
  if (!roots.empty())
    for (const Edge& edge : edges_of_roots("backward", roots, gradients)) edges.push_back(edge);
  seeds.insert(seeds.end(), gradients.begin(), gradients.end());
  GraphTask task(false);
  task.go_on_at(deferred);
  task.discover(edges);
  run(task, edges, seeds, false, nullptr, true, false);
}

std::vector<Tensor> Engine::gradients(std::span<const Tensor> roots, std::span<const Tensor> gradients,
                                      std::span<const Tensor> inputs, bool retain_graph, bool hooks_of_leaves,
                                      bool create_graph) {
  const bool retains = retain_graph || create_graph;
  const std::vector<Edge> edges = edges_of_roots("grad", roots, gradients);
  std::vector<Edge> wanted;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    LOCKSTEP_CHECK(inputs[i].defined(), "[grad] input {} is undefined", i);
    wanted.push_back(gradient_edge(inputs[i]));
    LOCKSTEP_CHECK(wanted.back().node, "[grad] input {}, of shape {}, does not require gradients", i,
                   to_string(inputs[i].sizes()));
  }
  std::vector<Tensor> results(inputs.size());
  GraphTask task(retains);
  task.discover(edges);
  task.collect_at(wanted);
  run(task, edges, gradients, retains, &results, hooks_of_leaves, create_graph);
  return results;
}

void Engine::queue_callback(std::function<void()> callback) {
  LOCKSTEP_CHECK(GraphTask::current(), "[queue_callback] no backward() runs on this thread");
  GraphTask::current()->callbacks.push_back(std::move(callback));
}

bool Engine::running() {
  return GraphTask::current() != nullptr;
}

}  // namespace lockstep
