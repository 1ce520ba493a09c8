#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/core/tensor.h"

/// Starting values of parameters, written in place and never recorded. The names and distributions are those of
/// torch.nn.init; the draws come from RandomStream::init, so they depend on manual_seed() and the order of
/// construction alone.
namespace lockstep::nn::init {

/// Which side of a weight sets its scale: the inputs or the outputs.
enum class Fan { in, out };

/// Options of kaiming_uniform_() and kaiming_normal_().
struct KaimingOptions {
  double negative_slope = 0.0;  ///< of the leaky ReLU that follows; 0: of a ReLU
  Fan fan = Fan::in;            ///< keep the variance of activations (in) or of gradients (out)
};

/// Uniform on [low, high).
void uniform_(const Tensor& tensor, double low = 0.0, double high = 1.0);
/// Normal, with standard deviation `std`. Throws Error for one below 0.
void normal_(const Tensor& tensor, double mean = 0.0, double std = 1.0);
/// All elements the same.
void constant_(const Tensor& tensor, double value);
void zeros_(const Tensor& tensor);
void ones_(const Tensor& tensor);
/// 1 on the diagonal, 0 elsewhere. Throws Error for other than two dimensions.
void eye_(const Tensor& tensor);

/// He, Zhang, Ren and Sun, "Delving deep into rectifiers" (2015). Throws Error for fewer than two dimensions.
void kaiming_uniform_(const Tensor& tensor, KaimingOptions options = {});
void kaiming_normal_(const Tensor& tensor, KaimingOptions options = {});
/// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010). Throws Error
/// for fewer than two dimensions.
void xavier_uniform_(const Tensor& tensor, double gain = 1.0);
void xavier_normal_(const Tensor& tensor, double gain = 1.0);

/// Normal with the given mean and standard deviation, but nothing outside [low, high]. Throws Error unless std is
/// finite and not below 0, and some of [low, high] is within four deviations of the mean.
void trunc_normal_(const Tensor& tensor, double mean = 0.0, double std = 1.0, double low = -2.0, double high = 2.0);
/// Rows, or columns where there are fewer, that are orthogonal and of length gain; what follows the first dimension
/// counts as columns. Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep
/// linear neural networks" (2013). Throws Error for fewer than two dimensions.
void orthogonal_(const Tensor& tensor, double gain = 1.0);

/// A convolution's weight [out, in, kernel...] that passes channels on: 1 in the middle of the kernel from each channel
/// to the one of its number in each of the groups, 0 elsewhere. Throws Error unless it has three to five dimensions and
/// groups divides out.
void dirac_(const Tensor& tensor, std::int64_t groups = 1);

/// The factor by which a function shrinks the deviation of what passes through it, for xavier_uniform_() and others:
/// of "linear", "conv1d" (and its kin), "sigmoid" 1, "tanh" 5 / 3, "relu" sqrt(2), "leaky_relu"
/// sqrt(2 / (1 + param^2)), "selu" 3 / 4. Throws Error for another name.
double calculate_gain(std::string_view nonlinearity, double param = 0.01);

/// Inputs that one element of a layer's output sums over, and outputs that one input feeds, for a weight
/// [out, in, kernel...].
std::int64_t fan_in(const Tensor& weight);
std::int64_t fan_out(const Tensor& weight);

/// What PyTorch's Linear and Conv layers start from: uniform within 1 / sqrt(fan_in) for the weight (kaiming_uniform_
/// with slope sqrt(5)) and for the bias, which may be undefined.
void layer_default_(const Tensor& weight, const Tensor& bias);

}  // namespace lockstep::nn::init
