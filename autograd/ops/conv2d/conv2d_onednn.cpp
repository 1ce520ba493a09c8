// Convolution by oneDNN, float32. The batch is cut into blocks of a few images by the geometry alone; each block is
// converted to oneDNN's own layouts and back while it lies in the cache, and computed by one single-threaded call.

#include <dnnl.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/one_openmp_thread.h"
#include "lockstep/core/cpu/signals_held.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

using dnnl::memory;
using Format = memory::format_tag;

constexpr std::int64_t kMaxImages = 4;  // to one call: more gain nothing, and leave the cache
constexpr std::size_t kMaxPlans = 128;

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

enum class Kind : unsigned char { forward, backward_data, backward_weight };

struct Key {
  Kind kind;
  bool bias;
  Conv2dGeometry geometry;  // n: images of one call
  friend bool operator==(const Key&, const Key&) = default;
};

memory::desc plain(const memory::dims& sizes, Format format) {
  return {sizes, memory::data_type::f32, format};
}

// A tensor of the convolution: the layout of our tensors, the one that oneDNN wants, and the ways between them.
struct Layout {
  memory::desc plain, wanted;
  dnnl::primitive convert, restore;

  bool same() const { return plain == wanted; }
  void set_wanted(const memory::desc& layout) {
    wanted = layout;
    if (same()) return;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::library);
    convert = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), plain, engine(), wanted, attributes));
    restore = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), wanted, engine(), plain, attributes));
  }
};

// One convolution primitive. Immutable once made, so shared between threads.
struct Plan {
  dnnl::primitive convolution;
  Layout source, weights, destination;
  memory::desc bias, scratchpad;
};

std::shared_ptr<const Plan> make_plan(const Key& key) {
  const Conv2dGeometry& g = key.geometry;
  const cpu::OneOpenmpThread guard;
  auto plan = std::make_shared<Plan>();
  const memory::dims source = {g.n, g.in, g.h, g.w}, destination = {g.n, g.out, g.oh, g.ow};
  const bool grouped = g.groups > 1;
  const memory::dims weights =
      grouped ? memory::dims{g.groups, g.group_out(), g.group_in(), g.kh, g.kw} : memory::dims{g.out, g.in, g.kh, g.kw};
  const memory::dims strides = {g.stride.h, g.stride.w}, dilates = {g.dilation.h - 1, g.dilation.w - 1};
  const auto end_padding = [](std::int64_t size, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                              std::int64_t dilation, std::int64_t begin) {
    return (out - 1) * stride + dilation * (kernel - 1) + 1 - size - begin;
  };
  const memory::dims before = {g.padding.h, g.padding.w};
  const memory::dims after = {end_padding(g.h, g.oh, g.kh, g.stride.h, g.dilation.h, g.padding.h),
                              end_padding(g.w, g.ow, g.kw, g.stride.w, g.dilation.w, g.padding.w)};
  plan->source.plain = plain(source, Format::nchw);
  plan->weights.plain = plain(weights, grouped ? Format::goihw : Format::oihw);
  plan->destination.plain = plain(destination, Format::nchw);
  plan->bias = key.bias ? plain({g.out}, Format::a) : memory::desc();

  const memory::desc any_source = plain(source, Format::any), any_weights = plain(weights, Format::any);
  const memory::desc any_destination = plain(destination, Format::any);
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  using Forward = dnnl::convolution_forward;
  const Forward::desc forward(dnnl::prop_kind::forward_training, algorithm, any_source, any_weights, plan->bias,
                              any_destination, strides, dilates, before, after);
  const Forward::primitive_desc hint(forward, attributes, engine());
  const auto finish = [&](dnnl::primitive primitive, const auto& description, const memory::desc& wanted_source,
                          const memory::desc& wanted_weights, const memory::desc& wanted_destination) {
    plan->convolution = std::move(primitive);
    plan->scratchpad = description.scratchpad_desc();
    plan->source.set_wanted(wanted_source);
    plan->weights.set_wanted(wanted_weights);
    plan->destination.set_wanted(wanted_destination);
  };
  if (key.kind == Kind::forward) {
    finish(Forward(hint), hint, hint.src_desc(), hint.weights_desc(), hint.dst_desc());
  } else if (key.kind == Kind::backward_data) {
    using Data = dnnl::convolution_backward_data;
    const Data::desc data(algorithm, any_source, any_weights, any_destination, strides, dilates, before, after);
    const Data::primitive_desc description(data, attributes, engine(), hint);
    finish(Data(description), description, description.diff_src_desc(), description.weights_desc(),
           description.diff_dst_desc());
  } else {
    using Weights = dnnl::convolution_backward_weights;
    const Weights::desc weight(algorithm, any_source, any_weights, any_destination, strides, dilates, before, after);
    const Weights::primitive_desc description(weight, attributes, engine(), hint);
    finish(Weights(description), description, description.src_desc(), description.diff_weights_desc(),
           description.diff_dst_desc());
  }
  return plan;
}

