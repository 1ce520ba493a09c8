#pragma once

// The functions of linalg.h that others are made of: their errors name `op`, what the user called. For .cpp files only.

#include <optional>
#include <string_view>

#include "lockstep/autograd/ops/linalg/linalg.h"

namespace lockstep::linalg::named {

Tensor solve(const char* op, const Tensor& a, const Tensor& b);
Tensor solve_triangular(const char* op, const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular);
/// Of equal leading sizes, on the CPU, without a gradient.
Tensor solve_values(const char* op, const Tensor& a, const Tensor& b);
Eigenpairs eigh(const char* op, const Tensor& a, std::string_view triangle);
SingularValues svd(const char* op, const Tensor& a, bool full_matrices);
Tensor pinv(const char* op, const Tensor& a, std::optional<double> rtol);

}  // namespace lockstep::linalg::named
