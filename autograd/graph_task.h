#pragma once

// For engine.cpp alone.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/node.h"
#include "lockstep/core/check.h"

namespace lockstep {

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
    for (const auto& [node, left] : deferred_) visit(left->node.get());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      LOCKSTEP_CHECK(
          !node->released() || deferred_at(node),
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

  /// Has a pass that collects leave to `deferred` what it does not want. See Note [Deferred gradients].
  void defer_to(DeferredGradients& deferred) {
    for (Node* node : reached_) {
      if (!is_to_run(node)) continue;
      const auto waits = [&](const Edge& edge) { return edge.node && !is_wanted(edge.node.get()); };
      if (std::none_of(node->edges_.begin(), node->edges_.end(), waits)) continue;
      DeferredGradients::OfNode& left = deferred.nodes_.emplace_back();
      left.node = IntrusivePtr<Node>(node);
      left.edges = node->edges_;
      for (std::size_t i = 0; i < left.edges.size(); ++i) {
        if (!waits(left.edges[i]))
          left.edges[i] = {};
        else if (node->gradients_are_apart())
          node->edges_[i] = {};
      }
    }
    go_on_at(deferred);
  }
  /// Has a pass begin at the nodes of `deferred`; before discover().
  void go_on_at(DeferredGradients& deferred) {
    for (DeferredGradients::OfNode& each : deferred.nodes_) deferred_[each.node.get()] = &each;
  }
  /// The nodes that go_on_at() was given.
  void add_deferred_to(std::vector<IntrusivePtr<Node>>& ready) const {
    for (const auto& [node, left] : deferred_) ready.push_back(left->node);
  }
  /// Null if nothing of the node's is left, or is to be.
  DeferredGradients::OfNode* deferred_at(const Node* node) const {
    if (deferred_.empty()) return nullptr;
    const auto found = deferred_.find(node);
    return found == deferred_.end() ? nullptr : found->second;
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
  std::unordered_map<const Node*, DeferredGradients::OfNode*> deferred_;
};

}  // namespace lockstep
