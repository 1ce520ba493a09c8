// Stands for a training program in the launcher's tests: launcher_worker MODE [ARGUMENTS].

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/distributed/launcher/launcher.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/tcp_store.h"

namespace {

using lockstep::distributed::Milliseconds;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "(unset)";
}

// All ranks meet in the store that the launcher serves; rank 0 says how many came.
int meet() {
  lockstep::distributed::TCPStore store({variable("MASTER_ADDR"),
                                         static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))),
                                         variable("LOCKSTEP_TOKEN"), Milliseconds(20'000)});
  const std::string attempt = variable("LOCKSTEP_RESTART_COUNT") + "/";
  const int world_size = std::stoi(variable("WORLD_SIZE"));
  store.set(attempt + variable("RANK"), "here");
  for (int rank = 0; rank < world_size; ++rank) store.get(attempt + std::to_string(rank), Milliseconds(20'000));
  std::printf("rank %s met %d\n", variable("RANK").c_str(), world_size);
  return 0;
}

int wrong_token() {
  try {
    lockstep::distributed::TCPStore store({variable("MASTER_ADDR"),
                                           static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))),
                                           "another-token-of-fair-length", Milliseconds(5'000)});
    store.set("key", "value");
  } catch (const lockstep::distributed::StoreError&) {
    std::printf("refused\n");
    return 0;
  }
  return 1;
}

// The same program as launcher and worker, as mnist_train --nproc is.
int spawn(const std::string& count) {
  if (std::getenv("RANK")) {
    std::printf("worker %s of %s\n", variable("RANK").c_str(), variable("WORLD_SIZE").c_str());
    return variable("RANK") == "0" ? 0 : std::stoi(variable("LOCKSTEP_TEST_STATUS"));
  }
  std::printf("before\n");
  lockstep::launcher::Options options;
  options.nproc_per_node = std::stoi(count);
  options.output = lockstep::launcher::Output::rank0_plain;
  options.name = "launcher_worker";
  const int status = lockstep::launcher::run_local(options, {"spawn", count});
  std::printf("after\n");
  return status;
}

// More than a pipe takes, from rank 0 of two, which then makes a file.
int flood(const std::string& file) {
  if (!std::getenv("RANK")) {
    lockstep::launcher::Options options;
    options.nproc_per_node = 2;
    options.output = lockstep::launcher::Output::rank0_plain;
    return lockstep::launcher::run_local(options, {"flood", file});
  }
  if (variable("RANK") == "1") return 0;
  for (int i = 0; i < 20'000; ++i) std::printf("line %d, which nobody reads\n", i);
  std::printf("unfinished");
  std::fflush(stdout);
  std::FILE* made = std::fopen(file.c_str(), "w");
  return made && std::fclose(made) == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "meet") return meet();
    if (mode == "wrong-token") return wrong_token();
    if (mode == "spawn") return spawn(argv[2]);
    if (mode == "flood") return flood(argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launcher_worker: %s\n", error.what());
    return 1;
  }
  return 2;
}
