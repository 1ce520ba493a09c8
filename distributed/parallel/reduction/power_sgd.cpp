#include "lockstep/distributed/parallel/reduction/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"

namespace lockstep::distributed {
namespace {

// Uniform on [-1, 1): the same values on every rank.
class Noise {
 public:
  explicit Noise(philox::Key key) : key_(key) {}
  double next() { return 2.0 * static_cast<double>(philox::to_uniform(philox::word_at(key_, element_++))) - 1.0; }

 private:
  philox::Key key_;
  std::uint64_t element_ = 0;
};

// Makes the columns of p, [n, r] row-major, orthonormal (Gram and Schmidt, each projection done twice). Columns that
// depend on those before them become random ones.
void orthogonalize(std::vector<double>& p, std::int64_t n, std::int64_t r, Noise noise) {
  const auto at = [&](std::int64_t row, std::int64_t column) -> double& {
    return p[static_cast<std::size_t>(row * r + column)];
  };
  const auto dot = [&](std::int64_t a, std::int64_t b) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) sum += at(i, a) * at(i, b);
    return sum;
  };
  constexpr double kDependent = 1e-6;  // of the column's length; about what float32 resolves
  for (std::int64_t j = 0; j < r; ++j)
    for (int attempt = 0;; ++attempt) {
      const double before = std::sqrt(dot(j, j));
      for (int pass = 0; pass < 2; ++pass)
        for (std::int64_t k = 0; k < j; ++k) {
          const double along = dot(k, j);
          for (std::int64_t i = 0; i < n; ++i) at(i, j) -= along * at(i, k);
        }
      const double after = std::sqrt(dot(j, j));
      if (after > kDependent * before && after > 0.0) {
        for (std::int64_t i = 0; i < n; ++i) at(i, j) /= after;
        break;
      }
      LOCKSTEP_ASSERT(attempt < 100, "no direction is left for column {} of {} x {}", j, n, r);
      for (std::int64_t i = 0; i < n; ++i) at(i, j) = noise.next();
    }
}

bool all_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

class PowerSgd final : public CommunicationHook {
 public:
  explicit PowerSgd(PowerSgdOptions options) : options_(std::move(options)) {
    LOCKSTEP_CHECK(options_.rank >= 1, "[power_sgd] rank is {}; expected at least 1", options_.rank);
    LOCKSTEP_CHECK(options_.start_iteration >= 0, "[power_sgd] start_iteration is {}; expected at least 0",
                   options_.start_iteration);
    LOCKSTEP_CHECK(options_.min_compression >= 0.0, "[power_sgd] min_compression is {}; expected at least 0",
                   options_.min_compression);
  }

  std::string name() const override { return "powersgd"; }

  WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
    if (buckets_.size() < bucket.count) {
      State first;
      first.steps = loaded_steps_;
      buckets_.resize(bucket.count, first);
    }
    State& state = buckets_[bucket.index];
    if (state.steps++ < options_.start_iteration) return group.all_reduce(bucket.flat, ReduceOp::avg);
    const NoGradGuard no_grad;
    if (!state.layout_known) lay_out(state, bucket);
    if (state.matrices.empty()) return group.all_reduce(bucket.flat, ReduceOp::avg);

