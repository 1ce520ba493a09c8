#include "distributed/job/job.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "core/log.h"
#include "distributed/gloo/gloo.h"
#include "distributed/mpi/mpi.h"
#include "distributed/rendezvous/rendezvous.h"
#include "distributed/shm/shm.h"
#include "distributed/store/hash_store.h"
#include "distributed/store/prefix_store.h"
#include "distributed/store/socket.h"

namespace lockstep::distributed {
namespace {

// How long rank 0 keeps the store for ranks that are still on their way out.
constexpr Milliseconds kFarewell{10'000};

/// After a failure the others need it to find out what has happened, and some may never close their connections.
Milliseconds farewell(bool failed, Milliseconds timeout) {
  return failed ? std::min(kFarewell, timeout / 4) : kFarewell;
}

Device device_of(const InitOptions& options) {
  if (options.device == "auto") return Device(kCPU);
  const Device device(options.device);
  LOCKSTEP_CHECK(device.is_cpu(), "[init] device '{}' is not available in this build; use cpu", options.device);
  return device;
}

void check_backend(const std::string& backend) {
  const std::vector<std::string> available = available_backends();
  std::string names = "auto";
  for (const std::string& name : available) names += ", " + name;
  LOCKSTEP_CHECK(backend == "auto" || std::find(available.begin(), available.end(), backend) != available.end(),
                 "[init] backend '{}' is not available in this build; available: {}", backend, names);
}

std::string text_of(const Environment& environment, std::string_view name) {
  const auto entry = environment.find(name);
  return entry == environment.end() ? std::string() : entry->second;
}

/// Where the other ranks can reach this one.
gloo::Options gloo_options(const Rendezvous& found, const Environment& environment) {
  gloo::Options options;
  std::string wish = text_of(environment, "LOCKSTEP_INTERFACE");
  if (wish.empty()) wish = text_of(environment, "GLOO_SOCKET_IFNAME");
  if (!wish.empty()) {
    (if_nametoindex(wish.c_str()) != 0 ? options.interface : options.address) = wish;
    return options;
  }
  if (found.single_node) return options;
  LOCKSTEP_CHECK(!found.master_addr.empty(),
                 "[init] the job has several machines, and nothing says how they reach each other: set MASTER_ADDR to "
                 "the address of rank 0's machine, or LOCKSTEP_INTERFACE to this machine's interface or address");
  options.address = local_address_towards(found.master_addr, static_cast<std::uint16_t>(found.master_port));
  return options;
}

ProcessGroupPtr make_group(const std::string& backend, const Rendezvous& place, const ProcessGroupOptions& group,
                           const Environment& environment) {
  const auto scoped = [&](const char* name) {
    return std::make_shared<PrefixStore>(std::string("world/") + name, place.store);
  };
  if (backend == "shm") return shm::make_process_group(scoped("shm"), group);
  if (backend == "mpi") return mpi::make_process_group(scoped("mpi"), group);
  if (backend == "auto") {
    shm::Attempt attempt = shm::try_process_group(scoped("shm"), group);
    if (attempt.group) return std::move(attempt.group);
    if (group.rank == 0) logging::info("gloo carries this job; not shared memory, because of {}", attempt.obstacle);
    LOCKSTEP_CHECK(gloo::is_available(),
                   "[init] the ranks cannot share memory ({}), and this build has no Gloo; install libgloo-dev and "
                   "configure with LOCKSTEP_GLOO=ON",
                   attempt.obstacle);
  }
  return gloo::make_process_group(scoped("gloo"), group, gloo_options(place, environment));
}

}  // namespace

struct Job::State {
  Rendezvous place;
  Device device;
  StorePtr store;
  ProcessGroupPtr group;

  ~State() {
    try {
      // Others may still hold the group or store; then they are not at their end, and nobody is waited for.
      const bool last = group.use_count() == 1 && store.use_count() == 1;
      const bool failed = std::uncaught_exceptions() > 0 || (group && group->failed());
      const Milliseconds patience = farewell(failed, group ? group->timeout() : kFarewell);
      group.reset();
      store.reset();
      place.store.reset();
      if (place.server && last && !place.server->wait_until_idle(patience))
        logging::info("the store closes while {} connections are open", place.server->connections());
    } catch (const std::exception& error) {
      logging::warn("leaving the job: {}", error.what());
    }
  }
};

Job::Job(std::unique_ptr<State> state) : state_(std::move(state)) {}
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;
Job::~Job() = default;

int Job::rank() const {
  return state_->place.rank;
}
int Job::world_size() const {
  return state_->place.world_size;
}
int Job::local_rank() const {
  return state_->place.local_rank;
}
int Job::local_world_size() const {
  return state_->place.local_world_size;
}
Device Job::device() const {
  return state_->device;
}
std::string Job::backend() const {
  return std::string(state_->group->backend());
}
const ProcessGroupPtr& Job::process_group() const {
  return state_->group;
}
const StorePtr& Job::store() const {
  return state_->store;
}

std::vector<std::string> available_backends() {
  std::vector<std::string> names = {"shm"};
  if (gloo::is_available()) names.push_back("gloo");
  if (mpi::is_available()) names.push_back("mpi");
  return names;
}

Job init(const InitOptions& options) {
  check_backend(options.backend);
  LOCKSTEP_CHECK(options.timeout.count() > 0, "[init] the timeout is {} ms; expected a positive one",
                 options.timeout.count());
  auto state = std::make_unique<Job::State>();
  state->device = device_of(options);
  const Environment environment = current_environment();
  const bool alone = options.init_method.empty() && !options.rank && !options.world_size &&
                     read_launcher(environment).launcher.empty();
  if (!alone)
    state->place = rendezvous({.url = options.init_method.empty() ? "env://" : options.init_method,
                               .rank = options.rank,
                               .world_size = options.world_size,
                               .token = options.token,
                               .timeout = options.timeout},
                              environment);
  Rendezvous& place = state->place;
  ProcessGroupOptions group{.rank = place.rank, .world_size = place.world_size, .timeout = options.timeout};
  if (place.world_size == 1) {
    state->store = std::make_shared<HashStore>();
    state->group = make_single_process_group(group);
    return Job(std::move(state));
  }
  logging::set_prefix(fmt::format("[Rank {}] ", place.rank));
  state->store = std::make_shared<PrefixStore>("user", place.store);
  state->group = make_group(options.backend, place, group, environment);
  return Job(std::move(state));
}

}  // namespace lockstep::distributed
