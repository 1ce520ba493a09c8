// Note [Channels last]: what lies in another order in memory is seen in its own by whoever reads it.

#include "lockstep/core/channels_last.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"
#include "tests/support/channels_last_test_base.h"
#include "tests/support/pending_values.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

class CudaChannelsLast : public ChannelsLastTest {
 protected:
  static Tensor leaf(const Shape& sizes, std::uint32_t seed) { return values(sizes, seed).requires_grad_(); }

  static void expect_near(const Tensor& found, const Tensor& expected, const std::string& what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    const auto a = found.to_vector<double>(), b = expected.to_vector<double>();
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::abs(b[i]));
      error = std::max(error, std::abs(a[i] - b[i]));
    }
    EXPECT_LE(error, 0.03 * largest) << what;
  }
};

struct Block {
  Tensor x, first, second, shortcut, scale, shift;
};

struct Outcome {
  Tensor result;
  std::vector<Tensor> gradients;
  std::vector<bool> laid_out;  // forward, and where gradients arrive
};

/// A residual block as in a ResNet, with a strided shortcut, and its gradients.
Outcome run(const Block& b) {
  Outcome out;
  const auto note = [&](const Tensor& t) { out.laid_out.push_back(channels_last_of(t).defined()); };
  const auto normed = [&](const Tensor& x) {
    return batch_norm(x, {}, {}, {.weight = b.scale, .bias = b.shift, .training = true});
  };
  Tensor stem = conv2d(b.x, b.first, {}, {.padding = 1});
  stem = relu(normed(stem));
  note(stem);
  stem.register_hook([&](const Tensor& grad) {
    note(grad);
    return grad;
  });
  const Tensor deep = normed(conv2d(stem, b.second, {}, {.stride = 2, .padding = 1}));
  note(deep);
  const Tensor joined = silu(deep + normed(conv2d(stem, b.shortcut, {}, {.stride = 2})));
  note(joined);
  out.result = mul(joined, 0.5) * deep;
  note(out.result);
  sum(square(out.result.to(kFloat32))).backward();
  for (const Tensor* each : {&b.x, &b.first, &b.second, &b.shortcut, &b.scale, &b.shift})
    out.gradients.push_back(each->grad());
  return out;
}

Block block_of(auto&& leaf) {
  return {leaf(Shape{4, 3, 9, 11}, 1),
          leaf(Shape{16, 3, 3, 3}, 2),
          leaf(Shape{24, 16, 3, 3}, 3),
          leaf(Shape{24, 16, 1, 1}, 4),
          Tensor(),
          Tensor()};
}

TEST_P(CudaChannelsLast, AResidualBlockKeepsTheOrderAndGivesTheSameValues) {
  const Outcome found = run(block_of(leaf));
  EXPECT_EQ(found.laid_out, std::vector<bool>(5, true));
  const AtTheCall plain;
  const Outcome expected = run(block_of(leaf));
  EXPECT_EQ(expected.laid_out, std::vector<bool>(5, false));
  expect_near(found.result, expected.result, "result");
  for (std::size_t i = 0; i < 4; ++i)
    expect_near(found.gradients[i], expected.gradients[i], "gradient " + std::to_string(i));
}

TEST_P(CudaChannelsLast, PoolsFollowWhatTheyRead) {
  struct Found {
    std::vector<Tensor> values;
    std::vector<bool> laid_out;
  };
  const auto run = [&] {
    const Tensor x = leaf({2, 3, 13, 14}, 1), first = leaf({16, 3, 3, 3}, 2), second = leaf({24, 16, 3, 3}, 3);
    const Tensor stem =
        max_pool2d(relu(batch_norm(conv2d(x, first), {}, {}, {.training = true})), 3, {.stride = 2, .padding = 1});
    const auto [deep, places] = max_pool2d_with_indices(relu(conv2d(stem, second)), 2, {});
    Found found{{stem, deep, places}, {is_laid_out(stem), is_laid_out(deep)}};
    sum(deep.to(kFloat32) * values(deep.sizes(), 4).to(kFloat32)).backward();
    for (const Tensor* each : {&x, &first, &second}) found.values.push_back(each->grad());
    return found;
  };
  const Found found = run();
  EXPECT_EQ(found.laid_out, std::vector<bool>(2, true));
  const AtTheCall plain;
  const Found expected = run();
  for (std::size_t i = 0; i < found.values.size(); ++i)
    expect_near(found.values[i], expected.values[i], "value " + std::to_string(i));
}

