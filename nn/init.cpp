#include "lockstep/nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"

namespace lockstep::nn::init {
namespace {

void check_matrix(const Tensor& weight, const char* op) {
  LOCKSTEP_CHECK(weight.defined() && weight.dim() >= 2, "[{}] expected a weight of 2 or more dimensions, found {}", op,
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
}

std::int64_t kernel_numel(const Tensor& weight) {
  std::int64_t n = 1;
  for (int d = 2; d < weight.dim(); ++d) n *= weight.sizes()[d];
  return n;
}

double kaiming_std(const Tensor& tensor, const KaimingOptions& options, const char* op) {
  check_matrix(tensor, op);
  const std::int64_t fan = options.fan == Fan::in ? fan_in(tensor) : fan_out(tensor);
  if (fan == 0) return 0.0;
  return std::sqrt(2.0 / (1.0 + options.negative_slope * options.negative_slope) / static_cast<double>(fan));
}

double xavier_std(const Tensor& tensor, double gain, const char* op) {
  check_matrix(tensor, op);
  const std::int64_t fans = fan_in(tensor) + fan_out(tensor);
  return fans == 0 ? 0.0 : gain * std::sqrt(2.0 / static_cast<double>(fans));
}

void uniform_of_std(const Tensor& tensor, double std) {
  const double bound = std::sqrt(3.0) * std;
  uniform_(tensor, -bound, bound);
}

}  // namespace

void uniform_(const Tensor& tensor, double low, double high) {
  fill_uniform(tensor, low, high, RandomStream::init);
}
void normal_(const Tensor& tensor, double mean, double std) {
  fill_normal(tensor, mean, std, RandomStream::init);
}

void constant_(const Tensor& tensor, double value) {
  fill_values(tensor, value);
  tensor.storage()->bump_version();
}
void zeros_(const Tensor& tensor) {
  constant_(tensor, 0.0);
}
void ones_(const Tensor& tensor) {
  constant_(tensor, 1.0);
}

void kaiming_uniform_(const Tensor& tensor, KaimingOptions options) {
  uniform_of_std(tensor, kaiming_std(tensor, options, "kaiming_uniform_"));
}
void kaiming_normal_(const Tensor& tensor, KaimingOptions options) {
  normal_(tensor, 0.0, kaiming_std(tensor, options, "kaiming_normal_"));
}
void xavier_uniform_(const Tensor& tensor, double gain) {
  uniform_of_std(tensor, xavier_std(tensor, gain, "xavier_uniform_"));
}
void xavier_normal_(const Tensor& tensor, double gain) {
  normal_(tensor, 0.0, xavier_std(tensor, gain, "xavier_normal_"));
}

void trunc_normal_(const Tensor& tensor, double mean, double std, double low, double high) {
  LOCKSTEP_CHECK(std >= 0.0 && std::isfinite(std),
                 "[trunc_normal_] expected a finite standard deviation of at least 0, found {}", std);
  LOCKSTEP_CHECK(low < high && low < mean + 4.0 * std && high > mean - 4.0 * std,
                 "[trunc_normal_] a normal distribution of mean {} and deviation {} has too little in [{}, {}]", mean,
                 std, low, high);
  // Through the inverse of the cumulative distribution, whose values between the bounds are equally likely. -1 is that
  // of no number.
  const double scale = std * std::numbers::sqrt2;
  const double from = std::max(math::portable_erf((low - mean) / scale), -1.0 + 0x1p-53);
  const Tensor drawn = empty(tensor.sizes(), {.dtype = kFloat64});
  uniform_(drawn, from, std::max(from, math::portable_erf((high - mean) / scale)));
  const NoGradGuard no_grad;
  const Tensor values = clamp(erfinv(drawn) * scale + mean, low, high);
  tensor.storage()->bump_version();
  copy_values(values, tensor);
}

void orthogonal_(const Tensor& tensor, double gain) {
  check_matrix(tensor, "orthogonal_");
  const std::int64_t rows = tensor.sizes()[0], columns = rows == 0 ? 0 : tensor.numel() / rows;
  const bool wide = rows <= columns;
  const std::int64_t count = wide ? rows : columns, length = wide ? columns : rows;
  const Tensor drawn = empty({count, length}, {.dtype = kFloat64});
  normal_(drawn);
  const LibraryAccess access;
  auto* const q = drawn.data<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    double* const row = q + i * length;
    for (int round = 0; round < 2; ++round)  // Gram and Schmidt, twice for what rounding leaves
      for (std::int64_t j = 0; j < i; ++j) {
        double product = 0.0;
        for (std::int64_t k = 0; k < length; ++k) product += row[k] * q[j * length + k];
        for (std::int64_t k = 0; k < length; ++k) row[k] -= product * q[j * length + k];
      }
    double squares = 0.0;
    for (std::int64_t k = 0; k < length; ++k) squares += row[k] * row[k];
    for (std::int64_t k = 0; k < length; ++k) row[k] /= std::sqrt(squares);
  }
  for (std::int64_t i = 0; i < drawn.numel(); ++i) q[i] *= gain;
  const Tensor matrix = wide ? drawn : copy_contiguous(drawn.as_strided({rows, columns}, {1, length}, 0));
  tensor.storage()->bump_version();
  copy_values(matrix.as_strided(tensor.sizes(), contiguous_strides(tensor.sizes()), 0), tensor);
}

void eye_(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.defined() && tensor.dim() == 2, "[eye_] expected a matrix, found {}",
                 tensor.defined() ? to_string(tensor.sizes()) : "an undefined tensor");
  zeros_(tensor);
  const std::int64_t length = std::min(tensor.sizes()[0], tensor.sizes()[1]);
  if (length > 0)
    fill_values(tensor.as_strided({length}, {tensor.strides()[0] + tensor.strides()[1]}, tensor.offset()), 1.0);
}

