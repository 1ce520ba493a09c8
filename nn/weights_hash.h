#pragma once

#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// SHA-256, in hexadecimal, over the bytes of all parameters in the order of their names. Equal for equal weights of
/// equal dtype wherever they live: the fingerprint by which lockstep runs are compared.
std::string weights_sha256(const Module& module);
/// The same over parameters and buffers: running statistics of batch norm too.
std::string state_sha256(const Module& module);

}  // namespace lockstep::nn