// Making a plan compiles code (milliseconds), so plans are kept, most recently used first.
std::shared_ptr<const Plan> find_plan(Kind kind, const Conv2dGeometry& g, std::int64_t images, bool bias = false) {
  Key key{kind, bias, g};
  key.geometry.n = images;
  static std::mutex mutex;
  static std::list<std::pair<Key, std::shared_ptr<const Plan>>> plans;
  const std::lock_guard lock(mutex);
  for (auto it = plans.begin(); it != plans.end(); ++it) {
    if (!(it->first == key)) continue;
    plans.splice(plans.begin(), plans, it);
    return it->second;
  }
  plans.emplace_front(key, make_plan(key));
  if (plans.size() > kMaxPlans) plans.pop_back();
  return plans.front().second;
}

// Memory of our allocator, in a oneDNN layout.
class Scratch {
 public:
  explicit Scratch(const memory::desc& layout)
      : bytes_(empty({static_cast<std::int64_t>(layout.get_size())}, {.dtype = kUInt8})),
        memory_(layout, engine(), bytes_.raw_data()) {}
  memory& get() { return memory_; }
  float* data() const { return static_cast<float*>(bytes_.raw_data()); }

 private:
  Tensor bytes_;
  memory memory_;
};

// A tensor of one block of images in the wanted layout: the caller's own memory where the layouts agree.
class Operand {
 public:
  Operand(const Layout& layout, const float* values)
      : layout_(layout), plain_(layout.plain, engine(), const_cast<float*>(values)) {
    if (!layout.same()) converted_.emplace(layout.wanted);
  }
  memory& get() { return converted_ ? converted_->get() : plain_; }
  void convert(dnnl::stream& stream) {
    if (converted_) layout_.convert.execute(stream, {{DNNL_ARG_FROM, plain_}, {DNNL_ARG_TO, converted_->get()}});
  }
  void restore(dnnl::stream& stream) {
    if (converted_) layout_.restore.execute(stream, {{DNNL_ARG_FROM, converted_->get()}, {DNNL_ARG_TO, plain_}});
  }

 private:
  const Layout& layout_;
  memory plain_;
  std::optional<Scratch> converted_;
};

std::int64_t images_per_call(const Conv2dGeometry& g) {
  return std::min(kMaxImages, conv2d_blocks::images_per_block(g));
}

// Weights as the plan for a full block wants them, converted once for all blocks.
class SharedWeights {
 public:
  SharedWeights(const Plan& plan, const Tensor& weight)
      : layout_(plan.weights), weight_(weight), operand_(layout_, weight.data<float>()) {
    const cpu::OneOpenmpThread guard;
    const cpu::SignalsHeld held;
    dnnl::stream stream(engine());
    operand_.convert(stream);
    stream.wait();
  }
  // The weights for `plan`; a short block's plan may want another layout, made in `space`.
  memory& of(const Plan& plan, std::optional<Operand>& space, dnnl::stream& stream) {
    if (plan.weights.wanted == layout_.wanted) return operand_.get();
    space.emplace(plan.weights, weight_.data<float>());
    space->convert(stream);
    return space->get();
  }

 private:
  const Layout& layout_;
  const Tensor& weight_;
  Operand operand_;
};

// oneDNN's exceptions as ours.
template <typename Body>
void translate_errors(const char* what, Body&& body) {
  try {
    body();
  } catch (const dnnl::error& error) {
    detail::throw_error(fmt::format("[conv2d] oneDNN failed in {}: {} (status {})", what, error.what(),
                                    static_cast<int>(error.status)));
  }
}

// With a sink, `out` is not used.
void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, float* out, bool relu,
             const Conv2dSink* sink) {
  translate_errors("forward", [&] {
    const std::int64_t block = images_per_call(g);
    const auto full = find_plan(Kind::forward, g, block, bias.defined());
    SharedWeights weights(*full, weight);
    parallel_for(g.n, block, [&](std::int64_t begin, std::int64_t end) {
      const cpu::OneOpenmpThread guard;
      const cpu::SignalsHeld held;
      const auto plan = find_plan(Kind::forward, g, end - begin, bias.defined());
      dnnl::stream stream(engine());
      std::optional<Operand> own_weights;
      const std::int64_t image = g.out * g.oh * g.ow;
      const Tensor values = empty({sink ? (end - begin) * image : 0});
      float* result = sink ? values.data<float>() : out + begin * image;
      Operand source(plan->source, x.data<float>() + begin * g.in * g.h * g.w);
      Operand destination(plan->destination, result);
      Scratch scratchpad(plan->scratchpad);
      source.convert(stream);
      std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, source.get()},
                                                   {DNNL_ARG_WEIGHTS, weights.of(*plan, own_weights, stream)},
                                                   {DNNL_ARG_DST, destination.get()},
                                                   {DNNL_ARG_SCRATCHPAD, scratchpad.get()}};
      if (bias.defined()) arguments.insert({DNNL_ARG_BIAS, memory(plan->bias, engine(), bias.raw_data())});
      plan->convolution.execute(stream, arguments);
      destination.restore(stream);
      stream.wait();
      // Not oneDNN's relu, which makes a NaN and -0 what ours leaves.
      if (relu)
        for (std::int64_t i = 0; i < (end - begin) * image; ++i) result[i] = result[i] < 0.0f ? 0.0f : result[i];
      if (sink) (*sink)(begin, end - begin, result);
    });
  });
}

}  // namespace

