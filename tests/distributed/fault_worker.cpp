// One rank of a small training in which something goes wrong; see fault_support.h. Prints "ready" once it has
// all-reduced with the others, so that no fault is tested on a world of one; the faulty rank prints "phase SCENARIO"
// when it comes to its fault. Ends with status 3 and the error on stderr when it learns of a fault. Usage: fault_worker
// URL RANK WORLD_SIZE TIMEOUT_MS SCENARIO FAULTY_RANK BACKEND

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/nn/safetensors.h"

namespace ls = lockstep;
using ls::distributed::Milliseconds;

namespace {

constexpr int kFaultyStep = 5;

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

struct Net : ls::nn::Module {
  ls::nn::Linear fc1{this, "fc1", 64, 64}, fc2{this, "fc2", 64, 4};
  ls::Tensor forward(ls::Tensor x) override { return fc2(relu(fc1(x))); }
};

class Training {
 public:
  Training(ls::distributed::Job& job, std::string scenario, bool faulty, Milliseconds timeout)
      : job_(job), group_(*job.process_group()), scenario_(std::move(scenario)), faulty_(faulty), timeout_(timeout) {}

  void run(int steps) {
    Net model;
    model.fc1.weight.register_hook([&](const ls::Tensor&) { here("backward"); });
    const bool divided = scenario_.starts_with("divided_");
    ls::distributed::DistributedDataParallel ddp(model, job_, {.zero = divided ? 3 : 0});
    std::unique_ptr<ls::optim::Optimizer> optimizer;
    if (divided) optimizer = ls::distributed::zero_redundancy<ls::optim::SGD>(ddp.training_step(), {.lr = 0.1});
    const int last = scenario_.starts_with("long") ? 1'000'000 : steps;
    for (step_ = 0; step_ < last; ++step_) {
      if (scenario_ == "skip" && at_fault()) {
        say("phase skip");
        ++step_;
      }
      if (scenario_.starts_with("skip")) group_.set_step(step_, /*checked=*/scenario_ == "skip");
      if (scenario_ == "skip_unnumbered" && at_fault()) {
        say("phase skip_unnumbered");
        continue;
      }
      const ls::data::Batch batch{ls::ones({6, 64}), ls::zeros({6}, {.dtype = ls::kInt64}), 6};
      ddp.step(batch, [&](const ls::data::Batch& part) {
        here("forward");
        if (at_fault() && scenario_ == "divided_loss") {
          say("phase divided_loss");
          throw std::runtime_error("out of butter");
        }
        return cross_entropy(model(part.x), part.y);
      });
      if (optimizer) optimizer->step();
      if (step_ == kFaultyStep) fault(model);
    }
  }

 private:
  bool at_fault() const { return faulty_ && step_ == kFaultyStep; }

  /// Stops here for good if this is the place; the test kills or stops this process.
  void here(const std::string& place) {
    if (!at_fault() || scenario_ != place) return;
    say("phase " + scenario_);
    std::this_thread::sleep_for(std::chrono::minutes(2));
  }

