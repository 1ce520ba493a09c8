#include <cstdint>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"

namespace lockstep::distributed {
namespace {

std::string_view text_of(const Environment& environment, std::string_view name) {
  const auto entry = environment.find(name);
  return entry == environment.end() ? std::string_view() : entry->second;
}

constexpr int kMostPort = 65'535;

std::optional<int> number_of(const Environment& environment, std::string_view name, int least, int most) {
  const std::string_view text = text_of(environment, name);
  if (text.empty()) return {};
  const auto value = parse_number<int>(text);
  LOCKSTEP_CHECK(value && *value >= least && *value <= most,
                 "[rendezvous] the environment variable {} is '{}'; expected a whole number from {} to {}: correct it, "
                 "or unset it and start the program with lockstep-run{}",
                 name, text, least, most,
                 name == "MASTER_PORT" && text.starts_with("tcp://")
                     ? " (Kubernetes gives it such a value in every pod, where a service is called \"master\")"
                     : "");
  return value;
}

/// Of what one launcher has told this process, one number must lie below another, and may be as large as it is not.
void check_below(const Environment& environment, std::string_view name, std::optional<int> value,
                 std::string_view limit_name, std::optional<int> limit) {
  if (!value || !limit) return;
  LOCKSTEP_CHECK(*value < *limit,
                 "[rendezvous] the environment variable {} is '{}', and {} is '{}'; expected 0 to {}, another one for "
                 "each process: correct one of the two, or start the program with lockstep-run",
                 name, text_of(environment, name), limit_name, text_of(environment, limit_name), *limit - 1);
}

/// Why nobody can tell this process's place in the job where a launcher has told only a part of it.
std::string incomplete(const Environment& environment, std::string_view there, std::string_view missing,
                       std::string_view starter) {
  return fmt::format(
      "[rendezvous] the environment variable {} is '{}', as in a process that {} has started as one of several, and {} "
      "is missing: start the program with {} or lockstep-run, which set what is needed, or set RANK and WORLD_SIZE; to "
      "train in this process alone, unset {}",
      there, text_of(environment, there), starter, missing, starter, there);
}

/// True in a process that srun has started. A batch script, and the shell in which an allocation is used interactively,
/// are steps of numbers above all others where they have one.
bool is_in_slurm_step(const Environment& environment) {
  const std::string_view text = text_of(environment, "SLURM_STEP_ID");
  return !text.empty() && parse_number<std::uint32_t>(text).value_or(0) < 0xfffffff0u;
}

/// The leading count of Slurm's "4(x2),3": tasks on the first node. Only of use where all nodes are alike.
std::optional<int> first_count(std::string_view text) {
  return parse_number<int>(text.substr(0, text.find_first_not_of("0123456789")));
}

/// The first host of a Slurm node list such as "gpu[03-07,9],login1": "gpu03".
std::string first_host(std::string_view list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) return std::string(list.substr(0, comma));
  const std::string_view inside = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)).append(inside.substr(0, inside.find_first_of("-,]")));
}

/// A port from 20000 to 29999 for a job's name: below the ephemeral range, and the same for all its processes.
int port_of(std::string_view job) {
  std::uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20'000 + static_cast<int>((hash ^ (hash >> 16)) % 10'000);
}

}  // namespace

