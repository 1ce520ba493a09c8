// What a write in place means for the histories of the tensor, of its views and of what it is a view of.

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/part.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

// Note [Writing through views]
// A view that is made while recording knows the tensor that it shows elements of, its base: a tensor that is no such
// view itself, and contiguous. A recorded write into the view gives the view its new history, as any other write does,
// and the base one too: the elements beside the view come from the base as it was, the others from the view
// (PutBackward). It also counts the write. Every other view of that base was made before it, so its history does not
// explain its values any more; the first who asks for it finds that the count has gone on, and makes a new one: a part
// of the base as it is now. Most views are gone before the next write, as the one in `x[i] = y`, and cost nothing.
//
// A view that is made while nothing is recorded, of a tensor with gradients, has no history at all, and a write into it
// would be missing in the base's: written while recording, it is refused. So is a view of a leaf that is itself a view:
// the write would change the leaf, and its base knows nothing of gradients.
//
// Who shares the memory without being counted among the base's views, as detach(), expand() and results that are saved
// for backward do, cannot be told, so such writes are refused.

namespace {

/// Inputs: the base as it was, and the view that was written. SliceBackward's functions know where the view lies.
class PutBackward final : public Node {
 public:
  const char* name() const override { return "PutBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results(2);
    Tensor whole = std::move(grads[0]);
    const bool own = whole.impl()->use_count() == 1 && whole.storage()->use_count() == 1 && whole.is_contiguous();
    if (!own) whole = needs_grad(0) ? copy_contiguous(whole) : as_contiguous(whole);
    if (needs_grad(1)) results[1] = copy_contiguous(place->part_of(whole));
    if (!needs_grad(0)) return results;
    fill_values(place->part_of(whole), 0.0);
    results[0] = std::move(whole);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList results(2);
    const auto part = [place = place](const Tensor& x) { return copy_contiguous(place->part_of(as_contiguous(x))); };
    const auto put = [place = place](const Tensor& x) { return place->apply({x})[0]; };
    const auto rest = [place = place](const Tensor& x) {
      Tensor copy = copy_contiguous(x);
      fill_values(place->part_of(copy), 0.0);
      return copy;
    };
    if (needs_grad(0)) results[0] = apply_linear(grads[0], {rest, rest});
    if (needs_grad(1)) results[1] = apply_linear(grads[0], {part, put});
    return results;
  }

  IntrusivePtr<SliceBackward> place;
};

/// The base that a tensor was made a view of, unless one of them got other memory since; else itself.
TensorImpl& base_of(const Tensor& x) {
  TensorImpl& impl = *x.impl();
  return impl.viewed && impl.viewed->storage == impl.storage ? *impl.viewed : impl;
}

/// Which write made the history of a base: a number that no other has.
std::uint64_t history_of(const TensorImpl& base) {
  const auto* meta = static_cast<const AutogradMeta*>(base.autograd.get());
  return meta && meta->grad_fn ? meta->grad_fn->sequence() : 0;
}

/// Nodes that have let go of what they saved of a base, by their numbers: a sequence of writes need not go through the
/// history that they have in common again and again. Kept for the bases that this thread wrote last.
struct Cleared {
  std::uint64_t history = 0;  ///< of the base, after its last write
  std::unordered_set<std::uint64_t> nodes;
};
constexpr std::size_t kBases = 8, kMostNodes = 1 << 20;
thread_local std::array<Cleared, kBases> cleared;
thread_local std::size_t next_base = 0;
thread_local Cleared* being_written = nullptr;  // from forget_changed() to write_through()

std::unordered_set<std::uint64_t>& cleared_for(std::uint64_t history) {
  auto found = std::find_if(cleared.begin(), cleared.end(),
                            [&](const Cleared& c) { return history != 0 && c.history == history; });
  if (found == cleared.end()) {
    found = cleared.begin() + static_cast<std::ptrdiff_t>(next_base++ % kBases);
    found->nodes.clear();
  } else if (found->nodes.size() > kMostNodes) {
    found->nodes.clear();
  }
  being_written = &*found;
  return found->nodes;
}

void check_no_repeats(const Tensor& target, const char* op) {
  if (target.is_contiguous()) return;
  for (int d = 0; d < target.dim(); ++d)
    LOCKSTEP_CHECK(target.strides()[d] != 0 || target.sizes()[d] <= 1,
                   "[{}] the target of shape {} repeats its elements along dimension {}, so it cannot be changed in "
                   "place; call contiguous() first",
                   op, to_string(target.sizes()), d);
}

IntrusivePtr<SliceBackward> place_in(const Tensor& base, const Tensor& view) {
  IntrusivePtr<SliceBackward> place(new SliceBackward);
  place->sizes = base.sizes();
  place->part_sizes = view.sizes();
  place->part_strides = view.strides();
  place->part_offset = view.offset() - base.offset();
  return place;
}

}  // namespace

