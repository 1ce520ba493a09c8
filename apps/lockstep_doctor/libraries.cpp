#include <link.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "apps/lockstep_doctor/checks.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/distributed/job/job.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kArea = "libraries";
constexpr std::string_view kBlas = "BLAS";

struct Library {
  const char* name;
  bool built;
  const char* file;  // how its shared object's name begins
  const char* gives;
  const char* package;
};

constexpr Library kLibraries[] = {
    {"oneDNN", LOCKSTEP_WITH_ONEDNN, "libdnnl", "fast convolutions on the CPU", "libdnnl-dev"},
    {kBlas.data(), LOCKSTEP_WITH_BLAS, "libopenblas", "fast matrix products on the CPU", "libopenblas-dev"},
    {"Gloo", LOCKSTEP_WITH_GLOO, "libgloo", "jobs on several machines", "libgloo-dev"},
    {"MPI", LOCKSTEP_WITH_MPI, "libmpi", "--backend mpi", "libopenmpi-dev openmpi-bin"},
    {"CUDA", LOCKSTEP_WITH_CUDA, "libcudart", "training on GPUs", "the CUDA toolkit"},
};

/// The path of a shared object that this process has loaded; empty if there is none of that name.
std::string loaded(std::string_view name) {
  struct Search {
    std::string_view name;
    std::string path;
  } search{name, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& here = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name;
        if (!path.substr(path.rfind('/') + 1).starts_with(here.name)) return 0;
        here.path = path;
        return 1;
      },
      &search);
  return search.path;
}

Finding open_files() {
  constexpr rlim_t kEnough = 1024;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= kEnough)
    return {"limits", "open files", Verdict::ok,
            limit.rlim_cur == RLIM_INFINITY ? "no limit" : std::to_string(limit.rlim_cur)};
  return {"limits", "open files", Verdict::failed,
          fmt::format("{} at most; a store of many ranks and their connections need more", limit.rlim_cur),
          fmt::format("ulimit -n {}, or LimitNOFILE of the service", kEnough)};
}

Finding core_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_CORE, &limit);
  return {"limits", "core files", Verdict::ok,
          limit.rlim_cur == 0 ? "none are written after a crash (ulimit -c unlimited allows them)" : "allowed"};
}

/// The BLAS of LOCKSTEP_KERNELS=libraries, which no program opens before it needs it.
Finding blas(const Library& library) {
  // Read when it is loaded. Its threads would be of no use here, and where the address space is limited they keep a
  // program from ending.
  ::setenv("OPENBLAS_NUM_THREADS", "1", 0);
  try {
    const std::string name = cpu::gemm_library(cpu::Kernels::libraries);
    const std::string path = loaded(library.file);
    return {kArea, library.name, Verdict::ok, path.empty() ? name : path};
  } catch (const Error& error) {
    return {kArea, library.name, Verdict::note, error.what(), fmt::format("install {}", library.package)};
  }
}

/// What kernels that are chosen at run time are run with.
Finding instruction_set() {
  const std::string all = cpu::detail::names(cpu::instruction_sets());
  try {
    return {kArea, "instruction set", Verdict::ok,
            fmt::format("{} (of {}); matrix products: {}{}", cpu::name(cpu::instruction_set()), all,
                        cpu::gemm_library(), cpu::has_bfloat16_pairs() ? ", of bfloat16 by pairs" : "")};
  } catch (const Error& error) {
    return {kArea, "instruction set", Verdict::failed, error.what(), "correct or unset that variable"};
  }
}

}  // namespace

Findings check_libraries() {
  Findings found;
  found.push_back({kArea, "lockstep", Verdict::ok, LOCKSTEP_VERSION});
  for (const Library& library : kLibraries) {
    if (!library.built) {
      found.push_back({kArea, library.name, Verdict::note, "not part of this build",
                       fmt::format("for {}, install {} and build again", library.gives, library.package)});
      continue;
    }
    if (library.name == kBlas) {
      found.push_back(blas(library));
      continue;
    }
    const std::string path = loaded(library.file);
    found.push_back({kArea, library.name, Verdict::ok, path.empty() ? "part of this build" : path});
  }
  found.push_back(instruction_set());
  std::string backends;
  for (const std::string& name : distributed::available_backends()) backends += (backends.empty() ? "" : ", ") + name;
  found.push_back({kArea, "backends", Verdict::ok, backends});
  found.push_back(open_files());
  found.push_back(core_files());
  return found;
}

}  // namespace lockstep::doctor
