#include "lockstep/autograd/engine.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/anomaly.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
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

/// A running backward pass: what it offers to the functions it calls, and its work space, which lies in the nodes
/// themselves (how many edges still lead into them, pending gradients), so that a pass allocates nothing per node.
/// Passes nest: a node that the pass around this one has reached too is lent, and given back as it was. A node that
/// another thread's pass has reached, as a leaf that several graphs lead to, has its work space here. The work space is
/// cleared again whatever happens; the roots own everything reachable until then.
///
/// Note [Freeing and sharing]
/// A pass that frees has the nodes that saved something to itself, from before it runs the first until its end; passes
/// that retain may share them. So each node says which pass took it and whether that one frees (Node::task_), and how
/// many others are there beside it (Node::guests_), which may outstay it. Whoever frees takes the node and then looks
/// for guests; a guest is counted and then looks who took the node. Both do so in the one order of seq_cst, so one of
/// two that meet sees the other, and throws Error before it ran anything.
class GraphTask {
 public:
  explicit GraphTask(bool retain_graph) : outer_(current_), frees_(!retain_graph) { current_ = this; }
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;
  ~GraphTask() {
    current_ = outer_;
    for (Lent& lent : lent_) {
      lent.node->work_ = std::move(lent.work);
      lent.node->task_.store(lent.task, std::memory_order_release);
    }
    for (Node* node : reached_) {
      if (!has_taken(node)) continue;
      node->work_.dependencies = 0;
      node->work_.pending_grads.clear();
      node->task_.store(0, std::memory_order_release);
    }
    for (const auto& [node, work] : elsewhere_)
      if (node->saves_) node->guests_.fetch_sub(1, std::memory_order_release);
  }

