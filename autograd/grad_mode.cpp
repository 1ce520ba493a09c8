#include "lockstep/autograd/grad_mode.h"

namespace lockstep {

thread_local constinit bool GradMode::enabled_ = true;

}  // namespace lockstep
