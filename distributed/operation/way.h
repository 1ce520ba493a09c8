#pragma once

#include <cstdint>

namespace lockstep::distributed {

/// How messages come from another rank. An operation that has waited for one in vain says by which way.
enum class Way : std::uint8_t {
  none,      ///< it has not waited in vain
  memory,    ///< that the two share
  loopback,  ///< connections inside a machine
  network,   ///< anything else, as far as one knows
};

}  // namespace lockstep::distributed
