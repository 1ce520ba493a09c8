// See lockstep_precompile(). Nothing includes this.
#include "lockstep/core/tensor.h"
#include "precompiled_core.h"