  void fault(Net& model) {
    if (scenario_ == "collective") {
      if (faulty_) say("phase " + scenario_);
      for (;;) group_.all_reduce(ls::ones({2'000'000}))->wait();
    }
    if (scenario_ == "split" || scenario_ == "part") part();
    if (scenario_ == "checkpoint" || scenario_ == "full_disk") checkpoint(model);
    if (!faulty_) return;
    if (scenario_ != "checkpoint" && scenario_ != "split" && scenario_ != "part" && scenario_ != "forward" &&
        scenario_ != "backward")
      say("phase " + scenario_);
    if (scenario_ == "idle") std::this_thread::sleep_for(std::chrono::minutes(2));
    if (scenario_ == "late") std::this_thread::sleep_for(4 * timeout_);
    if (scenario_ == "slow") std::this_thread::sleep_for(timeout_ / 2);
    if (scenario_ == "throw") model.forward(ls::ones({3, 3}));
    if (scenario_.ends_with("throw_own")) throw std::runtime_error("out of milk");
    if (scenario_ == "uncaught") throw std::runtime_error("out of bread");
    if (scenario_.ends_with("stands_still")) {
      std::this_thread::sleep_for(timeout_ / 5);  // what is told in the beginning is told then
      ::raise(SIGSTOP);
    }
    if (scenario_ == "exit") std::exit(0);
    if (scenario_ == "_exit") ::_exit(0);
    if (scenario_.starts_with("fork_")) fork_child();
    if (scenario_ == "return") step_ = 1'000'000'000;
    if (scenario_ == "segv") ::raise(SIGSEGV);
    if (scenario_ == "operation") group_.broadcast(ls::ones({3}, {.dtype = ls::kFloat64}), 0)->wait();
    if (scenario_ == "shape") group_.all_reduce(ls::ones({7}))->wait();
    if (scenario_ == "dtype") group_.all_reduce(ls::ones({3}, {.dtype = ls::kFloat32}))->wait();
    if (scenario_ == "reduction")
      group_.all_reduce(ls::ones({3}, {.dtype = ls::kFloat64}), ls::distributed::ReduceOp::max)->wait();
    if (scenario_ == "rank0_only") {
      const ls::distributed::Rank0Only scope("counting the samples");
      group_.all_reduce(ls::ones({1}));
    }
  }

  /// The child leaves as its parent would, with copies of the group, the job and the rest; the parent goes on.
  void fork_child() {
    const pid_t child = ::fork();
    if (child == 0 && scenario_ == "fork_throw") throw std::runtime_error("the child's own");
    if (child == 0 && scenario_ == "fork_use") {
      try {
        group_.all_reduce(ls::ones({2}));
      } catch (const ls::Error& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
    }
    if (child == 0) return void(step_ = 1'000'000'000);
    int status = -1;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (::waitpid(child, &status, WNOHANG) == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(Milliseconds(5));
    say("child " + std::to_string(status));
    ::kill(child, SIGKILL);
  }

  /// Ranks 1 and 2 work in a group of their own, and rank 0 waits for them in the job's.
  void part() {
    here("split");
    const ls::distributed::ProcessGroupPtr part = group_.split(group_.rank() == 0 ? 1 : 0);
    if (faulty_) say("phase part");
    while (part->world_size() > 1) part->all_reduce(ls::ones({1000}))->wait();
    group_.barrier()->wait();
  }

  void checkpoint(Net& model) {
    ls::distributed::rank0_only(job_, "saving the checkpoint", [&] {
      if (scenario_ == "full_disk") say("phase full_disk");
      const char* const folder = std::getenv("LOCKSTEP_FAULT_DIR");
      ls::nn::save(model, std::string(folder ? folder : "/tmp") + "/checkpoint.safetensors");
      here("checkpoint");
      std::this_thread::sleep_for(timeout_ / 2);  // so that the others are waiting when one of them is killed
    });
    if (faulty_) say("phase " + scenario_);
    group_.barrier()->wait();
  }

  ls::distributed::Job& job_;
  ls::distributed::ProcessGroup& group_;
  std::string scenario_;
  bool faulty_;
  Milliseconds timeout_;
  int step_ = 0;
};

int run(char** argv) {
  const std::string scenario = argv[5];
  const int rank = std::atoi(argv[2]), faulty = std::atoi(argv[6]);
  const Milliseconds timeout(std::atoi(argv[4]));
  if (scenario == "serve") {
    const ls::distributed::TCPStoreServer server;
    say("port " + std::to_string(server.port()));
    ::pause();
  }
  say("starting");
  ls::distributed::Job job = ls::distributed::init(
      {.init_method = argv[1], .backend = argv[7], .timeout = timeout, .rank = rank, .world_size = std::atoi(argv[3])});
  const ls::Tensor count = ls::ones({1});
  job.process_group()->all_reduce(count)->wait();
  say("ready " + std::to_string(static_cast<int>(count.item())));
  Training(job, scenario, rank == faulty, timeout).run(20);
  say("ended well");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  if (argv[5] == std::string("uncaught")) return run(argv);  // as a program without a try block
  try {
    return run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fault_worker: %s\n", error.what());
    return 3;
  }
}
