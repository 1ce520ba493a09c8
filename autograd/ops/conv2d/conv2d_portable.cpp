#include "lockstep/autograd/ops/conv2d/conv2d_portable.h"

#include "lockstep/core/check.h"

namespace lockstep::conv2d_portable {

void require(bool supported, const char* pass, const Conv2dGeometry& g, DType dtype) {
  LOCKSTEP_CHECK(supported && dtype == kFloat32,
                 "[conv2d] {} of {} images of {} channels, {} x {}, with {} filters of {} x {} on a CUDA device has no "
                 "kernel with the CPU's bits; turn portable arithmetic off (--lockstep-portable, cuda::set_portable), "
                 "or compute on the CPU",
                 pass, name(dtype), g.in, g.h, g.w, g.out, g.kh, g.kw);
}

}  // namespace lockstep::conv2d_portable