TEST_P(CudaChannelsLast, ChannelsScaleAndShift) {
  for (const std::int64_t channels : {8, 40, 64, 264}) {
    const Tensor x = values({3, 8, 17, 5}, 1), filters = values({channels, 8, 1, 1}, 2);
    const auto gradients = [&] {
      const Tensor bias = leaf({channels}, 3), scale = leaf({channels}, 4), shift = leaf({channels}, 5);
      const Tensor y = batch_norm(conv2d(x, filters, bias), {}, {}, {.weight = scale, .bias = shift, .training = true});
      sum(y * values(y.sizes(), 6)).backward();
      return std::vector<Tensor>{y, scale.grad(), shift.grad()};
    };
    const auto found = gradients();
    EXPECT_TRUE(channels_last_of(found[0]).defined());
    const AtTheCall plain;
    const auto expected = gradients();
    for (std::size_t i = 0; i < 3; ++i) expect_near(found[i], expected[i], std::to_string(channels));
  }
}

TEST_P(CudaChannelsLast, WhoReadsSeesTheImage) {
  const NoGradGuard guard;
  const Tensor x = values({2, 8, 5, 6}, 1), filters = values({16, 8, 3, 3}, 2), bias = values({16}, 3);
  const auto made = [&] { return tanh(conv2d(x, filters, bias, {.padding = 1})); };
  const Tensor expected = [&] {
    const AtTheCall plain;
    return made();
  }();
  EXPECT_TRUE(is_laid_out(made()));
  expect_near(made(), expected, "values");
  expect_near(made().view({2, -1}), expected.view({2, -1}), "view");
  expect_near(made().slice(1, 3, 11), expected.slice(1, 3, 11), "slice");
  expect_near(made().permute({3, 1, 0, 2}), expected.permute({3, 1, 0, 2}), "permute");
  expect_near(sum(made(), {1}), sum(expected, {1}), "sum");
  expect_near(made() + bias.view({16, 1, 1}), expected + bias.view({16, 1, 1}), "broadcast");
  // A view of the same memory as an image of other sizes is no image whose channels lie last.
  expect_near(relu(made().view({2, 16, 6, 5})), relu(expected.view({2, 16, 6, 5})), "another image");

  const Tensor changed = made(), before = relu(changed);
  changed.mul_(2.0);
  expect_near(changed, expected * 2.0, "changed in place");
  expect_near(before, relu(expected), "before the change");
}

TEST_P(CudaChannelsLast, EventsCopyNothingAndOtherStreamsSeeTheValues) {
  const NoGradGuard guard;
  const int device = test_device().index;
  const cuda::Stream first = cuda::Stream::from_pool(device), second = cuda::Stream::from_pool(device);
  const Tensor x = values({2, 8, 5, 6}, 1), filters = values({16, 8, 3, 3}, 2);
  const Tensor expected = [&] {
    const AtTheCall plain;
    return tanh(conv2d(x, filters));
  }();
  cuda::Stream::default_of(device).synchronize();
  Tensor y;
  cuda::Event done(device);
  {
    const cuda::StreamGuard on(first);
    y = tanh(conv2d(x, filters));
    done.record(first);
  }
  EXPECT_TRUE(is_laid_out(y));
  const cuda::StreamGuard on(second);
  expect_near(relu(y), relu(expected), "laid out, on another stream");
  expect_near(y, expected, "copied on another stream");
}

// What a side stream leaves laid out is copied at the end of the capture, and must join it.
TEST_P(CudaChannelsLast, AGraphJoinsCopiesOfASideStream) {
  const NoGradGuard guard;
  const int device = test_device().index;
  const cuda::Stream stream = cuda::Stream::create(device), side = cuda::Stream::create(device);
  const cuda::StreamGuard on(stream);
  const Tensor x = values({2, 8, 5, 6}, 1), filters = values({16, 8, 3, 3}, 2);
  const auto step = [&] { return tanh(conv2d(x, filters)); };
  const Tensor expected = [&] {
    const AtTheCall plain;
    return step();
  }();
  stream.synchronize();
  {
    const cuda::StreamGuard there(side);
    expect_near(step(), expected, "the libraries' first calls are not captured");
  }
  Tensor y;
  const cuda::Graph graph = cuda::Graph::capture(stream, [&] {
    cuda::Event begun(device), done(device);
    begun.record(stream);
    side.wait(begun);
    {
      const cuda::StreamGuard there(side);
      y = step();
    }
    done.record(side);
    stream.wait(done);
    EXPECT_TRUE(is_laid_out(y));
  });
  graph.launch();
  expect_near(y, expected, "on a side stream");
}

