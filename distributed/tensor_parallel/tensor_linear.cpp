// Column- and row-parallel linear layers.

#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"

namespace lockstep::distributed {
namespace {

/// [*, columns] as a contiguous matrix.
Tensor as_matrix(const Tensor& t) {
  const Tensor dense = as_contiguous(t.detach());
  const std::int64_t columns = t.size(-1);
  return dense.as_strided({columns == 0 ? 0 : t.numel() / columns, columns}, {columns, 1}, dense.offset());
}

Tensor columns_of(const Tensor& matrix, std::int64_t begin, std::int64_t count) {
  return as_contiguous(matrix.as_strided({matrix.size(0), count}, {matrix.size(1), 1}, matrix.offset() + begin));
}

void put_columns(const Tensor& values, const Tensor& matrix, std::int64_t begin) {
  copy_values(values, matrix.as_strided(values.sizes(), {matrix.size(1), 1}, matrix.offset() + begin));
}

Tensor with_last(const Tensor& matrix, Shape sizes) {
  sizes[sizes.dim() - 1] = matrix.size(1);
  return matrix.as_strided(sizes, contiguous_strides(sizes), matrix.offset());
}

Tensor bias_gradient(const Tensor& grad) {
  return sum(grad, {0});
}

void check(const Tensor& x, const Tensor& weight, const Tensor& bias, const char* what) {
  LOCKSTEP_CHECK(x.defined() && weight.defined() && weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
                 "[{}] expected x [*, in] and a weight [out, in], found {} and {}", what,
                 x.defined() ? to_string(x.sizes()) : "nothing",
                 weight.defined() ? to_string(weight.sizes()) : "nothing");
  LOCKSTEP_CHECK(!bias.defined() || bias.sizes() == Shape({weight.size(0)}), "[{}] expected a bias [{}], found {}",
                 what, weight.size(0), to_string(bias.sizes()));
}

/// How the outputs of this rank are cut: those of its shards, one after the other, in each of the parts.
class Pieces {
 public:
  Pieces(std::int64_t outputs, std::int64_t parts, const TensorShards& shards, const char* what)
      : height_(outputs / parts), parts_(parts), runs_(shards.own_runs(height_, what)) {
    LOCKSTEP_CHECK(outputs % parts == 0, "[{}] {} outputs are no {} equal parts", what, outputs, parts);
  }

  std::int64_t count() const { return parts_ * runs_.count(); }
  std::int64_t shard_of(std::int64_t piece) const { return piece % runs_.count(); }
  SizeRun run(std::int64_t piece) const {
    SizeRun run = runs_.run(shard_of(piece));
    run.begin += piece / runs_.count() * height_;
    return run;
  }

 private:
  std::int64_t height_, parts_;
  DividedSize runs_;
};

class ColumnParallelLinearBackward final : public Node {
 public:
  const char* name() const override { return "ColumnParallelLinearBackward"; }
  bool gradients_are_apart() const override { return !tokens; }  // all tokens would be gathered twice

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    const Tensor& weight = saved(1);
    TensorShards::Pending input = tokens ? shards->begin_all_tokens(saved(0)) : TensorShards::Pending(saved(0));
    const std::int64_t outputs = weight.size(0);
    const Pieces pieces(outputs, parts, *shards, "column_parallel_linear");
    Shape of_outputs = sizes;
    of_outputs[sizes.dim() - 1] = outputs;
    // Undefined means zero here, but the other ranks wait for this one's part.
    const Tensor grad = as_matrix(grads[0].defined() ? grads[0] : zeros(of_outputs, options_of(weight)));
    std::vector<Tensor> of_pieces, of_x(static_cast<std::size_t>(shards->mine().size()));
    for (std::int64_t piece = 0; piece < pieces.count(); ++piece) {
      const SizeRun run = pieces.run(piece);
      of_pieces.push_back(columns_of(grad, run.begin, run.size));
      if (!needs_grad(0)) continue;
      Tensor& sum = of_x[static_cast<std::size_t>(pieces.shard_of(piece))];
      const Tensor more = matmul_values(of_pieces.back(), rows(weight, run.begin, run.size));
      sum = sum.defined() ? add(sum, more) : more;
    }
    TensorShards::Pending sum{Tensor()};
    if (needs_grad(0)) {
      for (Tensor& each : of_x) each = with_last(each, sizes);
      sum = tokens ? shards->begin_sum_of_own_tokens(std::move(of_x)) : shards->begin_sum(std::move(of_x));
    }
    // While that is on its way.
    if (needs_grad(1)) result[1] = empty(weight.sizes(), options_of(weight));
    if (has_bias && needs_grad(2)) result[2] = empty({outputs}, options_of(weight));
    const Tensor matrix = as_matrix(input.wait());
    for (std::int64_t piece = 0; piece < pieces.count(); ++piece) {
      const Tensor& part = of_pieces[static_cast<std::size_t>(piece)];
      const SizeRun run = pieces.run(piece);
      if (result[1].defined())
        copy_values(matmul_values(transposed_view(part), matrix), rows(result[1], run.begin, run.size));
      if (result[2].defined()) copy_values(bias_gradient(part), rows(result[2], run.begin, run.size));
    }
    if (needs_grad(0)) result[0] = sum.wait();
    return result;
  }