void dirac_(const Tensor& tensor, std::int64_t groups) {
  LOCKSTEP_CHECK(tensor.defined() && tensor.dim() >= 3 && tensor.dim() <= 5,
                 "[dirac_] expected a weight [out, in, kernel...] of three to five dimensions, found {}",
                 tensor.defined() ? to_string(tensor.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(groups >= 1 && tensor.sizes()[0] % groups == 0, "[dirac_] {} groups do not divide {} channels", groups,
                 tensor.sizes()[0]);
  zeros_(tensor);
  std::int64_t middle = tensor.offset();
  for (int d = 2; d < tensor.dim(); ++d) middle += tensor.sizes()[d] / 2 * tensor.strides()[d];
  const std::int64_t out = tensor.sizes()[0] / groups, channels = std::min(out, tensor.sizes()[1]);
  if (tensor.numel() == 0) return;
  for (std::int64_t g = 0; g < groups; ++g)
    fill_values(tensor.as_strided({channels}, {tensor.strides()[0] + tensor.strides()[1]},
                                  middle + g * out * tensor.strides()[0]),
                1.0);
}

double calculate_gain(std::string_view nonlinearity, double param) {
  for (const std::string_view name :
       {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid"})
    if (nonlinearity == name) return 1.0;
  if (nonlinearity == "tanh") return 5.0 / 3.0;
  if (nonlinearity == "relu") return std::sqrt(2.0);
  if (nonlinearity == "leaky_relu") return std::sqrt(2.0 / (1.0 + param * param));
  LOCKSTEP_CHECK(nonlinearity == "selu",
                 "[calculate_gain] expected \"linear\", \"sigmoid\", \"tanh\", \"relu\", \"leaky_relu\", "
                 "\"selu\" or a convolution, found \"{}\"",
                 nonlinearity);
  return 0.75;
}

std::int64_t fan_in(const Tensor& weight) {
  check_matrix(weight, "fan_in");
  return weight.sizes()[1] * kernel_numel(weight);
}
std::int64_t fan_out(const Tensor& weight) {
  check_matrix(weight, "fan_out");
  return weight.sizes()[0] * kernel_numel(weight);
}

void layer_default_(const Tensor& weight, const Tensor& bias) {
  const std::int64_t fan = fan_in(weight);
  const double bound = fan > 0 ? 1.0 / std::sqrt(static_cast<double>(fan)) : 0.0;
  uniform_(weight, -bound, bound);
  if (bias.defined()) uniform_(bias, -bound, bound);
}

}  // namespace lockstep::nn::init
