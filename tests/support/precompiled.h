// Precompiled for all tests. Nothing includes this.
#include "tests/support/tensor_testing.h"