  Shape sizes;  // of all tokens of x
  bool tokens = false;
  const TensorShards* shards = nullptr;
  std::int64_t parts = 1;
  bool has_bias = false;
};

class RowParallelLinearBackward final : public Node {
 public:
  const char* name() const override { return "RowParallelLinearBackward"; }
  bool gradients_are_apart() const override { return !tokens; }  // all tokens would be gathered twice

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    if (!grads[0].defined()) return result;  // on all ranks alike
    const Tensor &x = saved(0), &weight = saved(1);
    const Tensor grad = as_matrix(tokens ? shards->all_tokens(grads[0]) : grads[0]), matrix = as_matrix(x),
                 all = as_contiguous(weight.detach());
    const DividedSize runs = shards->own_runs(weight.size(1), "row_parallel_linear");
    if (needs_grad(0)) result[0] = empty(x.sizes(), options_of(x));
    if (needs_grad(1)) result[1] = empty(weight.sizes(), options_of(weight));
    for (std::int64_t s = 0; s < runs.count(); ++s) {
      const auto [begin, width] = runs.run(s);
      if (needs_grad(0)) put_columns(matmul_values(grad, columns_of(all, begin, width)), as_matrix(result[0]), begin);
      if (needs_grad(1))
        put_columns(matmul_values(transposed_view(grad), columns_of(matrix, begin, width)), result[1], begin);
    }
    if (has_bias && needs_grad(2)) result[2] = bias_gradient(grad);
    return result;
  }

  bool tokens = false;
  const TensorShards* shards = nullptr;
  bool has_bias = false;
};

Tensor column_parallel(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards,
                       std::int64_t parts, bool tokens) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return column_parallel(t..., shards, parts, tokens); }, x, weight,
                            bias);
  check(x, weight, bias, "column_parallel_linear");
  const Pieces pieces(weight.size(0), parts, shards, "column_parallel_linear");
  const Tensor input = tokens ? shards.all_tokens(x) : x;
  const Tensor matrix = as_matrix(input), all = as_contiguous(weight.detach());
  const Tensor flat = empty({matrix.size(0), weight.size(0)}, options_of(x));
  {
    const NoGradGuard values_only;
    for (std::int64_t piece = 0; piece < pieces.count(); ++piece) {
      const auto [begin, height] = pieces.run(piece);
      put_columns(linear(matrix, rows(all, begin, height), bias.defined() ? rows(bias.detach(), begin, height) : bias),
                  flat, begin);
    }
  }
  const Tensor out = with_last(flat, input.sizes());
  if (auto* node = record<ColumnParallelLinearBackward>(out, {&x, &weight, &bias})) {
    node->save(x, weight);
    node->shards = &shards;
    node->parts = parts;
    node->has_bias = bias.defined();
    node->tokens = tokens;
    node->sizes = input.sizes();
  }
  return out;
}

Tensor row_parallel(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards,
                    bool tokens) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return row_parallel(t..., shards, tokens); }, x, weight, bias);
  check(x, weight, bias, "row_parallel_linear");
  const DividedSize runs = shards.own_runs(weight.size(1), "row_parallel_linear");
  const Tensor matrix = as_matrix(x), all = as_contiguous(weight.detach());
  Tensor out;
  {
    const NoGradGuard values_only;
    std::vector<Tensor> products;
    for (std::int64_t s = 0; s < runs.count(); ++s) {
      const auto [begin, width] = runs.run(s);
      products.push_back(with_last(linear(columns_of(matrix, begin, width), columns_of(all, begin, width)), x.sizes()));
    }
    out = tokens ? shards.begin_sum_of_own_tokens(std::move(products)).wait() : shards.sum(std::move(products));
    if (bias.defined()) out = add(out, bias.detach());
  }
  if (auto* node = record<RowParallelLinearBackward>(out, {&x, &weight, &bias})) {
    node->save(x, weight);
    node->tokens = tokens;
    node->shards = &shards;
    node->has_bias = bias.defined();
  }
  return out;
}

}  // namespace

Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards,
                              std::int64_t parts) {
  return column_parallel(x, weight, bias, shards, parts, false);
}

Tensor column_parallel_linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                        const TensorShards& shards, std::int64_t parts) {
  return column_parallel(x, weight, bias, shards, parts, true);
}

Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards) {
  return row_parallel(x, weight, bias, shards, false);
}

Tensor row_parallel_linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                     const TensorShards& shards) {
  return row_parallel(x, weight, bias, shards, true);
}

}  // namespace lockstep::distributed
