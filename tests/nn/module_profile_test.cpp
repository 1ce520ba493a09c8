// Events of a profile carry the module that they belong to, and the table adds them up by it.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/profile_modules.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/linear.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

struct Half : ModuleOf<Half> {
  using ModuleOf::ModuleOf;
  Linear inner{this, "inner", 6, 6};
  Tensor forward(const Tensor& x, double factor) { return relu(inner(x)) * factor; }
};

struct Net : Module {
  Half half{this, "half"};
  ModuleList<Linear> rest{this, "rest"};
  Net() { rest.add(6, 6); }
  Tensor forward(Tensor x) override { return exp(rest[0](half(x, 0.5))); }
};

/// The modules that events of this name are in, as the trace has them; "" for those in none.
std::set<std::string> modules_of(const std::string& trace, const std::string& name) {
  std::set<std::string> found;
  for (std::size_t at = trace.find("{\"name\":\"" + name); at != std::string::npos;
       at = trace.find("{\"name\":\"" + name, at + 1)) {
    const std::string line = trace.substr(at, trace.find('\n', at) - at);
    constexpr std::string_view kKey = "\"module\":\"";
    const std::size_t key = line.find(kKey);
    found.insert(key == std::string::npos
                     ? ""
                     : line.substr(key + kKey.size(), line.find('"', key + kKey.size()) - key - kKey.size()));
  }
  return found;
}

TEST(ModuleProfile, EventsCarryThePathOfTheirModule) {
  Net net;
  const testing::TemporaryPath path;
  const Tensor x = testing::make_input({5, 6}, 1, kFloat32);
  start_profile(path.text());
  const Tensor loss = net(x).sum();
  loss.backward();
  stop_profile();
  std::ifstream file(path.text());
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  using Names = std::set<std::string>;
  EXPECT_EQ(modules_of(trace, "linear\""), (Names{"half.inner", "rest.0"})) << trace;
  EXPECT_EQ(modules_of(trace, "LinearBackward"), (Names{"half.inner", "rest.0"})) << trace;
  EXPECT_EQ(modules_of(trace, "ReluBackward"), Names{"half"}) << trace;
  EXPECT_EQ(modules_of(trace, "unary exp"), Names{"(model)"}) << trace;
  EXPECT_EQ(modules_of(trace, "ExpBackward"), Names{"(model)"}) << trace;
  EXPECT_EQ(modules_of(trace, "SumBackward"), Names{""}) << trace;
}

TEST(ModuleProfile, TheTableCountsWhatIsInsideOnce) {
  using profile::TableEvent;
  const std::string table =
      profile::make_table({{TableEvent{"h.0", "outer", nullptr, true, 0, 10'000'000, 0},
                            TableEvent{"h.0", "call", nullptr, false, 0, 9'000'000, 0},
                            TableEvent{"h.1", "inner", "gelu", true, 1'000'000, 4'000'000, 8000, 3e8},
                            TableEvent{"h.1", "inner", "gelu", true, 6'000'000, 2'000'000, 4000, 3e8}},
                           {TableEvent{nullptr, "alone", nullptr, true, 0, 1'000'000, 0}}},
                          20'000'000);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < table.size(); at = table.find('\n', at) + 1)
    lines.push_back(table.substr(at, table.find('\n', at) - at));
  const auto line = [&](const char* module, const char* operation, int calls, double ms, double share,
                        const char* flops, const char* rate) {
    char text[160];
    std::snprintf(text, sizeof text, "%-28s %-36s %8d %11.3f %6.1f %% %8s %7s", module, operation, calls, ms, share,
                  flops, rate);
    return std::string(text);
  };
  ASSERT_EQ(lines.size(), 5u) << table;
  EXPECT_EQ(lines[1], line("h.1", "inner gelu", 2, 6.0, 30.0, "100.0", "0.0"));
  EXPECT_EQ(lines[2], line("h.0", "outer", 1, 4.0, 20.0, "-", "-"));
  EXPECT_EQ(lines[3], line("-", "alone", 1, 1.0, 5.0, "-", "-"));
  EXPECT_EQ(lines[4], line("", "outside of kernels", 0, 9.0, 45.0, "-", "-"));
}

}  // namespace
}  // namespace lockstep::nn
