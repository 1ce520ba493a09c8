#pragma once

#include <memory>

namespace lockstep::distributed {

class Reducer;

/// While one lives, backward() only accumulates locally. The first backward() after it reduces the sum. May be moved,
/// into a std::optional, say: it lasts as long as the one that was moved to.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  NoSync(NoSync&& other) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync();

 private:
  std::shared_ptr<bool> synchronize_;  // null: moved from
  bool previous_;
};

}  // namespace lockstep::distributed
