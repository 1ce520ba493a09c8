#pragma once

// What a GradScaler keeps in a device's memory, for steps captured in a graph. For .cpp files only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/tensor.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/step_table.h"

namespace lockstep::optim::detail {

/// Note [Scaling on the device]
/// A captured step multiplies its loss by the scale, looks for overflows, leaves the update out if there was one, and
/// changes the scale, all by kernels that read and write five words (ScalerWord) in the device's memory. The
/// host reads them when somebody asks.
///
/// A step that is left out is none of the optimizer's, whose formulas (Adam's bias corrections) take the number of
/// the step. The host computes these, as in every step, so that no bit differs: it knows how many steps were left out
/// until kMostAhead launches ago, since it waits for that one, and hands over the values for each number of the
/// launches in between that may have been left out too. The kernel picks the ones that are right.
class ScalerOnDevice {
 public:
  explicit ScalerOnDevice(const Device& device);
  ~ScalerOnDevice();
  ScalerOnDevice(const ScalerOnDevice&) = delete;
  ScalerOnDevice& operator=(const ScalerOnDevice&) = delete;

  Device device() const { return words_.device(); }
  /// float64 [kScalerWords].
  const Tensor& words() const { return words_; }

  /// Of the host, which has them now: queues their way to the device.
  void put(double scale, std::int64_t good_steps);
  /// Before a launch: waits for the one kMostAhead launches ago.
  void wait_for_turn();
  /// After a launch, on its stream: queues the words' way back.
  void launched(const cuda::Stream& stream);
  /// Steps left out, as far as the host knows without waiting.
  std::int64_t known_skips() const { return skips_; }
  /// Waits for all launches.
  std::array<double, kScalerWords> read();

 private:
  struct Slot {
    Tensor pinned;
    std::optional<cuda::Event> done;
  };

  std::array<double, kScalerWords> words_in(const Slot& slot) const;

  Tensor words_;
  std::array<Slot, kMostAhead> slots_;
  std::uint64_t launches_ = 0;                  // since put()
  std::int64_t skips_ = 0;                      // in all
  std::array<double, kScalerWords> last_ = {};  // put or read
};

}  // namespace lockstep::optim::detail
