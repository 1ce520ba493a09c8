#include "lockstep/core/profile.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::TemporaryPath;

enum class Kind { plain };
const char* profile_label(Kind) {
  return "plain";
}

void fill_ones(Kind, const Tensor& x, double, const Tensor& out) {
  parallel_for(out.numel(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out.data<float>()[i] = x.data<float>()[0];
  });
}
constexpr KernelTable<void(Kind, const Tensor&, double, const Tensor&)> fill_kernel{"fill", fill_ones};

void run_kernel() {
  const Tensor x = ones({1}), out = empty({2, 3});
  fill_kernel(out)(Kind::plain, x, 1.0, out);
  EXPECT_EQ(out.data<float>()[5], 1.0f);
}

json read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(std::string(std::istreambuf_iterator<char>(file), {}))["traceEvents"];
}

const json* find(const json& events, const std::string& name, const std::string& category) {
  for (const json& event : events)
    if (event["name"] == name && event.value("cat", "") == category) return &event;
  return nullptr;
}

class Profile : public ::testing::Test {
 protected:
  void TearDown() override {
    set_num_threads(before_);
    unsetenv("RANK");
  }
  TemporaryPath path_;
  int before_ = num_threads();
};

TEST_F(Profile, AKernelIsAnEventWithLabelShapesAndBytes) {
  start_profile(path_.text());
  run_kernel();
  stop_profile();
  const json events = read(path_.text());
  const json* event = find(events, "fill plain", "kernel");
  ASSERT_TRUE(event) << events;
  EXPECT_EQ((*event)["ph"], "X");
  EXPECT_EQ((*event)["args"]["shapes"], "[1] [2, 3]");
  EXPECT_EQ((*event)["args"]["bytes"], 28);
  EXPECT_GE((*event)["ts"].get<double>(), 0.0);
  EXPECT_GE((*event)["dur"].get<double>(), 0.0);
  EXPECT_TRUE(event->contains("pid") && event->contains("tid"));
}

TEST_F(Profile, SmallProductsArePartOfWhoComputesThem) {
  const auto multiply = [](std::int64_t n) {
    const Tensor a = ones({n, n}), out = empty({n, n});
    cpu::gemm({.m = n,
               .n = n,
               .k = n,
               .a = {a.data<float>(), n},
               .b = {a.data<float>(), n},
               .out = out.data<float>(),
               .out_stride = n});
  };
  start_profile(path_.text());
  {
    const profile::Scope scope("kernel", "matmul");
    for (int i = 0; i < 100; ++i) multiply(8);
  }
  multiply(128);
  stop_profile();
  const json events = read(path_.text());
  EXPECT_TRUE(find(events, "matmul", "kernel"));
  const auto is_product = [](const json& event) { return event.value("cat", "") == "gemm"; };
  EXPECT_EQ(std::ranges::count_if(events, is_product), 1) << events.size() << " events";
  const json* const large = find(events, "gemm", "gemm");
  ASSERT_TRUE(large);
  EXPECT_EQ((*large)["args"]["shapes"], "[128, 128, 128]");
}

TEST_F(Profile, PoolThreadsNameWhatTheyWorkOn) {
  set_num_threads(2);
  start_profile(path_.text());
  {
    const profile::Scope scope("test", "outer");
    // Each block waits for the other one, so that both threads take part. The deadline bounds a failure.
    std::atomic<int> inside{0};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      while (inside.load() < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    });
  }
  stop_profile();
  const json events = read(path_.text());
  const json *outer = find(events, "outer", "test"), *worker = find(events, "outer", "worker");
  ASSERT_TRUE(outer && worker) << events;
  EXPECT_NE((*outer)["tid"], (*worker)["tid"]);
  EXPECT_FALSE(outer->contains("args"));
}

TEST_F(Profile, ScopesNest) {
  start_profile(path_.text());
  EXPECT_EQ(profile::current_name(), nullptr);
  {
    const profile::Scope outer("test", "outer");
    const profile::Scope inner("test", "inner");
    EXPECT_STREQ(profile::current_name(), "inner");
  }
  EXPECT_EQ(profile::current_name(), nullptr);
  stop_profile();
  const json events = read(path_.text());
  const json *outer = find(events, "outer", "test"), *inner = find(events, "inner", "test");
  ASSERT_TRUE(outer && inner);
  EXPECT_LE((*outer)["ts"].get<double>(), (*inner)["ts"].get<double>());
}

