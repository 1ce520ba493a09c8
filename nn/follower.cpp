#include "lockstep/nn/follower.h"

#include <algorithm>
#include <memory>

namespace lockstep::nn::detail {
namespace {

/// Marks the keys of followed hooks, which are no other hooks' then.
constexpr std::uint64_t kFollowed = std::uint64_t{1} << 63;

template <typename List>
void follow(const List& from, List& to, std::uint64_t first) {
  const auto has = [](const List& list, std::uint64_t key) {
    return std::ranges::any_of(list, [key](const auto& hook) { return hook.first == key; });
  };
  std::erase_if(to, [&](const auto& hook) {
    const std::uint64_t key = hook.first & ~kFollowed;
    return (hook.first != key || key < first) && !has(from, key);
  });
  for (const auto& [key, hook] : from)
    if (key >= first && !has(to, key | kFollowed)) to.emplace_back(key | kFollowed, hook);
}

}  // namespace

Follower::Follower(Module& from, Module& to) : from_(from), to_(to) {
  for (const Module* each : from.modules()) first_.push_back(each->hooks_ ? each->hooks_->next_key : 1);
}

void Follower::update() {
  const std::vector<Module*> from = from_.modules(), to = to_.modules();
  for (std::size_t i = 0; i < from.size() && i < to.size() && i < first_.size(); ++i) {
    to[i]->training_ = from[i]->training_;
    const Module::Hooks* const given = from[i]->hooks_.get();
    std::unique_ptr<Module::Hooks>& own = to[i]->hooks_;
    if (!given) continue;  // there have never been any: those that are removed leave empty lists
    if (!own) own = std::make_unique<Module::Hooks>();
    follow(given->before, own->before, first_[i]);
    follow(given->after, own->after, first_[i]);
    follow(given->backward, own->backward, first_[i]);
  }
}

}  // namespace lockstep::nn::detail