    rescale_errors(state);
    state.flat = bucket.flat;
    const bool half = element_size(bucket.flat.dtype()) < 4;
    state.values = half ? cast_values(bucket.flat, kFloat32) : bucket.flat;
    for (std::size_t i = 0; i < state.matrices.size(); ++i) {
      Matrix& matrix = state.matrices[i];
      if (options_.error_feedback) of(state.values, matrix).add_(matrix.error);
      if (!options_.warm_start) draw_start(state, i, bucket.index);
      copy_values(of(state.values, matrix).matmul(q_of(state, matrix)), p_of(state, matrix));
    }
    for (const Vector& vector : state.vectors)
      copy_values(state.values.as_strided({vector.numel}, {1}, vector.offset),
                  state.first.as_strided({vector.numel}, {1}, vector.sent_at));
    ProcessGroup* const ranks = &group;
    return continue_with(group.all_reduce(state.first, ReduceOp::avg),
                         [this, &state, ranks, index = bucket.index] { return second_half(state, *ranks, index); });
  }

  // By parameters' names: buckets may be others when the training goes on.
  std::vector<nn::NamedTensor> state() const override {
    const std::int64_t steps = buckets_.empty() ? loaded_steps_ : buckets_.front().steps;
    if (steps == 0) return {};
    std::vector<nn::NamedTensor> all{{kSteps, tensor({steps})}};
    for (const auto& [name, values] : loaded_) all.push_back({name, values});
    for (const State& state : buckets_)
      for (const Matrix& matrix : state.matrices) {
        all.push_back({kStart + matrix.name, copy_contiguous(q_of(state, matrix))});
        all.push_back({kScale + matrix.name, tensor({state.scale})});
        if (options_.error_feedback) all.push_back({kError + matrix.name, copy_contiguous(matrix.error)});
      }
    return all;
  }

  void load_state(const std::vector<nn::NamedTensor>& state) override {
    LOCKSTEP_CHECK(buckets_.empty(), "[power_sgd] load_state() was called after the first step; call it before");
    loaded_.clear();
    for (const nn::NamedTensor& each : state) loaded_[each.name] = each.tensor;
    const auto steps = loaded_.extract(kSteps);
    loaded_steps_ = steps.empty() ? 0 : steps.mapped().item<std::int64_t>();
  }

 private:
  // Of what is in state().
  static constexpr const char* kSteps = "steps";
  static constexpr const char* kStart = "start.";
  static constexpr const char* kScale = "scale.";
  static constexpr const char* kError = "error.";

  struct Matrix {
    std::string name;
    std::int64_t offset, n, m, r;  // in the bucket
    std::int64_t p_at, q_at;       // in `first` and `second`
    Tensor error;
    Tensor next_error;  // until it is known that the step's gradients are finite
  };
  struct Vector {
    std::int64_t offset, numel, sent_at;
  };
  struct State {
    std::int64_t steps = 0;
    bool layout_known = false;
    double scale = 1.0;  // of the errors
    std::vector<Matrix> matrices;
    std::vector<Vector> vectors;
    Tensor first;   // travels first: the vectors, then P of each matrix
    Tensor second;  // then Q of each matrix; stays for the next step
    Tensor flat;    // of the step under way
    Tensor values;  // `flat`, in float32 at least
  };

  static Tensor of(const Tensor& flat, const Matrix& matrix) {
    return flat.as_strided({matrix.n, matrix.m}, {matrix.m, 1}, matrix.offset);
  }
  static Tensor p_of(const State& state, const Matrix& matrix) {
    return state.first.as_strided({matrix.n, matrix.r}, {matrix.r, 1}, matrix.p_at);
  }
  static Tensor q_of(const State& state, const Matrix& matrix) {
    return state.second.as_strided({matrix.m, matrix.r}, {matrix.r, 1}, matrix.q_at);
  }

  void lay_out(State& state, const GradientBucket& bucket) {
    std::int64_t first = 0;
    std::int64_t second = 0;
    for (const nn::NamedTensor& gradient : bucket.gradients) {
      const Tensor& tensor = gradient.tensor;
      const std::int64_t offset = tensor.offset() - bucket.flat.offset();
      const std::int64_t n = tensor.dim() > 0 ? tensor.size(0) : 1;
      const std::int64_t m = n > 0 ? tensor.numel() / n : 0;
      const std::int64_t r = std::min({options_.rank, n, m});
      const bool shrinks =
          static_cast<double>(r * (n + m)) * options_.min_compression <= static_cast<double>(tensor.numel());
      if (tensor.dim() < 2 || r == 0 || !shrinks) {
        if (tensor.numel() > 0) state.vectors.push_back({offset, tensor.numel(), first});
        first += tensor.numel();
      } else {
        state.matrices.push_back({gradient.name, offset, n, m, r, first, second, {}, {}});
        first += n * r;
        second += m * r;
      }
    }
    const TensorOptions options{.dtype = element_size(bucket.flat.dtype()) < 4 ? kFloat32 : bucket.flat.dtype(),
                                .device = bucket.flat.device()};
    state.first = zeros({first}, options);
    state.second = zeros({second}, options);
    for (std::size_t i = 0; i < state.matrices.size(); ++i) {
      Matrix& matrix = state.matrices[i];
      if (options_.error_feedback) matrix.error = zeros({matrix.n, matrix.m}, options);
      draw_start(state, i, bucket.index);
      take_loaded(state, matrix);
    }
    state.layout_known = true;
  }

  void take_loaded(State& state, const Matrix& matrix) {
    const auto take = [&](const std::string& name, const Tensor& target) {
      const auto found = loaded_.find(name);
      if (found == loaded_.end()) return;
      LOCKSTEP_CHECK(found->second.sizes() == target.sizes() && found->second.dtype() == target.dtype(),
                     "[power_sgd] the state's '{}' is {} {}, expected {} {}; go on with the model and the rank that it "
                     "was saved with",
                     name, lockstep::name(found->second.dtype()), to_string(found->second.sizes()),
                     lockstep::name(target.dtype()), to_string(target.sizes()));
      copy_values(found->second, target);
      loaded_.erase(found);
    };
    take(kStart + matrix.name, q_of(state, matrix));
    if (options_.error_feedback) take(kError + matrix.name, matrix.error);
    if (const auto scale = loaded_.extract(kScale + matrix.name); !scale.empty())
      state.scale = scale.mapped().item<double>();
  }

  void rescale_errors(State& state) const {
    const double scale = options_.loss_scale ? options_.loss_scale() : 1.0;
    LOCKSTEP_CHECK(std::isfinite(scale) && scale > 0.0, "[power_sgd] the loss scale is {}; expected it above 0", scale);
    if (scale == state.scale) return;
    if (options_.error_feedback)
      for (Matrix& matrix : state.matrices) matrix.error.mul_(scale / state.scale);
    state.scale = scale;
  }

  philox::Key key(const State& state, std::size_t bucket, std::size_t matrix, std::uint32_t use) const {
    return random_key(options_.seed, RandomStream::general, static_cast<std::uint64_t>(state.steps),
                      static_cast<std::uint32_t>(bucket), static_cast<std::uint32_t>(2 * matrix) + use);
  }

  void draw_start(State& state, std::size_t matrix, std::size_t bucket) {
    const Matrix& shape = state.matrices[matrix];
    Noise noise(key(state, bucket, matrix, 0));
    std::vector<double> values(static_cast<std::size_t>(shape.m * shape.r));
    for (double& value : values) value = noise.next();
    copy_values(tensor(values).as_strided({shape.m, shape.r}, {shape.r, 1}, 0), q_of(state, shape));
  }

  WorkPtr second_half(State& state, ProcessGroup& group, std::size_t bucket) {
    const NoGradGuard no_grad;
    const std::vector<double> sent = state.first.to_vector<double>();
    if (all_finite(sent)) {
      for (std::size_t i = 0; i < state.matrices.size(); ++i) {
        Matrix& matrix = state.matrices[i];
        const Tensor p = p_of(state, matrix);
        const auto begin = sent.begin() + matrix.p_at;
        std::vector<double> columns(begin, begin + matrix.n * matrix.r);
        orthogonalize(columns, matrix.n, matrix.r, Noise(key(state, bucket, i, 1)));
        copy_values(tensor(columns).as_strided({matrix.n, matrix.r}, {matrix.r, 1}, 0), p);
        const Tensor own = of(state.values, matrix);
        const Tensor q = own.t().matmul(p);
        if (options_.error_feedback) matrix.next_error = sub(own, p.matmul(q.t()));
        copy_values(q, q_of(state, matrix));
      }
    } else {
      fill_values(state.second, std::numeric_limits<double>::quiet_NaN());  // so that every rank hears of it
    }
    return continue_with(group.all_reduce(state.second, ReduceOp::avg), [this, &state, bucket]() -> WorkPtr {
      write_result(state, bucket);
      return nullptr;
    });
  }

  void write_result(State& state, std::size_t bucket) {
    const NoGradGuard no_grad;
    const bool finite = all_finite(state.second.to_vector<double>());
    for (std::size_t i = 0; i < state.matrices.size(); ++i) {
      Matrix& matrix = state.matrices[i];
      const Tensor out = of(state.flat, matrix);
      if (finite) {
        copy_values(p_of(state, matrix).matmul(q_of(state, matrix).t()), out);
        if (options_.error_feedback) matrix.error = matrix.next_error;
      } else {
        fill_values(out, std::numeric_limits<double>::quiet_NaN());
        draw_start(state, i, bucket);
      }
      matrix.next_error = {};
    }
    for (const Vector& vector : state.vectors)
      copy_values(state.first.as_strided({vector.numel}, {1}, vector.sent_at),
                  state.flat.as_strided({vector.numel}, {1}, vector.offset));
    state.flat = {};
    state.values = {};
  }

  PowerSgdOptions options_;
  std::vector<State> buckets_;
  std::map<std::string, Tensor> loaded_;  // from a checkpoint, until the bucket of its parameter comes
  std::int64_t loaded_steps_ = 0;
};

}  // namespace

CommunicationHookPtr power_sgd(PowerSgdOptions options) {
  return std::make_shared<PowerSgd>(std::move(options));
}

}  // namespace lockstep::distributed
