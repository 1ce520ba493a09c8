#pragma once

#include <memory>
#include <vector>

#include "lockstep/distributed/collectives/transport.h"

namespace lockstep::distributed {

/// Some of a transport's ranks under numbers of their own, for a group that was split from another. Messages travel on
/// the connections that are there, under tags that no other group uses. Errors name the ranks of the transport below.
class SubTransport final : public Transport {
 public:
  /// `ranks`: the number below, by rank here. `salt` tells this group's messages from those of others: the same on all
  /// its ranks, and in no other group between any two of them.
  SubTransport(std::shared_ptr<Transport> below, std::vector<int> ranks, std::uint64_t salt);

  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override;
  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override;
  /// Does nothing: a group that fails takes the one with it that it was split from, and so the transport below.
  void abort() override {}

 private:
  int below(int peer) const { return ranks_[static_cast<std::size_t>(peer)]; }
  std::uint64_t salted(std::uint64_t tag) const;

  std::shared_ptr<Transport> transport_;
  std::vector<int> ranks_;
  std::uint64_t salt_;
};

}  // namespace lockstep::distributed
