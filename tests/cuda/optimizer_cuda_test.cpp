#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

struct Case {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)> make;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

Case sgd(const char* name, SGDOptions options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<SGD>(std::move(p), options); }};
}
Case adam(const char* name, AdamOptions options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<Adam>(std::move(p), options); }};
}
template <typename O, typename Options>
Case other(const char* name, Options options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<O>(std::move(p), options); }};
}
Case adamw(const char* name, AdamWOptions options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<AdamW>(std::move(p), options); }};
}

const Case kCases[] = {
    sgd("sgd", {.lr = 0.1}),
    sgd("sgd_weight_decay", {.lr = 0.1, .weight_decay = 0.05}),
    sgd("sgd_momentum", {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05}),
    sgd("sgd_dampening", {.lr = 0.1, .momentum = 0.9, .dampening = 0.3}),
    sgd("sgd_nesterov", {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true}),
    adam("adam", {.lr = 0.01}),
    adam("adam_weight_decay", {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}),
    adamw("adamw", {.lr = 0.02, .weight_decay = 0.3}),
    other<NAdam>("nadam", NAdamOptions{.lr = 0.05, .weight_decay = 0.1, .decoupled_weight_decay = true}),
    other<RAdam>("radam", RAdamOptions{.lr = 0.05, .beta2 = 0.8, .weight_decay = 0.1}),
    other<Adamax>("adamax", AdamaxOptions{.lr = 0.05, .weight_decay = 0.1}),
    other<Rprop>("rprop", RpropOptions{.step_max = 0.012}),
    other<ASGD>("asgd", ASGDOptions{.lr = 0.05, .lambd = 0.1, .t0 = 1, .weight_decay = 0.1}),
    {"groups",
     [](const std::vector<Tensor>& p) {
       using Groups = std::vector<ParamGroup<AdamOptions>>;
       return std::make_unique<Adam>(Groups{{{p.begin(), p.begin() + 2}, {.lr = 0.02, .weight_decay = 0.1}},
                                            {{p.begin() + 2, p.begin() + 5}, {.lr = 0.01, .amsgrad = true}},
                                            {{p.begin() + 5, p.end()}, {.lr = 0.04}}});
     }},
};

enum class Layout { kApart, kFlat, kStrided };

// Sizes below, at and over a chunk; odd ones, so that neighbours in a flat buffer lie at odd addresses.
const std::vector<Shape> kShapes{{3, 5}, {1}, {130, 31}, {7}, {0}, {2048}, {5000}};

// The same values for every device and layout.
std::vector<Tensor> make_tensors(Device device, DType dtype, Layout layout, std::uint32_t seed) {
  std::int64_t total = 0;
  for (const Shape& s : kShapes) total += s.numel();
  const Tensor buffer = empty({total}, {.dtype = dtype, .device = device});
  std::vector<Tensor> tensors;
  std::int64_t offset = 0;
  for (const Shape& sizes : kShapes) {
    const Tensor values = make_input(sizes, seed + static_cast<std::uint32_t>(tensors.size()), dtype);
    Tensor t = move_values(values, device);
    if (layout == Layout::kFlat) {
      t = buffer.as_strided(sizes, contiguous_strides(sizes), offset);
      copy_values(values, t);
    } else if (layout == Layout::kStrided) {
      t = make_strided(t);
    }
    offset += sizes.numel();
    tensors.push_back(t);
  }
  return tensors;
}

std::vector<Tensor> make_parameters(Device device, DType dtype, Layout layout) {
  std::vector<Tensor> parameters = make_tensors(device, dtype, layout, 1);
  for (const Tensor& p : parameters) p.set_requires_grad(true);
  return parameters;
}

void set_gradients(const std::vector<Tensor>& parameters, Layout layout, std::uint32_t step) {
  const std::vector<Tensor> grads =
      make_tensors(parameters[0].device(), parameters[0].dtype(), layout, 100 * (step + 1));
  for (std::size_t i = 0; i < parameters.size(); ++i)  // one has its first gradient in the second step
    if (i != 3 || step > 0) parameters[i].set_grad(grads[i]);
}

class CudaOptimizer : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
    LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  }

  static std::vector<Tensor> train(Device device, DType dtype, Layout layout, Layout grad_layout) {
    const std::vector<Tensor> parameters = make_parameters(device, dtype, layout);
    const auto optimizer = GetParam().make(parameters);
    for (std::uint32_t step = 0; step < 4; ++step) {
      set_gradients(parameters, grad_layout, step);
      if (step == 2) optimizer->set_lr(0.5 * optimizer->lr());
      optimizer->step();
    }
    return parameters;
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, CudaOptimizer, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

TEST_P(CudaOptimizer, HasTheBitsOfTheCpu) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    SCOPED_TRACE(name(dtype));
    const std::vector<Tensor> expected = train(Device(), dtype, Layout::kApart, Layout::kApart);
    EXPECT_TRUE(same_bits(train(test_device(), dtype, Layout::kApart, Layout::kApart), expected));
    EXPECT_TRUE(same_bits(train(test_device(), dtype, Layout::kFlat, Layout::kFlat), expected));
    EXPECT_TRUE(same_bits(train(test_device(), dtype, Layout::kFlat, Layout::kApart), expected));
    EXPECT_TRUE(same_bits(train(test_device(), dtype, Layout::kStrided, Layout::kStrided), expected));
  }
}

