#include "lockstep/autograd/node.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/core/check.h"
#include "lockstep/core/free_list.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

std::atomic<std::uint64_t> sequences{0};

// Note [Deleting graphs]
// A node owns its edges and saved tensors, which own further nodes: deleting a long chain recursively would overflow
// the stack. The outermost deletion works through a list; deletions that it causes only append to it.
LOCKSTEP_INITIAL_EXEC thread_local constinit std::vector<Node*>* deletions = nullptr;

constexpr std::size_t kSmallNode = sizeof(Node) + 32, kLargeNode = sizeof(Node) + 256;

}  // namespace

// Two sizes serve nearly all backward functions: the small hold a number or two, the large the shapes of two operands.
void* Node::operator new(std::size_t bytes) {
  if (bytes <= kSmallNode) return FreeList<kSmallNode>::allocate(kSmallNode);
  if (bytes <= kLargeNode) return FreeList<kLargeNode>::allocate(kLargeNode);
  return ::operator new(bytes);
}
void Node::operator delete(void* pointer, std::size_t bytes) noexcept {
  if (bytes <= kSmallNode) return FreeList<kSmallNode>::release(pointer);
  if (bytes <= kLargeNode) return FreeList<kLargeNode>::release(pointer);
  ::operator delete(pointer);
}

Node::Node(TensorImpl* leaf) : leaf_(leaf), sequence_(take_sequence() | (leaf ? std::uint64_t{1} << 63 : 0)) {}

std::uint64_t Node::take_sequence() {
  return sequences.fetch_add(1, std::memory_order_relaxed);
}

struct Node::Hooks {
  std::mutex mutex;
  std::vector<GradientHook> list;

  std::vector<GradientHook> copy() {
    const std::lock_guard lock(mutex);
    return list;
  }
};

void Node::delete_hooks() {
  delete hooks_.load(std::memory_order_relaxed);
}

void Node::add_hook(GradientHook hook) {
  Hooks* hooks = hooks_.load(std::memory_order_acquire);
  if (!hooks) {
    auto made = std::make_unique<Hooks>();
    // Another thread may be first; then `hooks` becomes its list.
    if (hooks_.compare_exchange_strong(hooks, made.get(), std::memory_order_acq_rel)) hooks = made.release();
  }
  const std::lock_guard lock(hooks->mutex);
  const auto place = hook.is_last ? hooks->list.end() : std::ranges::find_if(hooks->list, &GradientHook::is_last);
  hooks->list.insert(place, std::move(hook));
}

void Node::remove_hook(std::uint64_t key) {
  if (!has_hooks()) return;
  std::vector<GradientHook> removed;  // what they hold goes without the lock
  Hooks& hooks = *hooks_.load(std::memory_order_acquire);
  const std::lock_guard lock(hooks.mutex);
  for (GradientHook& hook : hooks.list)
    if (hook.key == key) removed.push_back(hook);
  std::erase_if(hooks.list, [&](const GradientHook& hook) { return hook.key == key; });
}

void Node::run_hooks(TensorList& grads) const {
  // A hook may remove itself or others.
  const std::vector<GradientHook> hooks = hooks_.load(std::memory_order_acquire)->copy();
  for (const GradientHook& hook : hooks) {
    if (hook.output >= grads.size() || !grads[hook.output].defined()) continue;
    Tensor& grad = grads[hook.output];
    Tensor changed = (*hook.function)(grad);
    if (!changed.defined()) continue;
    LOCKSTEP_CHECK(
        changed.sizes() == grad.sizes() && changed.dtype() == grad.dtype() && changed.device() == grad.device(),
        "[register_hook] a hook on the gradient of {} returned {} {} on {}, expected {} {} on {}", name(),
        lockstep::name(changed.dtype()), to_string(changed.sizes()), to_string(changed.device()),
        lockstep::name(grad.dtype()), to_string(grad.sizes()), to_string(grad.device()));
    grad = std::move(changed);
  }
}

void Node::save_one(const Tensor& tensor) {
  // An output owns this node: saved with its history, it would own itself.
  const AutogradMeta* meta = tensor.defined() ? autograd_meta(tensor) : nullptr;
  if (tensor.defined()) {
    saves_ = true;
    TensorImpl& changes = tensor.impl()->viewed ? *tensor.impl()->viewed : *tensor.impl();
    if (!changes.saved.load(std::memory_order_relaxed)) changes.saved.store(true, std::memory_order_relaxed);
  }
  saved_.push_back(SavedTensor(meta && meta->grad_fn.get() == this ? tensor.detach() : tensor));
}

TensorList Node::apply_recorded(TensorList) {
  detail::throw_error(fmt::format(
      "[grad] create_graph: {} has no second derivative here; docs/porting.md says which have none, and a way "
      "round",
      name()));
}

namespace {

/// Another tensor of the same values that was computed as output number `output` of `node`.
Tensor with_history(const Tensor& values, IntrusivePtr<Node> node, std::uint32_t output) {
  const Tensor tensor = values.detach();
  AutogradMeta& meta = ensure_autograd_meta(tensor);
  meta.grad_fn = std::move(node);
  meta.output_index = output;
  return tensor;
}

}  // namespace

Tensor Node::saved_input(std::size_t i, std::size_t input) const {
  const Edge& edge = edges_[input];
  return edge.node ? with_history(saved(i), edge.node, edge.input) : saved(i).detach();
}

Tensor Node::saved_output(std::size_t i, std::uint32_t output) {
  return with_history(saved(i), IntrusivePtr<Node>(this), output);
}

void Node::release_saved() {
  if (!saves_) return;
  released_.store(true, std::memory_order_relaxed);
  saved_.clear();
}

void intrusive_delete(Node* node) {
  if (TensorImpl* leaf = node->leaf_) {
    if (leaf->release()) intrusive_delete(leaf);  // which may delete the node
    return;
  }
  if (deletions) {
    deletions->push_back(node);
    return;
  }
  std::vector<Node*> list;
  deletions = &list;
  delete node;
  while (!list.empty()) {
    Node* next = list.back();
    list.pop_back();
    delete next;
  }
  deletions = nullptr;
}

SavedTensor::SavedTensor(Tensor tensor)
    : tensor_(std::move(tensor)), version_(tensor_.defined() ? tensor_.storage()->version() : 0) {}

void SavedTensor::forget(const Tensor& changed) {
  if (!tensor_.defined() || tensor_.storage() != changed.storage()) return;
  Tensor left = tensor_.detach();  // for its shape in the message
  left.impl()->storage = StoragePtr(new Storage(nullptr, 0, changed.device(), {}));
  tensor_ = std::move(left);
  version_ = ~tensor_.storage()->version();
}

void SavedTensor::throw_changed(const char* node) const {
  detail::throw_error(
      fmt::format("[{}] a tensor of shape {} that backward needs was changed in place after it was saved; "
                  "change a clone() instead, or change it after backward()",
                  node, to_string(tensor_.sizes())));
}

}  // namespace lockstep