  /// Finds every node below the roots and counts the edges that lead into each.
  void discover(const std::vector<Edge>& roots) {
    std::vector<Node*> stack;
    const auto visit = [&](Node* node) -> Node::Work& {
      if (Node::Work* work = find_work(node)) return *work;
      reached_.push_back(node);
      stack.push_back(node);
      return take(node);
    };
    for (const Edge& edge : roots) visit(edge.node.get());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      LOCKSTEP_CHECK(
          !node->released(),
          "[backward] the graph of {} was freed by an earlier backward(); pass retain_graph = true to the first "
          "call to run it twice",
          node->name());
      for (const Edge& edge : node->edges_)
        if (edge.node) ++visit(edge.node.get()).dependencies;
    }
  }

  /// The work space of a node that this pass has reached.
  Node::Work& work_of(Node* node) { return *find_work(node); }

  /// Makes this a pass that collects the gradients that arrive at `inputs` and computes what leads to them, nothing
  /// else. To be called after discover().
  void collect_at(const std::vector<Edge>& inputs) {
    collects_ = true;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (find_work(inputs[i].node.get())) wanted_[inputs[i].node.get()].inputs.push_back({inputs[i].input, i});
    // An operation's node is younger than those that its edges lead to; leaves' nodes have no edges.
    std::vector<Node*> oldest_first = reached_;
    std::sort(oldest_first.begin(), oldest_first.end(),
              [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
    for (Node* node : oldest_first) {
      const bool leads = std::any_of(node->edges_.begin(), node->edges_.end(),
                                     [&](const Edge& edge) { return edge.node && is_wanted(edge.node.get()); });
      if (leads) wanted_[node].leads = true;
    }
  }

  /// The node has a part in this pass.
  bool is_wanted(const Node* node) const { return !collects_ || wanted_.contains(node); }
  /// The node's backward function is to run.
  bool is_to_run(const Node* node) const {
    if (!collects_) return true;
    const auto found = wanted_.find(node);
    return found != wanted_.end() && found->second.leads;
  }
  /// Puts what has arrived at a node where it is collected.
  void collect(const Node* node, const TensorList& grads, std::vector<Tensor>& results) const {
    const auto found = wanted_.find(node);
    if (found == wanted_.end()) return;
    for (const auto& [input, place] : found->second.inputs) results[place] = grads[input];
  }

  std::vector<std::function<void()>> callbacks;
  static GraphTask* current() { return current_; }
  bool frees() const { return frees_; }

 private:
  /// What a pass that collects gradients wants of a node.
  struct Wanted {
    std::vector<std::pair<std::uint32_t, std::size_t>> inputs;  // input of the node, place among the results
    bool leads = false;                                         // its edges lead to a node that is wanted
  };

  struct Lent {
    Node* node;
    std::uintptr_t task;
    Node::Work work;
  };

  /// What Node::task_ holds: the address of a pass, and whether the node is to be freed.
  static constexpr std::uintptr_t kFrees = 1;
  static const GraphTask* pass_of(std::uintptr_t task) { return reinterpret_cast<const GraphTask*>(task & ~kFrees); }
  bool has_taken(const Node* node) const { return pass_of(node->task_.load(std::memory_order_relaxed)) == this; }

  /// Null if this pass has not reached the node.
  Node::Work* find_work(Node* node) {
    if (has_taken(node)) return &node->work_;
    if (elsewhere_.empty()) return nullptr;
    const auto found = elsewhere_.find(node);
    return found == elsewhere_.end() ? nullptr : &found->second;
  }

  /// A work space for a node. Note [Freeing and sharing].
  Node::Work& take(Node* node) {
    const auto own = reinterpret_cast<std::uintptr_t>(this);
    std::uintptr_t holder = 0;
    if (node->task_.compare_exchange_strong(holder, frees_ ? own | kFrees : own)) {
      if (frees_ && node->saves_ && node->guests_.load() != 0) [[unlikely]]
        throw_shared(node, is_guest_around(node));
      return node->work_;
    }
    const bool is_around = encloses(pass_of(holder));
    if (frees_ && node->saves_) throw_shared(node, is_around);
    if (!is_around) return visit_as_guest(node);
    lent_.push_back({node, holder, std::exchange(node->work_, {})});
    node->task_.store(own | (holder & kFrees), std::memory_order_relaxed);  // the pass around this one frees it still
    return node->work_;
  }
  /// The same for a node that a pass of another thread took.
  Node::Work& visit_as_guest(Node* node) {
    Node::Work& work = elsewhere_[node];  // the destructor takes what has an entry out of the count
    if (!node->saves_) return work;
    node->guests_.fetch_add(1);
    const std::uintptr_t holder = node->task_.load();
    if (holder & kFrees) throw_shared(node, false);
    return work;
  }
  [[noreturn]] static void throw_shared(const Node* node, bool is_around) {
    detail::throw_error(
        fmt::format("[backward] {} would free the graph of {}, which {} runs too; pass retain_graph = true",
                    is_around ? "a backward() inside another" : "a backward()", node->name(),
                    is_around ? "the outer one" : "another thread's"));
  }
  /// A pass around this one, on this thread.
  bool encloses(const GraphTask* other) const {
    for (const GraphTask* task = outer_; task; task = task->outer_)
      if (task == other) return true;
    return false;
  }
  /// A pass around this one, on this thread, is a guest there.
  bool is_guest_around(Node* node) const {
    for (const GraphTask* task = outer_; task; task = task->outer_)
      if (task->elsewhere_.contains(node)) return true;
    return false;
  }

  LOCKSTEP_INITIAL_EXEC static thread_local constinit GraphTask* current_;
  GraphTask* outer_;
  const bool frees_;
  std::vector<Node*> reached_;
  std::vector<Lent> lent_;
  std::unordered_map<Node*, Node::Work> elsewhere_;
  bool collects_ = false;
  std::unordered_map<const Node*, Wanted> wanted_;
};

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
    bool any = false;
    for (const Tensor& grad : grads) any = any || grad.defined();
    TensorList results;
    if (any && node->has_hooks() && (hooks_of_leaves || !node->leaf_)) node->run_hooks(grads);
    if (any && collected) task.collect(node.get(), grads, *collected);
    const bool runs = task.is_to_run(node.get());
    if (any && runs) {
      std::optional<profile::ModuleScope> module;
      if (profile::enabled()) [[unlikely]]
        module.emplace(profile::module_of(node.get()));
      const profile::Scope scope("backward", profile::enabled() ? node->name() : "");
      if (create_graph)
        results = node->apply_recorded(std::move(grads));
      else if (!added_to_pending(task, *node, grads))
        results = node->apply(std::move(grads));
      if (AnomalyMode::enabled()) detail::check_gradients(*node, results);
    }
    if (!retain_graph && runs) node->release_saved();
    LOCKSTEP_ASSERT(results.empty() || results.size() == node->edges_.size(), "{} returned {} gradients for {} inputs",
                    node->name(), results.size(), node->edges_.size());

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