// The state, too, goes from one device to another.
TEST_P(CudaOptimizer, GoesOnFromAStateOfTheCpu) {
  const std::vector<Tensor> a = make_parameters(Device(), kFloat32, Layout::kApart);
  const std::vector<Tensor> b = make_parameters(test_device(), kFloat32, Layout::kFlat);
  const auto first = GetParam().make(a), second = GetParam().make(b);
  for (std::uint32_t step = 0; step < 4; ++step) {
    if (step == 2) {
      for (std::size_t i = 0; i < a.size(); ++i) copy_values(a[i], b[i]);
      second->load_state(first->state());
    }
    set_gradients(a, Layout::kApart, step);
    set_gradients(b, Layout::kApart, step);
    first->step();
    if (step >= 2) second->step();
  }
  EXPECT_TRUE(same_bits(b, a));
}

// A captured step that is replayed counts its steps and follows a schedule.
TEST_P(CudaOptimizer, ReplaysInAGraphUnderASchedule) {
  const std::vector<Tensor> expected = make_parameters(Device(), kFloat32, Layout::kApart);
  const std::vector<Tensor> parameters = make_parameters(test_device(), kFloat32, Layout::kApart);
  const auto reference = GetParam().make(expected), optimizer = GetParam().make(parameters);
  const auto schedule = [](Optimizer& o, std::uint32_t step) {
    o.set_lr(0.1 / (1.0 + step));
    if (o.momentum() > 0.0) o.set_momentum(0.9 - 0.1 * step);
  };
  set_gradients(parameters, Layout::kStrided, 1);  // where the gradients of all steps are
  optimizer->prepare_step();                       // counts as the first step

  const cuda::Stream stream = cuda::Stream::from_pool(test_device().index);
  cuda::Stream::current(test_device().index).synchronize();
  const cuda::StreamGuard guard(stream);
  const cuda::MemoryHold hold(stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  optimizer->step();
  LOCKSTEP_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &graph));
  LOCKSTEP_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (std::uint32_t step = 0; step < 4; ++step) {
    set_gradients(expected, Layout::kApart, step + 1);
    const std::vector<Tensor> grads = make_tensors(test_device(), kFloat32, Layout::kApart, 100 * (step + 2));
    for (std::size_t i = 0; i < grads.size(); ++i) copy_values(grads[i], parameters[i].grad());
    if (step > 0) {
      schedule(*reference, step);
      schedule(*optimizer, step);
      optimizer->prepare_step();
    }
    reference->step();
    LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(exec, stream.handle()));
  }
  EXPECT_TRUE(same_bits(parameters, expected));
  EXPECT_EQ(optimizer->state().tensors[0].tensor.to_vector<double>(),
            reference->state().tensors[0].tensor.to_vector<double>());
  // And goes on without it.
  optimizer->step();
  reference->step();
  EXPECT_TRUE(same_bits(parameters, expected));
  LOCKSTEP_CUDA_CHECK(cudaGraphExecDestroy(exec));
  LOCKSTEP_CUDA_CHECK(cudaGraphDestroy(graph));
}

// Norms and products, which a device adds up in another order than the CPU.
TEST(CudaWholeTensors, AgreeWithTheCpu) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const auto weights = [](Device device, bool muon) {
    const Tensor p = move_values(make_input({30, 50}, 1, kFloat32), device).requires_grad_();
    const std::unique_ptr<Optimizer> optimizer =
        muon ? std::unique_ptr<Optimizer>(std::make_unique<Muon>(std::vector{p}, MuonOptions{.lr = 0.02}))
             : std::make_unique<Adafactor>(std::vector{p}, AdafactorOptions{.lr = 0.1});
    for (std::uint32_t step = 0; step < 3; ++step) {
      p.set_grad(move_values(make_input({30, 50}, 10 + step, kFloat32), device));
      optimizer->step();
    }
    EXPECT_NE(error_of([&] { optimizer->prepare_step(); }).find("cannot be captured"), std::string::npos);
    return move_values(p.detach(), Device());
  };
  expect_close(weights(test_device(), false), weights(Device(), false), 1e-5, 1e-6);
  expect_close(weights(test_device(), true), weights(Device(), true), 0.0, 3 * 0.02 * 0.02);
}

TEST_P(CudaOptimizer, RefusesToCaptureTheFirstStep) {
  const std::vector<Tensor> parameters = make_parameters(test_device(), kFloat32, Layout::kApart);
  const auto optimizer = GetParam().make(parameters);
  const cuda::Stream stream = cuda::Stream::from_pool(test_device().index);
  const cuda::StreamGuard guard(stream);
  cudaGraph_t graph = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  const std::string message = error_of([&] { optimizer->step(); });
  LOCKSTEP_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &graph));
  LOCKSTEP_CUDA_CHECK(cudaGraphDestroy(graph));
  EXPECT_NE(message.find("call step() or prepare_step() once before the capture"), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::optim
