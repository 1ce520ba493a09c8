// See lockstep_precompile(). Nothing includes this.
#include "core/tensor.h"
#include "precompiled_core.h"
