#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "apps/lockstep_doctor/checks.h"
#include "apps/lockstep_doctor/command.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/launcher/spawn.h"
#include "lockstep/distributed/mpi/mpi.h"
#include "lockstep/distributed/nccl/nccl.h"

namespace lockstep::doctor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kArea = "all-reduce";
constexpr int kRanks = 2;
constexpr std::int64_t kElements = 250'000;  // float32: 1 MB
constexpr int kRounds = 10;

/// The time that one takes, in ms: the median of a few. Throws Error if a sum is wrong.
double all_reduce(const std::string& backend, const Request& request) {
  distributed::Job job = distributed::init({.backend = backend, .timeout = request.timeout});
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const Tensor tensor = full({kElements}, job.rank() + 1.0);
    const auto start = Clock::now();
    job.process_group()->all_reduce(tensor)->wait();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    constexpr float kSum = kRanks * (kRanks + 1) / 2;
    const float* const values = tensor.data<float>();
    LOCKSTEP_CHECK(std::all_of(values, values + kElements, [](float value) { return value == kSum; }),
                   "[doctor] the sum over {} is wrong: expected {} in every element", backend, kSum);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

std::string speed(double ms) {
  return fmt::format("1 MB between {} processes in {:.2f} ms", kRanks, ms);
}

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Memory that the ranks, which are copies of this process, write to.
class Answer {
 public:
  Answer() : memory_(::mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    LOCKSTEP_CHECK(memory_ != MAP_FAILED, "[doctor] no memory to share with processes: {}", std::strerror(errno));
  }
  ~Answer() { ::munmap(memory_, sizeof(double)); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  double& value() const { return *static_cast<double*>(memory_); }

 private:
  void* memory_;
};

Finding with_spawn(const std::string& backend, const Request& request) {
  Finding finding{kArea, backend, Verdict::ok, {}};
  try {
    const Answer answer;
    launcher::spawn(
        [&](int rank) {
          const double ms = all_reduce(backend, request);
          if (rank == 0) answer.value() = ms;
        },
        kRanks);
    finding.found = speed(answer.value());
  } catch (const Error& error) {
    finding.verdict = Verdict::failed;
    finding.found = one_line(error.what());
    finding.remedy = backend == "shm" ? "see ports and shared memory above; --backend gloo does without shared memory"
                                      : "see interfaces and ports above; LOCKSTEP_INTERFACE chooses the one to use, "
                                        "and a firewall may stand in the way";
  }
  return finding;
}

Finding with_mpirun(const Request& request, const std::string& program) {
  Finding finding{kArea, "mpi", Verdict::ok, {}};
  const bool under_launcher = std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK");
  if (under_launcher) {
    finding.verdict = Verdict::note;
    finding.found = "not tried, as this program runs under MPI itself";
    finding.remedy = "run lockstep-doctor by itself";
    return finding;
  }
  const std::vector<std::string> command = {"mpirun",
                                            "-n",
                                            std::to_string(kRanks),
                                            program,
                                            "--mpi-rank",
                                            "--timeout",
                                            fmt::format("{}", std::chrono::duration<double>(request.timeout).count())};
  // mpirun refuses root, and more ranks than cores, unless told.
  const Environment environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                   {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                   {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                   {"OMPI_MCA_mpi_yield_when_idle", "1"}};
  const CommandResult result = run_command(command, environment, 3 * request.timeout);
  constexpr std::string_view kWord = "milliseconds ";
  if (const auto at = result.output.find(kWord); result.status == 0 && at != std::string::npos) {
    finding.found = speed(std::strtod(result.output.c_str() + at + kWord.size(), nullptr));
    return finding;
  }
  finding.verdict = Verdict::failed;
  finding.found = result.status == kNoSuchProgram ? "there is no mpirun" : one_line(result.output);
  if (finding.found.empty()) finding.found = fmt::format("mpirun ended with status {}", result.status);
  finding.remedy =
      "install openmpi-bin, of the MPI that this build is linked with (see libraries), and try mpirun -n 2 "
      "hostname; see interfaces above; the other backends do without";
  return finding;
}

// Its ranks would be copies of this process, which has asked for the devices: CUDA cannot be used in a copy then.
Finding nccl_not_tried() {
  const std::string obstacle = distributed::nccl::why_unavailable();
  if (!obstacle.empty()) return {kArea, "nccl", Verdict::note, fmt::format("not tried: {}", obstacle)};
  return {kArea, "nccl", Verdict::note, "not tried, though NCCL and CUDA devices are here",
          "try lockstep-run --nproc-per-node NUMBER_OF_GPUS -- mnist_train --mode ddp --device cuda --max-steps 20"};
}

}  // namespace

Findings check_all_reduce(const Request& request, const std::string& program) {
  Findings found;
  for (const std::string& backend : distributed::available_backends()) {
    if (backend == "nccl") {
      found.push_back(nccl_not_tried());
      continue;
    }
    found.push_back(backend == "mpi" ? with_mpirun(request, program) : with_spawn(backend, request));
  }
  return found;
}

int run_mpi_rank(const Request& request) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    ::unsetenv(name);
  const double ms = all_reduce("mpi", request);
  fmt::print("milliseconds {:.4f}\n", ms);
  return 0;
}

}  // namespace lockstep::doctor