TEST_P(CudaChannelsLast, AGraphWritesWhatIsReadLater) {
  const NoGradGuard guard;
  const cuda::Stream stream = cuda::Stream::create(test_device().index);
  const cuda::StreamGuard on(stream);
  const Tensor x = values({2, 8, 5, 6}, 1), filters = values({16, 8, 3, 3}, 2);
  const auto step = [&] { return tanh(conv2d(x, filters)); };
  expect_near(step(), step(), "the libraries' first calls are not captured");
  Tensor y;
  const cuda::Graph graph = cuda::Graph::capture(stream, [&] { y = step(); });
  for (const double factor : {1.0, -2.0}) {
    copy_values(mul(values({2, 8, 5, 6}, 3), factor), x);
    graph.launch();
    const AtTheCall plain;
    expect_near(y, step(), std::to_string(factor));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaChannelsLast, ::testing::Values(kFloat16, kBFloat16, kFloat32),
                         [](const auto& i) { return std::string(name(i.param)); });

// A block takes several groups of them.
TEST(CudaBatchNorm, VeryManySamplesGiveTheCpusStatistics) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor x = make_input({4500, 1024}, 1, kFloat32) + arange(1024, {.dtype = kFloat32});
  const Tensor mean = zeros({1024}), var = ones({1024}), mean_there = mean.to(test_device()),
               var_there = var.to(test_device());
  batch_norm(x, mean, var, {.training = true, .momentum = 0.5});
  batch_norm(x.to(test_device()), mean_there, var_there, {.training = true, .momentum = 0.5});
  expect_close(mean_there.to(kCPU), mean, 1e-4);
  expect_close(var_there.to(kCPU), var, 1e-4);
  // The square of the mean is no float.
  const Tensor far = full({64, 8}, 1e20, {.device = test_device()}), no_mean = zeros({8}, {.device = test_device()}),
               no_var = ones({8}, {.device = test_device()});
  batch_norm(far, no_mean, no_var, {.training = true, .momentum = 1.0});
  EXPECT_EQ(no_var.to_vector<float>(), std::vector<float>(8, 0.0f));
}

TEST(CudaTranspose, CopiesOfTurnedTensorsAreExact) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  for (const DType dtype : {kUInt8, kBFloat16, kFloat32, kInt64})
    for (const Shape& sizes : {Shape{70, 33}, Shape{1, 5}, Shape{3, 31, 65}, Shape{2, 8, 5, 7}, Shape{4, 0, 3}}) {
      const Tensor x = cast_values(make_input(sizes, 7, kFloat64, 0.0, 200.0), dtype), there = x.to(test_device());
      for (int a = 0; a < x.dim(); ++a)
        for (int b = 0; b < a; ++b) {
          EXPECT_EQ(there.transpose(a, b).contiguous().to_vector<double>(),
                    x.transpose(a, b).contiguous().to_vector<double>())
              << to_string(sizes) << ' ' << a << ' ' << b;
          if (x.size(b) < 3) continue;
          const Tensor part = x.slice(b, 1, x.size(b) - 1), part_there = there.slice(b, 1, x.size(b) - 1);
          EXPECT_EQ(part_there.transpose(a, b).contiguous().to_vector<double>(),
                    part.transpose(a, b).contiguous().to_vector<double>())
              << to_string(sizes) << ' ' << a << ' ' << b;
        }
      if (x.dim() == 4) {
        EXPECT_EQ(there.permute({0, 2, 3, 1}).contiguous().to_vector<double>(),
                  x.permute({0, 2, 3, 1}).contiguous().to_vector<double>());
      }
    }
}

}  // namespace
}  // namespace lockstep::testing
