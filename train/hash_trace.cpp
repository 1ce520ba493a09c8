#include "lockstep/train/hash_trace.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/sha256.h"

namespace lockstep::training {
namespace {

std::string hash_of(const Tensor& tensor) {
  if (!tensor.defined()) return "none";
  const Tensor value = as_contiguous(move_values(tensor.detach(), Device()));
  Sha256 hash;
  const LibraryAccess access;
  hash.update(value.raw_data(), value.nbytes());
  return to_hex(hash.finish()).substr(0, 16);
}

}  // namespace

HashTrace::HashTrace(const std::string& path, const std::string& settings, bool appends) : path_(path) {
  if (path_.empty()) return;
  file_ = LineFile(path_, "hash trace", appends);
  file_.write(nlohmann::ordered_json{{"run", settings}}.dump());
}

void HashTrace::step(std::int64_t step, const Tensor& loss, nn::Module& module) {
  if (path_.empty()) return;
  nlohmann::ordered_json line{{"step", step}, {"loss_hex", fmt::format("{:a}", loss.item<double>())}};
  nlohmann::ordered_json& gradients = line["gradients"] = nlohmann::ordered_json::object();
  for (const nn::NamedTensor& parameter : module.named_parameters())
    gradients[parameter.name] = hash_of(parameter.tensor.grad());
  nlohmann::ordered_json& weights = line["weights"] = nlohmann::ordered_json::object();
  for (const nn::NamedTensor& each : module.state()) weights[each.name] = hash_of(each.tensor);
  file_.write(line.dump());
  LOCKSTEP_CHECK(file_.error() == 0, "the hash trace '{}' could not be written: {}", path_,
                 std::strerror(file_.error()));
  LOCKSTEP_CHECK(!file_.is_lost(), "the hash trace '{}' was removed or renamed while it was written", path_);
}

}  // namespace lockstep::training
