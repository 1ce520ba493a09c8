// lockstep-bisect A.jsonl B.jsonl: the first step and tensor in which two runs differ. Status 0: they are equal, 1:
// they are not, or a file cannot be read, 2: wrong usage.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "apps/lockstep_bisect/compare.h"

int main(int argc, char** argv) {
  CLI::App app{"Finds the first step and tensor in which two runs of mnist_train --trace-hashes differ.",
               "lockstep-bisect"};
  std::string a;
  std::string b;
  app.add_option("A", a, "Trace of one run")->required();
  app.add_option("B", b, "Trace of the other")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "lockstep-bisect: {}; see --help\n", error.what());
    return 2;
  }
  try {
    const lockstep::apps::Comparison comparison = lockstep::apps::compare_traces(a, b);
    fmt::print("{}\n", comparison.text);
    return comparison.equal ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep-bisect: {}\n", error.what());
    return 1;
  }
}
