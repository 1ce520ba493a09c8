// See lockstep_precompile(). Nothing includes this.
#include "precompiled_core.h"
#include "core/tensor.h"
