#include "lockstep/data/mnist.h"

#include <numeric>

#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using data::Batch;
using data::MnistDataset;

Batch batch_of(const data::Dataset& dataset, const std::vector<std::int64_t>& indices) {
  return dataset.get_batch(indices);
}

TEST(Mnist, NormalisesAsTorchvisionDoes) {
  TempDir dir;
  write_mnist(dir.path(), 12);
  const auto set = data::mnist(dir.path());
  ASSERT_EQ(set->size(), 12);
  const Batch batch = batch_of(*set, {3, 0, 3});
  EXPECT_EQ(batch.x.sizes(), (Shape{3, 1, 28, 28}));
  EXPECT_EQ(batch.x.dtype(), kFloat32);
  EXPECT_EQ(batch.y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{9, 0, 9}));
  EXPECT_EQ(batch.size(), 3);
  EXPECT_EQ(batch.global_size, 3);
  const std::vector<float> x = batch.x.to_vector<float>();
  for (std::size_t i = 0; i < 784; ++i) {
    const float byte = static_cast<float>((3 * 784 + i) % 251);
    ASSERT_EQ(x[i], (byte / 255.0f - 0.1307f) / 0.3081f) << i;
    ASSERT_EQ(x[2 * 784 + i], x[i]);
  }
}

TEST(Mnist, TakesOtherStatistics) {
  TempDir dir;
  write_mnist(dir.path(), 2);
  const Batch batch = batch_of(*data::fashion_mnist(dir.path(), {.train = false, .mean = 0.0f, .std = 1.0f}), {0});
  EXPECT_FLOAT_EQ(batch.x.to_vector<float>()[5], 5.0f / 255.0f);
  EXPECT_FLOAT_EQ(data::fashion_mnist(dir.path())->mean(), 0.2860f);
  EXPECT_FLOAT_EQ(data::fashion_mnist(dir.path())->std(), 0.3530f);
}

TEST(Mnist, GivesABatchOfNone) {
  TempDir dir;
  write_mnist(dir.path(), 2);
  const Batch batch = batch_of(*data::mnist(dir.path()), {});
  EXPECT_EQ(batch.x.sizes(), (Shape{0, 1, 28, 28}));
  EXPECT_EQ(batch.y.sizes(), (Shape{0}));
}

TEST(Mnist, RefusesIndicesOutOfRange) {
  TempDir dir;
  write_mnist(dir.path(), 2);
  const auto set = data::mnist(dir.path());
  EXPECT_EQ(error_of([&] { batch_of(*set, {0, 2}); }), "[MnistDataset] index 2 is out of range; expected 0 to 1");
  EXPECT_EQ(error_of([&] { set->label(-1); }), "[MnistDataset] index -1 is out of range; expected 0 to 1");
  EXPECT_EQ(set->image(1).size(), 784u);
}

struct Name {
  const char* images;
  const char* labels;
  bool packed;
};

class MnistNames : public ::testing::TestWithParam<Name> {};

TEST_P(MnistNames, AreAllFound) {
  TempDir dir;
  const Bytes images = idx_bytes({3, 28, 28}, ramp(3 * 784, 251));
  const Bytes labels = idx_bytes({3}, {1, 2, 3});
  write_file(dir / GetParam().images, GetParam().packed ? gzip(images) : images);
  write_file(dir / GetParam().labels, GetParam().packed ? gzip(labels) : labels);
  EXPECT_EQ(data::mnist(dir.path(), {.train = false})->size(), 3);
}

