// lockstep-bisect A.jsonl B.jsonl: the first step and tensor in which two runs differ. Status 0: they are equal, 1:
// they are not, or a file is cut off or cannot be read, 2: wrong usage.

#include "lockstep/train/command_line/main.h"

#include <fmt/core.h>

#include <string>

#include "apps/lockstep_bisect/compare.h"
#include "lockstep/train/command_line/parse.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  return command_line::run_main("lockstep-bisect", [&] {
    CLI::App app{
        "Finds the first step and tensor in which two runs with --trace-hashes differ. Status 1 if they do, or if a "
        "trace is cut off or cannot be read.",
        "lockstep-bisect"};
    std::string a;
    std::string b;
    app.add_option("A", a, "Trace of one run")->required();
    app.add_option("B", b, "Trace of the other")->required();
    if (!command_line::parse(app, argc, argv)) return 0;
    const apps::Comparison comparison = apps::compare_traces(a, b);
    fmt::print("{}\n", comparison.text);
    return comparison.equal ? 0 : 1;
  });
}
