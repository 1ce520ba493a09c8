#pragma once

namespace lockstep::math {

/// Elementary functions of doubles, of our own. The C library's differ in the last bit from version to version and from
/// processor to processor; these are additions, multiplications, divisions and fused multiply-adds in a fixed order,
/// so they have the same bits everywhere. Errors are below 1.5 ulp for exp, log, log1p, sin and cos (of any angle), 4
/// ulp for expm1, tanh, tan, sinh, cosh, atan and log2, 8 ulp for erf, asin, acos and log10, and some ulp for pow with
/// a large exponent (tests/core/double_math_test.cpp). Logarithms of powers of 2 and of 10 to these bases are exact.
/// NaN, infinities, zeros and signs are treated as by the C library; nothing sets errno.
double portable_exp(double x);
double portable_expm1(double x);
double portable_log(double x);
double portable_log1p(double x);
double portable_tanh(double x);
double portable_erf(double x);
double portable_pow(double x, double y);
double portable_sin(double x);
double portable_cos(double x);
double portable_tan(double x);
double portable_sinh(double x);
double portable_cosh(double x);
double portable_log2(double x);
double portable_log10(double x);
double portable_atan(double x);
double portable_asin(double x);
double portable_acos(double x);

}  // namespace lockstep::math