void count_sums(const Tensor&) {
  profile::add_multiply_adds(500);
}
constexpr KernelTable<void(const Tensor&)> counting_kernel{"counting", count_sums};

TEST_F(Profile, MultiplyAddsCountForTheInnermostEvent) {
  const Tensor x = ones({1});
  profile::add_multiply_adds(1);  // while nothing is recorded
  start_profile(path_.text());
  profile::add_multiply_adds(1);  // outside of events
  {
    const profile::Scope outer("kernel", "outer");
    counting_kernel(x)(x);
    profile::add_multiply_adds(7);
  }
  stop_profile();
  const json events = read(path_.text());
  const json *outer = find(events, "outer", "kernel"), *inner = find(events, "counting", "kernel");
  ASSERT_TRUE(outer && inner) << events;
  EXPECT_EQ((*outer)["args"]["flops"], 14);
  EXPECT_EQ((*inner)["args"]["flops"], 1000);
}

TEST_F(Profile, NothingIsRecordedWhileItIsOff) {
  ASSERT_FALSE(profile::enabled());
  const profile::Scope scope("test", "off");
  EXPECT_FALSE(scope.active());
  stop_profile();
  EXPECT_FALSE(std::ifstream(path_.text()).good());
}

TEST_F(Profile, AProfileWithoutEventsWritesNothing) {
  start_profile(path_.text());
  stop_profile();
  EXPECT_FALSE(std::ifstream(path_.text()).good());
}

TEST_F(Profile, StartingAgainDropsWhatWasThere) {
  start_profile(path_.text() + ".first");
  { const profile::Scope scope("test", "first"); }
  start_profile(path_.text());
  { const profile::Scope scope("test", "second"); }
  stop_profile();
  const json events = read(path_.text());
  EXPECT_FALSE(find(events, "first", "test"));
  EXPECT_TRUE(find(events, "second", "test"));
}

TEST_F(Profile, EveryRankHasAFileOfItsOwn) {
  setenv("RANK", "3", 1);
  start_profile(path_.text() + ".json");
  { const profile::Scope scope("test", "ranked"); }
  stop_profile();
  const std::string file = path_.text() + ".rank3.json";
  EXPECT_TRUE(find(read(file), "ranked", "test"));
  std::remove(file.c_str());
}

// Whoever may write into the folder can tell the number of a process, but not what is drawn.
TEST_F(Profile, IsWrittenThroughNothingThatIsPlanted) {
  const testing::TempDir folder;
  std::ofstream(folder / "victim") << "another's";
  std::filesystem::create_symlink("victim", folder / fmt::format("trace.json.{}", ::getpid()));
  std::filesystem::create_symlink("elsewhere.json", folder / "trace.json");
  start_profile(folder / "trace.json");
  { const profile::Scope scope("test", "planted"); }
  stop_profile();
  std::ifstream victim(folder / "victim");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(victim), {}), "another's");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "trace.json"));  // one's own is followed, as by every output
  EXPECT_TRUE(find(read(folder / "elsewhere.json"), "planted", "test"));
}

TEST_F(Profile, ErrorsNameTheFile) {
  start_profile("/no/such/folder/trace.json");
  { const profile::Scope scope("test", "lost"); }
  const std::string missing = testing::error_of([] { stop_profile(); });
  EXPECT_NE(missing.find("'/no/such/folder/trace.json'"), std::string::npos) << missing;
  const TemporaryPath pipe;
  ASSERT_EQ(::mkfifo(pipe.text().c_str(), 0600), 0);
  start_profile(pipe.text());
  { const profile::Scope scope("test", "lost"); }
  EXPECT_NE(testing::error_of([] { stop_profile(); }).find("a device, pipe or socket has this name"),
            std::string::npos);
  const std::string empty = testing::error_of([] { start_profile(""); });
  EXPECT_NE(empty.find("expected the name of a file"), std::string::npos) << empty;
}

}  // namespace
}  // namespace lockstep
