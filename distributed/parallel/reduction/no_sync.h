#pragma once

#include <utility>

namespace lockstep::distributed {

class Reducer;

/// While one lives, backward() only accumulates locally. The first backward() after it reduces the sum. May be moved,
/// into a std::optional, say: it lasts as long as the one that was moved to.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  NoSync(NoSync&& other) noexcept : reducer_(std::exchange(other.reducer_, nullptr)), previous_(other.previous_) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  Reducer* reducer_;  // null: moved from
  bool previous_;
};

}  // namespace lockstep::distributed
