#include "lockstep/nn/init.h"

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
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
