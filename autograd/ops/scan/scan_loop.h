#pragma once

// The loop along one slice on a CUDA device; the CPU goes through several at a time. For kernels (.cu) only.

#include <cstdint>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/philox.h"

namespace lockstep {

/// One slice of `length` elements, `step` apart. `read` and `write` convert between T and C.
template <typename C, typename T, typename Read, typename Write>
LOCKSTEP_HOST_DEVICE void scan_slice(Scan scan, const T* x, const T* y, T* out, std::int64_t length, std::int64_t step,
                                     Read read, Write write) {
  C value = scan == Scan::sum || scan == Scan::recurrence ? C(0) : C(1);
  for (std::int64_t i = 0; i < length; ++i) {
    const C at = read(x[i * step]);
    switch (scan) {
      case Scan::sum:
        value = value + at;
        break;
      case Scan::product:
        value = value * at;
        break;
      case Scan::product_before:
        out[i * step] = write(value);
        value = value * at;
        continue;
      case Scan::recurrence:
        value = i == 0 || read(y[(i - 1) * step]) == C(0) ? at : at + read(y[(i - 1) * step]) * value;
        break;
    }
    out[i * step] = write(value);
  }
}

}  // namespace lockstep
