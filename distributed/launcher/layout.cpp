#include "lockstep/distributed/launcher/layout.h"

#include <sstream>

#include "lockstep/core/check.h"

namespace lockstep::launcher {

int Layout::world_size() const {
  int sum = 0;
  for (const auto& [node, count] : workers) sum += count;
  return sum;
}

int Layout::first_rank(int node) const {
  int rank = 0;
  for (const auto& [other, count] : workers)
    if (other < node) rank += count;
  return rank;
}

std::vector<int> Layout::nodes() const {
  std::vector<int> nodes;
  for (const auto& [node, count] : workers) nodes.push_back(node);
  return nodes;
}

Layout make_layout(const std::map<int, Offer>& offers, int min_nproc) {
  Layout left;
  Layout all;
  for (const auto& [node, offer] : offers) {
    if (offer.left > 0) left.workers[node] = offer.left;
    if (offer.all > 0) all.workers[node] = offer.all;
  }
  if (left.world_size() >= min_nproc && left.world_size() > 0) return left;
  if (all.world_size() >= min_nproc) return all;
  return {};
}

std::string encode(const Layout& layout) {
  std::string text = fmt::format("{} {} {} {}", layout.generation, layout.starts, layout.restarts, layout.job);
  for (const auto& [node, count] : layout.workers) text += fmt::format(" {} {}", node, count);
  return text;
}

Layout decode_layout(const std::string& text) {
  std::istringstream in(text);
  Layout layout;
  in >> layout.generation >> layout.starts >> layout.restarts >> layout.job;
  LOCKSTEP_CHECK(!in.fail(), "another launcher's layout is not understood: '{}'", text);
  for (int node = 0, count = 0; in >> node >> count;) layout.workers[node] = count;
  LOCKSTEP_CHECK(in.eof() && layout.world_size() > 0, "another launcher's layout is not understood: '{}'", text);
  return layout;
}

std::string encode(const Offer& offer) {
  return fmt::format("{} {} {} {} {}", offer.left, offer.all, offer.starts, offer.restarts, offer.job);
}

Offer decode_offer(const std::string& text) {
  std::istringstream in(text);
  Offer offer;
  in >> offer.left >> offer.all >> offer.starts >> offer.restarts >> offer.job;
  LOCKSTEP_CHECK(!in.fail() && offer.left >= 0 && offer.all >= offer.left && offer.starts >= 0 && offer.restarts >= 0,
                 "another launcher's number of workers is not understood: '{}'", text);
  return offer;
}

}  // namespace lockstep::launcher
