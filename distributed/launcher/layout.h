#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// Who takes part in one generation of workers.
struct Layout {
  int generation = 0;          ///< since node 0's launcher was started
  int starts = 0;              ///< generations before this one, under earlier launchers of node 0 too
  int restarts = 0;            ///< how often the group was started again because of failures
  std::string job;             ///< its name, which holds no space
  std::map<int, int> workers;  ///< by node; nodes that take no part are absent

  int world_size() const;
  /// The rank of the first worker of a node.
  int first_rank(int node) const;
  std::vector<int> nodes() const;
};

/// What a node can bring, and what it knows. The store with what all had agreed on goes with node 0's launcher; when
/// that is started again, the others' memory is what tells it that the job did not begin now.
struct Offer {
  int left = 0;  ///< workers that have not failed
  int all = 0;
  int starts = 0;        ///< generations that this node's launcher has seen
  int restarts = 0;      ///< that have been used up
  std::string job = {};  ///< its name, as this node has heard or drawn it
};

/// Takes the workers that are left if they are at least `min_nproc`, else all; an empty layout if those are too few
/// as well. Ranks go by node.
Layout make_layout(const std::map<int, Offer>& offers, int min_nproc);

/// As text for the store, and back. Throws Error for text that is no layout.
std::string encode(const Layout& layout);
Layout decode_layout(const std::string& text);
std::string encode(const Offer& offer);
Offer decode_offer(const std::string& text);

}  // namespace lockstep::launcher
