#pragma once

namespace lockstep::math {

/// Elementary functions of doubles, of our own. The C library's differ in the last bit from version to version and from
/// processor to processor; these are additions, multiplications, divisions and fused multiply-adds in a fixed order,
/// compiled without contraction, so they have the same bits everywhere. Errors are below 1.5 ulp for exp and log, 3 ulp
/// for log1p, expm1, tanh, erf, sin and cos, and some ulp for pow with a large exponent
/// (tests/core/double_math_test.cpp). NaN, infinities, zeros and signs are treated as by the C library; nothing sets
/// errno.
double portable_exp(double x);
double portable_expm1(double x);
double portable_log(double x);
double portable_log1p(double x);
double portable_tanh(double x);
double portable_erf(double x);
double portable_pow(double x, double y);
double portable_sin(double x);
double portable_cos(double x);

}  // namespace lockstep::math
