#include "lockstep/core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>
#include <thread>

#include "lockstep/core/double_math.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;

// The known answers that the authors of the generator publish with it (Random123, kat_vectors, philox4x32-10).
TEST(Philox, KnownAnswers) {
  const struct {
    philox::Block counter;
    philox::Key key;
    philox::Block result;
  } cases[] = {
      {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {0xffffffff, 0xffffffff},
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {0xa4093822, 0x299f31d0},
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const auto& c : cases) {
    const philox::Block block = philox::generate(c.key, c.counter);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], c.result.word[i]);
  }
}

TEST(Philox, AnElementsWordIsItsPlaceInItsBlock) {
  const philox::Key key{1, 2};
  const std::uint64_t first = (std::uint64_t{1} << 36) + 8;  // needs the counter's second word
  const philox::Block block = philox::generate(key, first / 4);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(philox::word_at(key, first + i), block.word[i]);
  EXPECT_EQ(philox::to_uniform(0), 0.0f);
  EXPECT_EQ(philox::to_uniform(0xffffffffu), 1.0f - 0x1p-24f);
}

bool same(philox::Key a, philox::Key b) {
  return a.lo == b.lo && a.hi == b.hi;
}

TEST(RandomKeys, EveryPartOfTheKeyCounts) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  const auto add = [&](philox::Key key) { keys.insert({key.lo, key.hi}); };
  add(random_key(1, RandomStream::general, 0, 0, 0));
  add(random_key(2, RandomStream::general, 0, 0, 0));
  add(random_key(1 + (std::uint64_t{1} << 40), RandomStream::general, 0, 0, 0));
  add(random_key(1, RandomStream::dropout, 0, 0, 0));
  add(random_key(1, RandomStream::general, 1, 0, 0));
  add(random_key(1, RandomStream::general, std::uint64_t{1} << 32, 0, 0));
  add(random_key(1, RandomStream::general, 0, 1, 0));
  add(random_key(1, RandomStream::general, 0, 0, 1));
  EXPECT_EQ(keys.size(), 8u);
  EXPECT_TRUE(same(random_key(5, RandomStream::data, 6, 7, 8), random_key(5, RandomStream::data, 6, 7, 8)));
}

TEST(RandomKeys, DrawsCountByStreamAndRestartWithTheSeed) {
  manual_seed(7);
  EXPECT_EQ(initial_seed(), 7u);
  const philox::Key first = next_random_key(), second = next_random_key();
  EXPECT_TRUE(same(first, random_key(7, RandomStream::general, 0, 0, 0)));
  EXPECT_TRUE(same(second, random_key(7, RandomStream::general, 0, 0, 1)));
  EXPECT_TRUE(same(next_random_key(RandomStream::dropout), random_key(7, RandomStream::dropout, 0, 0, 0)));
  manual_seed(7);
  EXPECT_TRUE(same(next_random_key(), first));
}

TEST(RandomKeys, AGuardSetsStepAndShardAndRestoresTheCounters) {
  manual_seed(3);
  next_random_key();
  EXPECT_FALSE(guarded_random_step().has_value());
  {
    const RandomKeyGuard guard(11, 2);
    EXPECT_EQ(guarded_random_step(), std::uint64_t{11});
    EXPECT_TRUE(same(next_random_key(), random_key(3, RandomStream::general, 11, 2, 0)));
    {
      const RandomKeyGuard inner(12, 0);
      EXPECT_TRUE(same(next_random_key(), random_key(3, RandomStream::general, 12, 0, 0)));
    }
    EXPECT_TRUE(same(next_random_key(), random_key(3, RandomStream::general, 11, 2, 1)));
  }
  EXPECT_FALSE(guarded_random_step().has_value());
  EXPECT_TRUE(same(next_random_key(), random_key(3, RandomStream::general, 0, 0, 1)));
}

TEST(RandomKeys, EveryThreadCountsItsOwnDraws) {
  manual_seed(3);
  next_random_key();
  next_random_key();
  philox::Key other{};
  std::thread([&] {
    const RandomKeyGuard guard(5, 1);
    other = next_random_key();
  }).join();
  EXPECT_TRUE(same(other, random_key(3, RandomStream::general, 5, 1, 0)));
  EXPECT_TRUE(same(next_random_key(), random_key(3, RandomStream::general, 0, 0, 2)));
}