INSTANTIATE_TEST_SUITE_P(All, MnistNames,
                         ::testing::Values(Name{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", false},
                                           Name{"t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", false},
                                           Name{"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", true},
                                           Name{"t10k-images.idx3-ubyte.gz", "t10k-labels-idx1-ubyte", true}));

TEST(Mnist, LooksInTheUsualPlacesInOrder) {
  TempDir dir;
  const ScopedEnv data_root("LOCKSTEP_DATA", (dir / "root").c_str());
  const ScopedEnv home("HOME", (dir / "home").c_str());
  write_mnist(dir / "home/.cache/lockstep/mnist", 1);
  EXPECT_EQ(data::mnist()->size(), 1);
  write_mnist(dir / "root", 2);
  EXPECT_EQ(data::mnist()->size(), 2);
  write_mnist(dir / "root/mnist", 3);
  EXPECT_EQ(data::mnist()->size(), 3);
  write_mnist(dir / "root/fashion-mnist", 4);
  EXPECT_EQ(data::fashion_mnist()->size(), 4);
  EXPECT_EQ(data::mnist(dir / "root")->size(), 2) << "a directory that the caller names comes first";
  EXPECT_EQ(data::fashion_mnist(dir / "root/fashion-mnist")->size(), 4);
  EXPECT_TRUE(data::has_mnist());
  EXPECT_TRUE(data::has_mnist(dir / "home/.cache/lockstep"));
  EXPECT_FALSE(data::has_mnist(dir / "nowhere"));
}

TEST(Mnist, AnEmptyDirectoryIsRefusedWithTheRemedy) {
  TempDir dir;
  const std::string error = error_of([&] { data::mnist(dir.path()); });
  EXPECT_NE(error.find("no training set found; looked in '" + dir.path().string() +
                       "' (has no train-images-idx3-ubyte[.gz])"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("(no such directory)"), std::string::npos) << error;
  EXPECT_NE(error.find("run scripts/get_mnist.sh"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(Mnist, TheErrorNamesEveryPlaceAndTheMissingFile) {
  TempDir dir;
  const ScopedEnv data_root("LOCKSTEP_DATA", dir.path().c_str());
  const ScopedEnv home("HOME", "/nonexistent");
  write_file(dir / "mnist/t10k-images-idx3-ubyte", {});
  const std::string error = error_of([&] { data::mnist({}, {.train = false}); });
  for (const char* text : {"(has no t10k-labels-idx1-ubyte)", "'data/mnist'", "'/nonexistent/.cache/lockstep/mnist'"})
    EXPECT_NE(error.find(text), std::string::npos) << text << " is missing in: " << error;
}

struct BadSet {
  const char* name;
  Bytes images;
  Bytes labels;
  const char* message;
};

class BadMnist : public ::testing::TestWithParam<BadSet> {};

TEST_P(BadMnist, IsRefused) {
  TempDir dir;
  write_file(dir / "train-images-idx3-ubyte", GetParam().images);
  write_file(dir / "train-labels-idx1-ubyte", GetParam().labels);
  const std::string error = error_of([&] { data::mnist(dir.path()); });
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
  EXPECT_NE(error.find(dir.path().string()), std::string::npos) << error;
}

const Bytes kImages = idx_bytes({3, 28, 28}, Bytes(3 * 784));
const Bytes kLabels = idx_bytes({3}, {0, 9, 4});

INSTANTIATE_TEST_SUITE_P(
    All, BadMnist,
    ::testing::Values(
        BadSet{"label_200", kImages, idx_bytes({3}, {0, 200, 4}),
               "train-labels-idx1-ubyte': label 1 is 200 (at offset 9); expected 0 to 9"},
        BadSet{"label_10", kImages, gzip(idx_bytes({3}, {0, 9, 10})), "label 2 is 10 (at offset 10)"},
        BadSet{"fewer_labels", kImages, idx_bytes({2}, {0, 1}), "holds 2 labels, but"},
        BadSet{"no_images", idx_bytes({0, 28, 28}, {}), idx_bytes({0}, {}), "expected at least one image"},
        BadSet{"other_size", idx_bytes({1, 32, 32}, Bytes(1024)), idx_bytes({1}, {3}),
               "32 x 32 pixels; expected 28 x 28"},
        BadSet{"swapped", kLabels, kImages, "magic number at offset 0 is 0x00000801; expected 0x00000803"},
        BadSet{"two_to_31_images", idx_bytes({0x80000000u, 28, 28}, Bytes(784)), kLabels, "[2147483648, 28, 28]"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Mnist, RefusesAStdOfZero) {
  TempDir dir;
  write_mnist(dir.path(), 1);
  EXPECT_EQ(error_of([&] { data::mnist(dir.path(), {.std = 0.0f}); }), "[MnistDataset] std must be above 0, found 0");
}

// --- the real sets --------------------------------------------------------------------------------------------------

struct Statistics {
  double mean, std;
};

Statistics statistics_of(const MnistDataset& set) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(set.size()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  double sum = 0.0, squares = 0.0;
  const Batch batch = set.get_batch(order);
  const float* x = batch.x.data<float>();
  for (std::int64_t i = 0; i < batch.x.numel(); ++i) {
    sum += x[i];
    squares += double{x[i]} * x[i];
  }
  const double n = static_cast<double>(batch.x.numel());
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n))};
}

void expect_complete(const MnistDataset& train, const MnistDataset& test, const std::vector<int>& first_labels,
                     const std::vector<int>& train_counts) {
  EXPECT_EQ(train.size(), 60000);
  EXPECT_EQ(test.size(), 10000);
  for (std::size_t i = 0; i < first_labels.size(); ++i)
    EXPECT_EQ(train.label(static_cast<std::int64_t>(i)), first_labels[i]);
  std::vector<int> counts(10);
  for (std::int64_t i = 0; i < train.size(); ++i) ++counts[static_cast<std::size_t>(train.label(i))];
  EXPECT_EQ(counts, train_counts);
  const Statistics statistics = statistics_of(train);
  EXPECT_NEAR(statistics.mean, 0.0, 1e-3);
  EXPECT_NEAR(statistics.std, 1.0, 1e-3);
}

TEST(Mnist, TheRealSetIsWhole) {
  if (!data::has_mnist()) GTEST_SKIP() << "no MNIST here; run scripts/get_mnist.sh or set LOCKSTEP_DATA";
  expect_complete(*data::mnist(), *data::mnist({}, {.train = false}), {5, 0, 4, 1, 9, 2, 1, 3},
                  {5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949});
}

TEST(Mnist, TheRealFashionSetIsWhole) {
  if (!data::has_fashion_mnist()) GTEST_SKIP() << "no Fashion-MNIST here; install dataset-fashion-mnist";
  expect_complete(*data::fashion_mnist(), *data::fashion_mnist({}, {.train = false}), {9, 0, 0, 3, 0, 2, 7, 2},
                  std::vector<int>(10, 6000));
}

}  // namespace
}  // namespace lockstep::testing
