// Collectives of blocks of different sizes, and of objects.

#include <chrono>
#include <numeric>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using Counts = std::vector<std::int64_t>;

class Uneven : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, Uneven, all_cases(), case_name);

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

TEST_P(Uneven, AllGather) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : {1, 7, group.world_size() > 8 ? 1001 : 300'001}) {
      Counts counts;
      for (int r = 0; r < group.world_size(); ++r) counts.push_back(r == 1 ? 0 : size + 3 * r);
      const Tensor all = zeros({total(counts)}, {.dtype = kInt64});
      group.all_gather_uneven(all, input_of(group, counts[static_cast<std::size_t>(group.rank())], kInt64), counts)
          ->wait();
      std::vector<double> expected;
      for (int r = 0; r < group.world_size(); ++r)
        for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i) expected.push_back(element(r, i));
      expect_values(
          all, [&](auto i) { return expected[static_cast<std::size_t>(i)]; }, "all_gather_uneven");
    }
  });
}

TEST_P(Uneven, AllToAll) {
  run([](ProcessGroup& group) {
    // From rank a to rank b; nothing where b follows a.
    const auto count = [&](int from, int to, std::int64_t size) {
      return (from + 1) % group.world_size() == to ? 0 : size * (from + 1) + to;
    };
    for (const std::int64_t size : {1, 10, group.world_size() > 8 ? 100 : 90'001}) {
      Counts in, out;
      std::vector<double> given, expected;
      for (int r = 0; r < group.world_size(); ++r) {
        in.push_back(count(group.rank(), r, size));
        out.push_back(count(r, group.rank(), size));
        for (std::int64_t i = 0; i < in.back(); ++i) given.push_back(static_cast<double>(1000 * group.rank() + r));
        for (std::int64_t i = 0; i < out.back(); ++i) expected.push_back(static_cast<double>(1000 * r + group.rank()));
      }
      const Tensor input = filled(total(in), kInt32, [&](auto i) { return given[static_cast<std::size_t>(i)]; });
      const Tensor output = zeros({total(out)}, {.dtype = kInt32});
      group.all_to_all_uneven(output, input, out, in)->wait();
      expect_values(
          output, [&](auto i) { return expected[static_cast<std::size_t>(i)]; }, "all_to_all_uneven");
    }
  });
}

TEST_P(Uneven, Objects) {
  run([](ProcessGroup& group) {
    const int world = group.world_size(), root = world - 1;
    const auto object = [](int rank) {
      std::string bytes = "rank " + std::to_string(rank);
      bytes += '\0';
      bytes.append(rank == 1 ? 0 : static_cast<std::size_t>(rank) * 1000, 'x');
      return rank == 0 ? std::string() : bytes;
    };
    std::vector<std::string> all;
    for (int r = 0; r < world; ++r) all.push_back(object(r));
    EXPECT_EQ(group.all_gather_object(object(group.rank())), all);
    EXPECT_EQ(group.broadcast_object(group.rank() == root ? object(root) : "not the root's", root), object(root));
    EXPECT_EQ(group.broadcast_object("", 0), "");
    EXPECT_EQ(group.gather_object(object(group.rank()), root), group.rank() == root ? all : std::vector<std::string>());
    EXPECT_EQ(group.scatter_object(group.rank() == root ? all : std::vector<std::string>(), root),
              object(group.rank()));
  });
}

class UnevenFailure : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (GetParam() == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

INSTANTIATE_TEST_SUITE_P(All, UnevenFailure, ::testing::Values(Link::in_process, Link::gloo, Link::shm),
                         [](const auto& info) { return name_of(info.param); });

void expect_mismatch(Link link, const std::string& expected, const std::function<void(ProcessGroup&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  // A rank whose own counts fit may have ended the operation; the group is dead for it all the same.
  const std::vector<std::string> errors = errors_of_ranks(3, link, Milliseconds(20'000), [&](ProcessGroup& group) {
    body(group);
    group.barrier()->wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  bool told = false;
  for (const std::string& error : errors) {
    EXPECT_NE(error, "");
    told = told || error.find(expected) != std::string::npos;
  }
  EXPECT_TRUE(told) << errors[0] << "\n" << errors[1] << "\n" << errors[2];
}

TEST_P(UnevenFailure, OfCountsThatDoNotFitNamesThem) {
  // Large ones, which no transport holds back without a receiver.
  constexpr std::int64_t kSize = 400'000;
  expect_mismatch(GetParam(), "mismatched counts: rank 2 has 400000 element(s) for rank", [](ProcessGroup& group) {
    // Rank 2 has more than the others think.
    const Counts counts = group.rank() == 2 ? Counts{5, 5, kSize} : Counts{5, 5, kSize - 1};
    const Tensor own = ones({counts[static_cast<std::size_t>(group.rank())]});
    group.all_gather_uneven(zeros({total(counts)}), own, counts)->wait();
  });
  expect_mismatch(GetParam(), "mismatched counts: rank 0 has 3 element(s) for rank 1, which expects 0",
                  [](ProcessGroup& group) {
                    const Counts in = group.rank() == 0 ? Counts{1, 3, 0} : Counts{0, 0, 0};
                    const Counts out = group.rank() == 0 ? Counts{1, 0, 0} : Counts{0, 0, 0};
                    group.all_to_all_uneven(zeros({total(out)}), ones({total(in)}), out, in)->wait();
                  });
}

// The numbers in the message are the job's.
TEST_P(UnevenFailure, InAPartOfAJobNamesTheJobsRanks) {
  expect_mismatch(GetParam(), "mismatched counts: rank 2 has 2 element(s) for rank 1, which expects 1",
                  [](ProcessGroup& job) {
                    const ProcessGroupPtr part = job.split(job.rank() == 0 ? -1 : 0);
                    if (part) {
                      const Counts counts{1, part->rank() == 1 ? 2 : 1};
                      const Tensor own = ones({counts[static_cast<std::size_t>(part->rank())]});
                      part->all_gather_uneven(zeros({total(counts)}), own, counts)->wait();
                    }
                    job.barrier()->wait();
                  });
}

TEST(UnevenErrors, NameTheProblem) {
  const ProcessGroupPtr group = make_single_process_group();
  const Tensor three = ones({3}), four = ones({4});
  const auto expect = [](const std::function<void()>& call, const char* text) {
    EXPECT_NE(error_of(call).find(text), std::string::npos) << error_of(call);
  };
  expect(
      [&] {
        group->all_gather_uneven(three, three, {1, 2});
      },
      "[all_gather_uneven] 2 count(s) are given for output; expected one for each of 1 ranks");
  expect([&] { group->all_gather_uneven(three, four, {3}); },
         "input [4] has 4 elements; expected 3, the count of rank 0");
  expect([&] { group->all_gather_uneven(four, four, {3}); }, "output [4] has 1 elements more than its counts");
  expect([&] { group->all_to_all_uneven(three, three, {3}, {-1}); }, "a count of input is -1; expected 0 or more");
  expect([&] { group->all_to_all_uneven(three, three, {5}, {3}); }, "the counts of output exceed its 3 elements [3]");
  expect([&] { group->all_to_all_uneven(three, four, {3}, {4}); }, "rank 0 gives itself 4 elements and takes 3");
  expect([&] { group->scatter_object({"a", "b"}); }, "2 object(s) are given; expected one for each of 1 ranks");
  expect([&] { group->gather_object("a", 1); }, "root is 1; expected 0 to 0");
  const Tensor copy = zeros({3});
  group->all_gather_uneven(copy, three, {3})->wait();
  EXPECT_EQ(copy.to_vector<double>(), three.to_vector<double>());
  EXPECT_EQ(group->all_gather_object("alone"), std::vector<std::string>{"alone"});
  EXPECT_EQ(group->scatter_object({"alone"}), "alone");
}

}  // namespace
}  // namespace lockstep::distributed