TEST(RandomTensors, DoNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  std::vector<std::vector<double>> results[2];
  for (int t = 0; t < 2; ++t) {
    set_num_threads(t + 1);
    manual_seed(42);
    results[t].push_back(rand({100001}).to_vector<double>());
    results[t].push_back(randn({100001}).to_vector<double>());
    results[t].push_back(randint(0, 10, {100001}).to_vector<double>());
    results[t].push_back(randperm(1000).to_vector<double>());
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST(RandomTensors, TheSameKeyGivesTheSameValuesInEveryShapeDtypeAndLayout) {
  manual_seed(1);
  const std::vector<double> flat = rand({12}).to_vector<double>();
  manual_seed(1);
  EXPECT_EQ(rand({3, 4}).to_vector<double>(), flat);
  manual_seed(1);
  EXPECT_EQ(rand({12}, {.device = {kCPU, 3}}).to_vector<double>(), flat);
  manual_seed(1);
  const std::vector<double> fine = rand({12}, {.dtype = kFloat64}).to_vector<double>();
  for (std::size_t i = 0; i < fine.size(); ++i) EXPECT_EQ(std::floor(fine[i] * 0x1p24) * 0x1p-24, flat[i]);
  manual_seed(1);
  const Tensor base = zeros({4, 3});
  fill_uniform(base.as_strided({3, 4}, {1, 3}, 0), 0, 1);
  EXPECT_EQ(base.as_strided({3, 4}, {1, 3}, 0).to_vector<double>(), flat);
  manual_seed(1);
  const Tensor half = rand({12}, {.dtype = kFloat16});
  EXPECT_EQ(half.to_vector<double>()[5], static_cast<double>(static_cast<float>(Half(static_cast<float>(flat[5])))));
}

// Drawn in runs, each pair of elements is what its words alone give.
TEST(RandomTensors, NormalsArePairsOfBoxAndMuller) {
  constexpr std::int64_t kCount = 8192 + 256 + 7;  // a block of work, a run, and some of the next
  const auto pair_of = [](double a, double b, std::size_t part) {
    const double radius = std::sqrt(-2.0 * math::portable_log(1.0 - a)), angle = 2.0 * std::numbers::pi * b;
    return 1.5 + 0.25 * radius * (part == 0 ? math::portable_cos(angle) : math::portable_sin(angle));
  };
  for (const DType dtype : {kFloat32, kFloat64}) {
    manual_seed(3);
    const std::vector<double> uniform = rand({kCount + 1}, {.dtype = dtype}).to_vector<double>();
    manual_seed(3);
    const std::vector<double> values = normal(1.5, 0.25, {kCount}, {.dtype = dtype}).to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t first = i / 2 * 2;
      const double expected = pair_of(uniform[first], uniform[first + 1], i % 2);
      ASSERT_EQ(values[i], dtype == kFloat64 ? expected : static_cast<double>(static_cast<float>(expected)))
          << name(dtype) << " " << i;
    }
  }
}

TEST(RandomTensors, UniformAndNormalHaveTheirMoments) {
  manual_seed(9);
  const std::vector<double> u = rand({200000}).to_vector<double>();
  const std::vector<double> n = randn({200000}).to_vector<double>();
  const auto moment = [](const std::vector<double>& values, int power) {
    double sum = 0;
    for (const double v : values) sum += std::pow(v, power);
    return sum / static_cast<double>(values.size());
  };
  EXPECT_GE(*std::min_element(u.begin(), u.end()), 0.0);
  EXPECT_LT(*std::max_element(u.begin(), u.end()), 1.0);
  EXPECT_NEAR(moment(u, 1), 0.5, 0.003);
  EXPECT_NEAR(moment(u, 2), 1.0 / 3, 0.003);
  EXPECT_NEAR(moment(n, 1), 0.0, 0.01);
  EXPECT_NEAR(moment(n, 2), 1.0, 0.02);
  EXPECT_NEAR(moment(n, 3), 0.0, 0.05);
  EXPECT_NEAR(moment(n, 4), 3.0, 0.15);
  double neighbours = 0;
  for (std::size_t i = 0; i + 1 < n.size(); i += 2) neighbours += n[i] * n[i + 1];
  EXPECT_NEAR(neighbours / 100000, 0.0, 0.015);
}

TEST(RandomTensors, UniformNeverReachesItsUpperEnd) {
  manual_seed(9);
  for (const DType dtype : {kFloat16, kBFloat16, kFloat32, kFloat64}) {
    const Tensor u = rand({100000}, {.dtype = dtype});
    const std::vector<double> values = u.to_vector<double>();
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 1.0) << name(dtype);
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0.0) << name(dtype);
    const std::pair<double, double> ranges[] = {{-3, -1}, {-1, 0}, {1, 1.01}, {100, 100.00001}, {-0.3, 0.7}};
    for (const auto& [low, high] : ranges) {
      fill_uniform(u, low, high);
      const std::vector<double> drawn = u.to_vector<double>();
      const double lowest = full({}, low, {.dtype = dtype}).item();  // what the dtype has for it
      EXPECT_LT(*std::max_element(drawn.begin(), drawn.end()), std::max(high, std::nextafter(lowest, INFINITY)))
          << name(dtype) << " " << low << " " << high;
      EXPECT_GE(*std::min_element(drawn.begin(), drawn.end()), std::min(low, lowest)) << name(dtype) << " " << low;
    }
  }
}

