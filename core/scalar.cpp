#include <limits>

#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/dtype.h"

namespace lockstep {

void check_in_range(Scalar value, DType dtype, const char* op) {
  if (is_floating_point(dtype) || dtype == kBool) return;
  dispatch_integer(dtype, op, [&]<typename T>() {
    constexpr std::int64_t kLowest = std::numeric_limits<T>::lowest(), kMax = std::numeric_limits<T>::max();
    // 2^63, the bound of int64, is a double while 2^63 - 1 is not.
    const bool inside = value.is_floating_point()
                            ? value.to_double() > static_cast<double>(kLowest) - (sizeof(T) < 8 ? 1.0 : 2048.0) &&
                                  value.to_double() < static_cast<double>(kMax) + (sizeof(T) < 8 ? 1.0 : 0.0)
                            : value.to_int64() >= kLowest && value.to_int64() <= kMax;
    LOCKSTEP_CHECK(inside, "[{}] {} is out of the range of {}, {} to {}", op, value.to_double(), name(dtype), kLowest,
                   kMax);
  });
}

}  // namespace lockstep
