// Reductions: values, dtypes, rounding and NaN.

#include <cmath>
#include <limits>
#include <mutex>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class Reductions : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, Reductions, all_cases(), case_name);

TEST_P(Reductions, AllReduceSum) {
  run([](ProcessGroup& group) {
    ASSERT_GT(group.world_size(), 1);
    for (const std::int64_t size : sizes_for(group))
      for (const DType dtype : {kFloat32, kFloat64, kInt64, kInt32}) {
        const Tensor tensor = input_of(group, size, dtype);
        group.all_reduce(tensor)->wait();
        expect_values(
            tensor, [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1); }, "sum");
      }
  });
}

TEST_P(Reductions, AllReduceHalves) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group))
      for (const DType dtype : {kFloat16, kBFloat16}) {
        // Whole numbers up to 256 are exact in both.
        const Tensor tensor =
            filled(size, dtype, [&](auto i) { return static_cast<double>(group.rank() % 4 + i % 3); });
        group.all_reduce(tensor)->wait();
        double ranks = 0;
        for (int r = 0; r < group.world_size(); ++r) ranks += r % 4;
        expect_values(
            tensor, [&](auto i) { return ranks + static_cast<double>(group.world_size() * (i % 3)); }, "half");
      }
  });
}

TEST_P(Reductions, AllReduceOtherReductions) {
  run([](ProcessGroup& group) {
    const int last = group.world_size() - 1;
    for (const std::int64_t size : sizes_for(group)) {
      Tensor tensor = input_of(group, size);
      group.all_reduce(tensor, ReduceOp::max)->wait();
      expect_values(
          tensor, [&](auto i) { return element(last, i); }, "max");
      tensor = input_of(group, size);
      group.all_reduce(tensor, ReduceOp::min)->wait();
      expect_values(
          tensor, [&](auto i) { return element(0, i); }, "min");
      tensor = filled(size, kFloat64, [&](auto i) { return i % 2 ? 2.0 : 1.0; });
      group.all_reduce(tensor, ReduceOp::product)->wait();
      expect_values(
          tensor, [&](auto i) { return i % 2 ? std::pow(2.0, group.world_size()) : 1.0; }, "product");
      tensor = input_of(group, size, kFloat64);
      group.all_reduce(tensor, ReduceOp::avg)->wait();
      expect_values(
          tensor, [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1) / group.world_size(); }, "avg");
    }
    Tensor flags = filled(10, kBool, [&](auto i) { return i == group.rank() % 10 ? 1.0 : 0.0; });
    group.all_reduce(flags, ReduceOp::max)->wait();
    expect_values(
        flags, [&](auto i) { return i < group.world_size() ? 1.0 : 0.0; }, "any");
  });
}

// Of rank r: bit r, and in odd elements bit 20; every reduction is right for any number of ranks up to 19.
TEST_P(Reductions, Bitwise) {
  run([](ProcessGroup& group) {
    const auto world = static_cast<std::uint64_t>(group.world_size());
    const std::uint64_t every = (std::uint64_t{1} << world) - 1, odd = std::uint64_t{1} << 20;
    const auto input = [&](std::int64_t size, DType dtype) {
      return filled(size, dtype, [&](auto i) {
        return static_cast<double>((std::uint64_t{1} << group.rank()) + (i % 2 == 0 ? 0 : odd));
      });
    };
    const auto expected = [&](ReduceOp op, std::int64_t i) {
      const bool set = i % 2 != 0 && (op != ReduceOp::bxor || world % 2 == 1);
      return static_cast<double>((op == ReduceOp::band ? 0 : every) + (set ? odd : 0));
    };
    for (const ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor})
      for (const std::int64_t size : {7, 1024, 5003}) {
        const DType dtype = size % 2 == 0 ? kInt64 : kInt32;
        const Tensor all = input(size, dtype);
        group.all_reduce(all, op)->wait();
        expect_values(
            all, [&](auto i) { return expected(op, i); }, "all_reduce");
        const Tensor one = input(size, dtype);
        group.reduce(one, 1, op)->wait();
        if (group.rank() == 1)
          expect_values(
              one, [&](auto i) { return expected(op, i); }, "reduce");
        const Tensor part = zeros({size}, {.dtype = dtype});
        group.reduce_scatter(part, input(size * group.world_size(), dtype), op)->wait();
        expect_values(
            part, [&](auto i) { return expected(op, group.rank() * size + i); }, "reduce_scatter");
      }
    for (const ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor}) {
      const Tensor flags =
          filled(3, kBool, [&](auto i) { return i == 0 || (i == 1 && group.rank() == 1) ? 1.0 : 0.0; });
      group.all_reduce(flags, op)->wait();
      const bool of_all = op != ReduceOp::bxor || world % 2 == 1;
      EXPECT_EQ(flags.to_vector<double>(),
                (std::vector<double>{of_all ? 1.0 : 0.0, op == ReduceOp::band ? 0.0 : 1.0, 0}))
          << name(op);
      for (const DType dtype : {kFloat32, kFloat16}) {
        const Tensor real = ones({2}, {.dtype = dtype});
        const std::string error = error_of([&] { group.all_reduce(real, op); });
        EXPECT_NE(error.find(std::string(name(op)) + " is defined for integers and bool; found "), std::string::npos)
            << error;
        EXPECT_NE(error_of([&] { group.reduce(real, 0, op); }), "");
        EXPECT_NE(error_of([&] { group.reduce_scatter(ones({1}, {.dtype = dtype}), real, op); }), "");
      }
    }
  });
}

TEST_P(Reductions, AllReduceGivesEveryRankTheSameBits) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor tensor = testing::make_input({size}, static_cast<std::uint32_t>(group.rank() + 1), kFloat32);
      group.all_reduce(tensor, ReduceOp::avg)->wait();
      const Tensor all = empty({group.world_size(), size});
      group.all_gather(all, tensor)->wait();
      for (int r = 1; r < group.world_size(); ++r)
        ASSERT_EQ(std::memcmp(all.data<float>(), all.data<float>() + r * size, static_cast<std::size_t>(size) * 4), 0);
    }
  });
}

TEST_P(Reductions, NanReachesEveryRank) {
  run([](ProcessGroup& group) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      const double value = group.rank() == 1 ? std::nan("") : 1.0;
      const Tensor tensor = filled(3, kFloat32, [&](auto i) { return i == 1 ? value : 1.0; });
      group.all_reduce(tensor, op)->wait();
      EXPECT_TRUE(std::isnan(tensor.data<float>()[1])) << name(op);
      EXPECT_FALSE(std::isnan(tensor.data<float>()[0])) << name(op);
    }
  });
}

TEST_P(Reductions, Reduce) {
  run([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root)
      for (const std::int64_t size : sizes_for(group)) {
        const Tensor tensor = input_of(group, size);
        group.reduce(tensor, root)->wait();
        const double factor = group.rank() == root ? rank_sum(group) : group.rank() + 1;
        expect_values(
            tensor, [&](auto i) { return factor * static_cast<double>(i % 5 + 1); }, "reduce");
      }
  });
}

TEST_P(Reductions, ReduceScatter) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor input = input_of(group, size * group.world_size());
      const Tensor output = zeros({size});
      group.reduce_scatter(output, input)->wait();
      expect_values(
          output, [&](auto i) { return rank_sum(group) * static_cast<double>((group.rank() * size + i) % 5 + 1); },
          "reduce_scatter");
    }
  });
}

}  // namespace
}  // namespace lockstep::distributed