void conv2d_forward_onednn(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& out, bool relu) {
  forward(g, x, weight, bias, out.data<float>(), relu, nullptr);
}

void conv2d_forward_onednn_to_sink(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                   const Conv2dSink& sink) {
  forward(g, x, weight, bias, nullptr, false, &sink);
}

void conv2d_backward_data_onednn(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                                 const Tensor& x_grad) {
  translate_errors("backward data", [&] {
    const std::int64_t block = images_per_call(g);
    const auto full = find_plan(Kind::backward_data, g, block);
    SharedWeights weights(*full, weight);
    parallel_for(g.n, block, [&](std::int64_t begin, std::int64_t end) {
      const cpu::OneOpenmpThread guard;
      const cpu::SignalsHeld held;
      const auto plan = find_plan(Kind::backward_data, g, end - begin);
      dnnl::stream stream(engine());
      std::optional<Operand> own_weights;
      Operand source(plan->source, x_grad.data<float>() + begin * g.in * g.h * g.w);
      Operand destination(plan->destination, grad.data<float>() + begin * g.out * g.oh * g.ow);
      Scratch scratchpad(plan->scratchpad);
      destination.convert(stream);
      plan->convolution.execute(stream, {{DNNL_ARG_DIFF_DST, destination.get()},
                                         {DNNL_ARG_WEIGHTS, weights.of(*plan, own_weights, stream)},
                                         {DNNL_ARG_DIFF_SRC, source.get()},
                                         {DNNL_ARG_SCRATCHPAD, scratchpad.get()}});
      source.restore(stream);
      stream.wait();
    });
  });
}

void conv2d_backward_weight_onednn(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                   const Tensor& weight_grad, const Tensor& bias_grad) {
  translate_errors("backward weights", [&] {
    const std::int64_t block = images_per_call(g), per_group = conv2d_blocks::images_per_group(g);
    const std::int64_t groups = conv2d_blocks::group_count(g), size = weight_grad.numel();
    const Tensor partial = zeros({groups, size + g.out});
    parallel_for(g.n, per_group, [&](std::int64_t begin, std::int64_t end) {
      const cpu::OneOpenmpThread guard;
      const cpu::SignalsHeld held;
      dnnl::stream stream(engine());
      const Tensor plain_weights = empty({size});
      float* sums = partial.data<float>() + begin / per_group * (size + g.out);
      for (std::int64_t first = begin; first < end; first += block) {
        const std::int64_t images = std::min(block, end - first);
        const float* d = grad.data<float>() + first * g.out * g.oh * g.ow;
        const auto plan = find_plan(Kind::backward_weight, g, images);
        Operand source(plan->source, x.data<float>() + first * g.in * g.h * g.w);
        Operand destination(plan->destination, d);
        Operand weights(plan->weights, plain_weights.data<float>());
        Scratch scratchpad(plan->scratchpad);
        source.convert(stream);
        destination.convert(stream);
        plan->convolution.execute(stream, {{DNNL_ARG_SRC, source.get()},
                                           {DNNL_ARG_DIFF_DST, destination.get()},
                                           {DNNL_ARG_DIFF_WEIGHTS, weights.get()},
                                           {DNNL_ARG_SCRATCHPAD, scratchpad.get()}});
        weights.restore(stream);
        stream.wait();
        for (std::int64_t i = 0; i < size; ++i) sums[i] += plain_weights.data<float>()[i];
        if (bias_grad.defined())
          for (std::int64_t i = 0; i < images; ++i)
            conv2d_blocks::add_plane_sums(d + i * g.out * g.oh * g.ow, g.out, g.oh * g.ow, sums + size);
      }
    });
    conv2d_blocks::add_groups(partial.data<float>(), groups, size + g.out, size, weight_grad.data<float>(),
                              bias_grad.defined() ? bias_grad.data<float>() : nullptr);
  });
}

}  // namespace lockstep
