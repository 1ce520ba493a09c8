#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::optim::detail {

/// Note [Gradients in parts]
/// Where a model is divided over ranks, a rank has a part of the gradients. A norm of that part is not the model's, and
/// ranks that scale by norms of their own end with different values of what they hold alike; where there are no
/// gradients at all, clipping does nothing. Neither shows. So whoever divides says so of its parameters, and what needs
/// whole gradients, such as clip_grad_norm_(), asks before it starts.
class GradientsInParts {
 public:
  enum class Kind : std::uint8_t {
    part,       ///< others have more of this gradient, or those of other parameters
    elsewhere,  ///< the parameters have no gradient here
    own,        ///< other ranks have nothing of these parameters, but something of all others
  };

  using Clear = std::function<void(const std::vector<Tensor>& some, bool set_to_none)>;

  /// Of `parameters`, until this object ends. `message` goes on from "parameter 3 of shape [5, 6] ": what has become of
  /// the gradient, and what to call instead. `clear`, which may be empty, drops the gradients that some of these
  /// parameters have elsewhere, or, where set_to_none is false, sets them to zero.
  GradientsInParts(std::vector<Tensor> parameters, Kind kind, std::string message, Clear clear = {});
  ~GradientsInParts();
  GradientsInParts(const GradientsInParts&) = delete;
  GradientsInParts& operator=(const GradientsInParts&) = delete;

 private:
  friend void require_gradients(const std::vector<Tensor>& parameters, const char* function, Kind kind);
  friend bool has_gradients_of(const std::vector<Tensor>& parameters, Kind kind);
  friend void clear_gradients_elsewhere(const std::vector<Tensor>& parameters, bool set_to_none);

  std::vector<Tensor> parameters_;
  Kind kind_;
  std::string message_;
  Clear clear_;
};

/// Throws Error, naming `function` and the first of `parameters` of which somebody has said this kind.
void require_gradients(const std::vector<Tensor>& parameters, const char* function, GradientsInParts::Kind kind);
/// Whether somebody has said this kind of one of them.
bool has_gradients_of(const std::vector<Tensor>& parameters, GradientsInParts::Kind kind);
/// Drops what gradients these parameters have elsewhere, or sets them to zero.
void clear_gradients_elsewhere(const std::vector<Tensor>& parameters, bool set_to_none);
/// For what takes a norm: no gradient is elsewhere or a part, and either all or none are of this rank's own parameters.
void require_whole_gradients(const std::vector<Tensor>& parameters, const char* function);

}  // namespace lockstep::optim::detail