TEST(RandomTensors, Float64HasItsOwnPrecision) {
  manual_seed(9);
  const std::vector<double> u = rand({1000}, {.dtype = kFloat64}).to_vector<double>();
  const std::vector<double> n = randn({1000}, {.dtype = kFloat64}).to_vector<double>();
  const auto fits_float = [](double v) { return static_cast<double>(static_cast<float>(v)) == v; };
  EXPECT_LT(std::count_if(u.begin(), u.end(), fits_float), 5);
  EXPECT_LT(std::count_if(n.begin(), n.end(), fits_float), 5);
  EXPECT_EQ(std::count_if(u.begin(), u.end(), [](double v) { return std::floor(v * 0x1p53) != v * 0x1p53; }), 0);
}

TEST(RandomTensors, FillNormalTakesMeanAndDeviation) {
  manual_seed(9);
  const Tensor a = randn({101});
  manual_seed(9);
  const Tensor b = empty({101});
  fill_normal(b, 3.0, 0.5);
  for (std::size_t i = 0; i < 101; ++i)
    EXPECT_NEAR(b.to_vector<double>()[i], 3.0 + 0.5 * a.to_vector<double>()[i], 1e-5);
}

TEST(RandomTensors, IntegersCoverTheirRangeEvenly) {
  manual_seed(4);
  const std::vector<std::int64_t> values = randint(-3, 7, {100000}).to_vector<std::int64_t>();
  std::vector<int> counts(10, 0);
  for (const std::int64_t v : values) {
    ASSERT_GE(v, -3);
    ASSERT_LT(v, 7);
    ++counts[static_cast<std::size_t>(v + 3)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(RandomTensors, PermutationsHoldEveryIndexOnce) {
  manual_seed(4);
  for (const std::int64_t n : {0, 1, 2, 1000}) {
    std::vector<std::int64_t> values = randperm(n).to_vector<std::int64_t>();
    std::vector<std::int64_t> expected(static_cast<std::size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    if (n == 1000) {
      EXPECT_NE(values, expected);
    }
    std::sort(values.begin(), values.end());
    EXPECT_EQ(values, expected);
  }
}

TEST(RandomTensors, ErrorsNameTheProblem) {
  EXPECT_EQ(error_of([] { randint(3, 3, {2}); }), "[randint] expected low < high <= low + 2^32, found 3 and 3");
  EXPECT_EQ(error_of([] { randperm(-1); }), "[randperm] expected 0 <= n <= 2^32, found -1");
  EXPECT_EQ(error_of([] { fill_uniform(zeros({2}), 2.0, 1.0); }),
            "[fill_uniform] expected finite numbers low <= high, found 2 and 1");
  EXPECT_EQ(error_of([] { rand({2}, {.dtype = kInt64}); }), "[fill_uniform] expected a floating-point tensor");
  EXPECT_EQ(error_of([] { randint(INT64_MIN, INT64_MAX, {2}); }).find("[randint] expected low < high <= low + 2^32"),
            0u);
  for (const double std : {-1.0, std::nan("")})
    EXPECT_NE(error_of([&] { fill_normal(zeros({2}), 0.0, std); }).find("a standard deviation of at least 0"),
              std::string::npos);
}

TEST(RandomTensors, NumbersOutOfTheDtypesRangeAreRefused) {
  const auto refused = [](auto&& draw) {
    const std::string message = error_of(draw);
    EXPECT_NE(message.find("out of the range of"), std::string::npos) << message;
  };
  refused([] { randint(0, 1000, {2}, kUInt8); });
  refused([] { randint(-1, 5, {2}, kUInt8); });
  refused([] { randint(std::int64_t{1} << 32, {2}, kInt32); });
  refused([] { randint(0, 100000, {2}, kFloat16); });
  refused([] { randperm(300, kUInt8); });
  refused([] { fill_uniform(zeros({2}), -3e38, 3e38); });
  refused([] { fill_uniform(zeros({2}), 0.0, 1e39); });
  refused([] { fill_uniform(zeros({2}, {.dtype = kFloat64}), -1.7e308, 1.7e308); });
  refused([] { fill_uniform(zeros({2}, {.dtype = kFloat16}), -70000.0, 1.0); });
  EXPECT_NE(error_of([] { randperm(300, kBFloat16); }).find("[randperm]"), std::string::npos) << "two would be one";

  manual_seed(4);
  const auto largest = [](const Tensor& drawn) {
    const std::vector<double> values = drawn.to_vector<double>();
    return *std::max_element(values.begin(), values.end());
  };
  EXPECT_EQ(largest(randint(0, 256, {1000}, kUInt8)), 255);
  EXPECT_EQ(randint(INT64_MAX - 1, INT64_MAX, {1}).item<std::int64_t>(), INT64_MAX - 1);
  EXPECT_GE(largest(randint(INT32_MIN, std::int64_t{INT32_MAX} + 1, {1000}, kInt32)), INT32_MAX / 2);
  EXPECT_EQ(largest(randperm(256, kUInt8)), 255);
  EXPECT_EQ(largest(randperm(257, kBFloat16)), 256);
  const Tensor wide = empty({1000}, {.dtype = kFloat16});
  fill_uniform(wide, -60000.0, 60000.0);
  EXPECT_GT(largest(wide), 50000.0);
  EXPECT_LT(largest(wide), 60000.0);
}

}  // namespace
}  // namespace lockstep
