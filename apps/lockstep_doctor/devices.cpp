#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "apps/lockstep_doctor/checks.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kArea = "devices";
constexpr const char* kPeerAccess = "peer access";
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

Finding cores() {
  const unsigned all = std::thread::hardware_concurrency();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int usable = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  if (usable > 0 && usable < static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)))
    return {kArea, "cores", Verdict::note,
            fmt::format("{} of {} may be used by this process", usable, ::sysconf(_SC_NPROCESSORS_ONLN)),
            "if that is too few, change taskset, the container's cpuset, or srun's --cpus-per-task and --cpu-bind"};
  return {kArea, "cores", Verdict::ok, fmt::format("{}", all)};
}

Finding memory() {
  const double total = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  double limit = 0;
  if (limit_file >> limit && limit > 0 && limit < total)
    return {kArea, "memory", Verdict::ok,
            fmt::format("{:.1f} GiB, of which this container may use {:.1f} GiB", total / kGiB, limit / kGiB)};
  return {kArea, "memory", Verdict::ok, fmt::format("{:.1f} GiB", total / kGiB)};
}

Finding peer_access(int from, int count) {
  std::string without;
  for (int to = 0; to < count; ++to)
    if (from != to && !cuda::can_access_peer(from, to)) without += fmt::format("{}{}", without.empty() ? "" : ", ", to);
  const std::string what = fmt::format("GPU {}", from);
  if (without.empty()) return {kPeerAccess, what, Verdict::ok, "reaches the memory of all others"};
  return {
      kPeerAccess, what, Verdict::note,
      fmt::format("does not reach the memory of GPU {}; copies go through the host", without),
      "see nvidia-smi topo -p2p r; in a virtual machine the host decides, and ACS in the BIOS may be what stands in "
      "the way"};
}

}  // namespace

Findings check_devices() {
  Findings found = {cores(), memory()};
  const int count = cuda::device_count();
  if (count == 0) {
    found.push_back({kArea, "GPUs", Verdict::note, cuda::why_unavailable(),
                     cuda::is_built() ? "for GPUs, look whether nvidia-smi lists them, and give them to the container "
                                        "(--gpus all) or the job (--gpus-per-node)"
                                      : "for GPUs, build with LOCKSTEP_CUDA=ON"});
    found.push_back({kPeerAccess, "GPUs", Verdict::ok, "there are none; processes reach each other's memory as below"});
    return found;
  }
  for (int i = 0; i < count; ++i) found.push_back({kArea, fmt::format("GPU {}", i), Verdict::ok, cuda::device_name(i)});
  if (count == 1) found.push_back({kPeerAccess, "GPU 0", Verdict::ok, "the only one"});
  for (int from = 0; from < count && count > 1; ++from) found.push_back(peer_access(from, count));
  return found;
}

}  // namespace lockstep::doctor
