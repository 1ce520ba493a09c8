#pragma once

namespace lockstep::distributed {

class Reducer;

/// While one lives, backward() only accumulates locally. The first backward() after it reduces the sum.
class NoSync {
 public:
  explicit NoSync(Reducer& reducer);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
  bool previous_;
};

}  // namespace lockstep::distributed
