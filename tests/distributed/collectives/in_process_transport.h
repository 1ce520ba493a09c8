#pragma once

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "lockstep/distributed/collectives/transport.h"

namespace lockstep::testing {

using distributed::Transport;
using distributed::TransportError;

/// Where ranks that are threads leave messages for each other.
struct Mailboxes {
  static constexpr std::size_t kMaxRanks = 64;

  std::mutex mutex;
  /// By the rank that waits.
  std::array<std::condition_variable, kMaxRanks> changed;
  /// From, to, tag.
  std::map<std::tuple<int, int, std::uint64_t>, std::deque<std::vector<char>>> messages;
  std::array<bool, kMaxRanks> aborted{};
};

/// A transport without a network, whose every line a thread sanitizer sees.
class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Mailboxes> boxes, int rank) : boxes_(std::move(boxes)), rank_(rank) {}

  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    const auto* begin = static_cast<const char*>(data);
    const std::lock_guard lock(boxes_->mutex);
    boxes_->messages[{rank_, peer, tag}].emplace_back(begin, begin + bytes);
    boxes_->changed[static_cast<std::size_t>(peer)].notify_all();
    return std::make_unique<Sent>();
  }

  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return std::make_unique<Receiving>(*this, peer, tag, data, bytes);
  }

  void abort() override {
    const std::lock_guard lock(boxes_->mutex);
    boxes_->aborted[static_cast<std::size_t>(rank_)] = true;
    for (std::condition_variable& changed : boxes_->changed) changed.notify_all();
  }

 private:
  struct Sent final : Request {
    void wait(Deadline) override {}
  };

  class Receiving final : public Request {
   public:
    Receiving(InProcessTransport& transport, int peer, std::uint64_t tag, void* data, std::size_t bytes)
        : transport_(transport), peer_(peer), tag_(tag), data_(data), bytes_(bytes) {}

    void wait(Deadline deadline) override {
      Mailboxes& boxes = *transport_.boxes_;
      std::unique_lock lock(boxes.mutex);
      auto& box = boxes.messages[{peer_, transport_.rank_, tag_}];
      const auto gone = [&](int rank) { return boxes.aborted[static_cast<std::size_t>(rank)]; };
      const bool ready = boxes.changed[static_cast<std::size_t>(transport_.rank_)].wait_until(
          lock, deadline, [&] { return !box.empty() || gone(peer_) || gone(transport_.rank_); });
      if (!ready)
        throw TransportError(peer_, "timed out waiting for rank " + std::to_string(peer_), distributed::Way::memory);
      if (box.empty()) throw TransportError(peer_, "the connection to rank " + std::to_string(peer_) + " is lost");
      if (box.front().size() != bytes_) throw TransportError(peer_, "a message of the wrong size");
      std::memcpy(data_, box.front().data(), bytes_);
      box.pop_front();
    }

   private:
    InProcessTransport& transport_;
    int peer_;
    std::uint64_t tag_;
    void* data_;
    std::size_t bytes_;
  };

  std::shared_ptr<Mailboxes> boxes_;
  int rank_;
};

}  // namespace lockstep::testing