LauncherVariables read_launcher(const Environment& environment) {
  const auto has = [&](std::string_view name) { return !text_of(environment, name).empty(); };
  const auto number = [&](std::string_view name) { return number_of(environment, name, 0, kMostRanks - 1); };
  const auto count = [&](std::string_view name) { return number_of(environment, name, 1, kMostRanks); };
  const auto text = [&](std::string_view name) { return std::string(text_of(environment, name)); };
  LauncherVariables found;
  found.master_addr = text("MASTER_ADDR");
  // An IPv6 address as it is written in URLs.
  if (found.master_addr.starts_with('[') && found.master_addr.ends_with(']'))
    found.master_addr = found.master_addr.substr(1, found.master_addr.size() - 2);
  if (const auto port = parse_number<std::uint16_t>(text_of(environment, "MASTER_PORT"))) found.master_port = *port;
  if (has("RANK") || has("WORLD_SIZE")) {
    found.launcher = "lockstep-run or torchrun";
    found.rank = number("RANK");
    found.world_size = count("WORLD_SIZE");
    found.local_rank = number("LOCAL_RANK");
    found.local_world_size = count("LOCAL_WORLD_SIZE");
    check_below(environment, "RANK", found.rank, "WORLD_SIZE", found.world_size);
    check_below(environment, "LOCAL_RANK", found.local_rank, "LOCAL_WORLD_SIZE", found.local_world_size);
    check_below(environment, "LOCAL_RANK", found.local_rank, "WORLD_SIZE", found.world_size);
    LOCKSTEP_CHECK(found.local_world_size.value_or(1) <= found.world_size.value_or(kMostRanks),
                   "[rendezvous] the environment variable LOCAL_WORLD_SIZE is '{}', and WORLD_SIZE is '{}'; expected "
                   "1 to {}, as many as there are of the job's processes on this machine: correct one of the two, or "
                   "start the program with lockstep-run",
                   text("LOCAL_WORLD_SIZE"), text("WORLD_SIZE"), text("WORLD_SIZE"));
    found.port_is_launchers = found.master_port && text_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (found.port_is_launchers)
      found.job_name = fmt::format("torchrun {} {} {} {}", text("TORCHELASTIC_RUN_ID"), found.master_addr,
                                   *found.master_port, text("TORCHELASTIC_RESTART_COUNT"));
  } else if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) {
    found.launcher = "Open MPI";
    found.rank = number("OMPI_COMM_WORLD_RANK");
    found.world_size = count("OMPI_COMM_WORLD_SIZE");
    found.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
    found.local_world_size = count("OMPI_COMM_WORLD_LOCAL_SIZE");
    check_below(environment, "OMPI_COMM_WORLD_RANK", found.rank, "OMPI_COMM_WORLD_SIZE", found.world_size);
    for (const auto& [there, missing] : {std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                         std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")})
      if (!has(missing)) found.incomplete = incomplete(environment, there, missing, "mpirun");
    const std::string job = has("PMIX_NAMESPACE") ? text("PMIX_NAMESPACE") : text("OMPI_MCA_ess_base_jobid");
    if (!job.empty()) found.job_name = "Open MPI " + job;
    found.derived_port = port_of(job);
  } else if (has("SLURM_PROCID") && is_in_slurm_step(environment)) {
    // Without a step this is the batch script itself, which is alone.
    found.launcher = "Slurm";
    found.rank = number("SLURM_PROCID");
    found.world_size = count("SLURM_NTASKS");
    check_below(environment, "SLURM_PROCID", found.rank, "SLURM_NTASKS", found.world_size);
    if (!found.world_size) found.incomplete = incomplete(environment, "SLURM_PROCID", "SLURM_NTASKS", "srun");
    found.local_rank = number("SLURM_LOCALID");
    found.local_world_size = first_count(text_of(environment, "SLURM_STEP_TASKS_PER_NODE"));
    const std::string_view nodes =
        text_of(environment, has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
    // Rank 0 runs on the first node of the step. The launch node is another one when srun was called from elsewhere.
    found.first_node = nodes.empty() ? text("SLURM_LAUNCH_NODE_IPADDR") : first_host(nodes);
    const std::string step = text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID");
    found.job_name = "Slurm " + step;
    found.derived_port = port_of(step);
  } else if (has("PMIX_RANK")) {
    found.launcher = "PMIx";
    found.rank = number("PMIX_RANK");
    found.world_size = count("PMIX_SIZE");
    check_below(environment, "PMIX_RANK", found.rank, "PMIX_SIZE", found.world_size);
    found.derived_port = port_of(text("PMIX_NAMESPACE"));
  } else if (has("SLURM_PROCID")) {
    // A batch script has number 0. Another one is a step's, and must fit as one.
    const std::optional<int> rank = number("SLURM_PROCID");
    check_below(environment, "SLURM_PROCID", rank, "SLURM_NTASKS", count("SLURM_NTASKS"));
    if (*rank > 0) {
      found.launcher = "Slurm";
      found.rank = rank;
      found.incomplete = incomplete(environment, "SLURM_PROCID", "SLURM_STEP_ID", "srun");
    }
  }
  // Where no launcher says that there are other processes, what has that name need be no port.
  if (!found.launcher.empty()) number_of(environment, "MASTER_PORT", 0, kMostPort);
  return found;
}

}  // namespace lockstep::distributed