void note_view(const Tensor& view, const Tensor& x) {
  if (!x.is_floating_point()) return;
  if (x.impl()->unrecorded_view || (!GradMode::enabled() && needs_grad(x))) view.impl()->unrecorded_view = true;
  if (!GradMode::enabled()) return;
  TensorImpl& base = base_of(x);
  if (!base.contiguous || base.viewed) return;
  TensorImpl& impl = *view.impl();
  impl.viewed = IntrusivePtr<TensorImpl>(&base);
  impl.writes.store(base.writes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  base.views.fetch_add(1, std::memory_order_relaxed);
}

void detail::renew_history(const Tensor& view) {
  static std::mutex mutex;  // of several threads that read a view, one renews it
  const std::scoped_lock lock(mutex);
  const std::uint32_t writes = view.impl()->viewed->writes.load(std::memory_order_acquire);
  if (view.impl()->writes.load(std::memory_order_relaxed) == writes) return;
  const Tensor base(view.impl()->viewed);
  const auto* before = static_cast<const AutogradMeta*>(view.impl()->autograd.get());
  if (needs_grad(base)) {
    if (base.storage() != view.storage())
      detail::throw_error(
          "[nn::replace_value] a tensor was given another value while a view of it was kept, and the view cannot tell "
          "any "
          "more what had been written into it; make the view again");
    if (before && before->requires_grad)
      detail::throw_error(
          "[requires_grad] a view that is a leaf, with a gradient of its own, shows elements that a recorded write "
          "changed; write them under a NoGradGuard, or make the view a leaf afterwards");
    const IntrusivePtr<SliceBackward> place = place_in(base, view);
    const Tensor *inputs[] = {&base}, *outputs[] = {&view};
    NodeBuilder::set_inputs(*place, inputs);
    NodeBuilder::set_outputs(place, outputs);
  }
  view.impl()->writes.store(writes, std::memory_order_release);
}

void NodeBuilder::forget_changed(const Tensor& target, std::span<const Tensor* const> inputs) {
  TensorImpl& base = base_of(target);
  being_written = nullptr;
  if (!base.saved.load(std::memory_order_relaxed)) return;
  std::unordered_set<std::uint64_t>& seen = cleared_for(history_of(base));
  std::vector<const Node*> stack;
  const auto visit = [&](const Node* node) {
    if (node && seen.insert(node->sequence()).second) stack.push_back(node);
  };
  for (const Tensor* input : inputs)
    if (!input->is_same(target)) visit(gradient_edge(*input).node.get());
  while (!stack.empty()) {
    auto* node = const_cast<Node*>(stack.back());
    stack.pop_back();
    for (SavedTensor& saved : node->saved_) saved.forget(target);
    for (const Edge& edge : node->edges_) visit(edge.node.get());
  }
}

void NodeBuilder::write_through(const Tensor& target) {
  TensorImpl& base = base_of(target);
  const std::uint32_t writes = base.writes.load(std::memory_order_relaxed) + 1;
  if (&base != target.impl()) {
    const Tensor whole{IntrusivePtr<TensorImpl>(&base)};
    const IntrusivePtr<PutBackward> put(new PutBackward);
    put->place = place_in(whole, target);
    const Tensor *inputs[] = {&whole, &target}, *outputs[] = {&whole};
    set_inputs(*put, inputs);
    set_outputs(put, outputs);
    target.impl()->writes.store(writes, std::memory_order_relaxed);
  }
  base.writes.store(writes, std::memory_order_release);
  if (Cleared* const written = std::exchange(being_written, nullptr)) written->history = history_of(base);
}

void check_in_place(const Tensor& target, bool recording, const char* op) {
  LOCKSTEP_CHECK(target.defined(), "[{}] the tensor to change is undefined", op);
  check_no_repeats(target, op);
  TensorImpl& base = base_of(target);
  const auto is_leaf = [](const AutogradMetaBase* state) {
    const auto* meta = static_cast<const AutogradMeta*>(state);
    return meta && meta->requires_grad && !meta->grad_fn;
  };
  if (GradMode::enabled() && (is_leaf(target.impl()->autograd.get()) || (recording && is_leaf(base.autograd.get()))))
    detail::throw_error(fmt::format(
        "[{}] a leaf that requires gradients cannot be changed in place while recording; use a NoGradGuard", op));
  if (GradMode::enabled() && target.impl()->unrecorded_view)
    detail::throw_error(fmt::format(
        "[{}] the tensor is a view of one with gradients, made while nothing was recorded, so that tensor's "
        "history would miss the write; write under a NoGradGuard as well, make the view while recording, "
        "or change a clone()",
        op));
  if (recording && &base != target.impl() && needs_grad(target) && !needs_grad(Tensor(IntrusivePtr<TensorImpl>(&base))))
    detail::throw_error(
        fmt::format("[{}] the tensor shows elements of a leaf that requires gradients, which cannot be changed in "
                    "place while recording; use a NoGradGuard",
                    op));
  target.storage()->before_change();
  if (recording && target.storage()->use_count() > 1 + base.views.load(std::memory_order_relaxed))
    detail::throw_error(fmt::format(
        "[{}] the tensor cannot be changed in place while recording: it shares its memory with a view that "
        "has no history, as detach() and expand() make them, or with a result saved for backward; change a clone(), or "
        "use the op that returns a new tensor, as index_put() for x[i] = values",
        op));
  target.storage()->bump_version();
}

}  // namespace lockstep
