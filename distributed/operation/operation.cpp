#include "lockstep/distributed/operation/operation.h"

#include "lockstep/core/check.h"

namespace lockstep::distributed {

std::string_view name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
  }
  return "unknown";
}

std::string_view name(OperationKind kind) {
  switch (kind) {
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::all_reduce_tree:
      return "all_reduce_tree";
    case OperationKind::reduce:
      return "reduce";
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::gather:
      return "gather";
    case OperationKind::scatter:
      return "scatter";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
    case OperationKind::all_to_all:
      return "all_to_all";
    case OperationKind::all_gather_uneven:
      return "all_gather_uneven";
    case OperationKind::all_to_all_uneven:
      return "all_to_all_uneven";
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::send:
      return "send";
    case OperationKind::recv:
      return "recv";
    case OperationKind::exchange:
      return "exchange";
  }
  return "unknown";
}

namespace {

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

/// FNV-1a over whole words, then mixed, so that close inputs give far results.
class Hash {
 public:
  Hash& add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3ull;
    value_ ^= value_ >> 29;
    return *this;
  }
  std::uint64_t value() const { return (value_ ^ (value_ >> 32)) * 0x9e3779b97f4a7c15ull; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace

const Tensor& agreed_tensor(const Operation& operation) {
  // Of a rooted operation's two tensors, the one that every rank has; it is also the one of a single block.
  switch (operation.kind) {
    case OperationKind::all_reduce_tree:
    case OperationKind::scatter:
    case OperationKind::recv:
      return operation.output;
    default:
      return operation.input;
  }
}

bool scatters_a_list(const Operation& operation) {
  return operation.kind == OperationKind::reduce_scatter && !operation.inputs.empty();
}

std::uint64_t fingerprint(const Operation& operation) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(operation.kind));
  hash.add(static_cast<std::uint64_t>(operation.peer + 1));
  if (reduces(operation.kind)) hash.add(static_cast<std::uint64_t>(operation.reduce) + 1);
  if (operation.shards > 0) hash.add(static_cast<std::uint64_t>(operation.shards));
  if (const Tensor& tensor = agreed_tensor(operation); tensor.defined()) {
    hash.add(static_cast<std::uint64_t>(tensor.dtype()));
    if (scatters_a_list(operation)) {
      for (const Tensor& block : operation.inputs) hash.add(static_cast<std::uint64_t>(block.numel()));
    } else if (!is_uneven(operation.kind)) {
      hash.add(static_cast<std::uint64_t>(tensor.dim()));
      for (const std::int64_t size : tensor.sizes()) hash.add(static_cast<std::uint64_t>(size));
    }
  }
  hash.add(operation.label.hash());
  hash.add(static_cast<std::uint64_t>(operation.checked_step) + 1);
  return hash.value();
}

OperationInfo info_of(const Operation& operation) {
  const Tensor& tensor = agreed_tensor(operation);
  OperationInfo info;
  info.kind = operation.kind;
  info.reduce = operation.reduce;
  info.peer = operation.peer;
  info.number = operation.number;
  info.step = operation.step;
  info.label = operation.label;
  info.has_tensor = tensor.defined();
  if (tensor.defined()) {
    info.dtype = tensor.dtype();
    info.sizes = tensor.sizes();
  }
  return info;
}

std::string describe(const OperationInfo& info) {
  std::string inside;
  const auto append = [&](const std::string& part) { inside += (inside.empty() ? "" : ", ") + part; };
  if (info.has_tensor) append(fmt::format("{} {}", name(info.dtype), to_string(info.sizes)));
  if (reduces(info.kind)) append(std::string(name(info.reduce)));
  if (info.peer >= 0) {
    const char* role = info.kind == OperationKind::send   ? "to rank"
                       : info.kind == OperationKind::recv ? "from rank"
                       : is_point_to_point(info.kind)     ? "with rank"
                                                          : "root";
    append(fmt::format("{} {}", role, info.peer));
  }
  if (!info.label.empty()) inside += (inside.empty() ? "" : "; ") + std::string(info.label.text());
  return fmt::format("{} #{}{}", name(info.kind), info.number, inside.empty() ? "" : " (" + inside + ")");
}

std::string describe(const Operation& operation) {
  return describe(info_of(operation));
}

}  // namespace lockstep::distributed
