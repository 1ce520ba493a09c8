#include "lockstep/distributed/job/job.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/log.h"
#include "lockstep/core/own_process.h"
#include "lockstep/core/standard_streams.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/failure/refusal.h"
#include "lockstep/distributed/gloo/gloo.h"
#include "lockstep/distributed/mpi/mpi.h"
#include "lockstep/distributed/nccl/nccl.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "lockstep/distributed/shm/shm.h"
#include "lockstep/distributed/store/hash_store.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/socket.h"

namespace lockstep::distributed {
namespace {

// How long rank 0 keeps the store for ranks that are still on their way out.
constexpr Milliseconds kFarewell{10'000};

// How long a rank that cannot take part looks for the store, to tell the others so.
constexpr Milliseconds kReach{2'000};

/// After a failure the others need it to find out what has happened, and some may never close their connections.
Milliseconds farewell(bool failed, Milliseconds timeout) {
  return failed ? std::min(kFarewell, timeout / 4) : kFarewell;
}

bool is_told(const Rendezvous& place) {
  return place.local_rank && place.local_world_size;
}

/// The launcher's word counts; what it does not say the ranks find out together. Some may have been told, and others
/// not.
LocalPlace local_place_of(const Rendezvous& place, const ProcessGroupOptions& group) {
  const StorePtr store = meeting_place(place.store, "machines");
  const LocalPlace found = find_local_place(*store, group, own_machine(), !is_told(place)).value_or(LocalPlace());
  return {.rank = place.local_rank.value_or(found.rank),
          .world_size = place.local_world_size.value_or(found.world_size)};
}

/// "cuda" is the device of the rank's number on its machine.
Device device_of(const InitOptions& options, int local_rank) {
  const bool any = options.device == "auto";
  if (any && (!cuda::is_available() || (options.backend != "auto" && options.backend != "nccl"))) return Device(kCPU);
  if (!any && options.device != "cuda") {
    const Device device(options.device);
    if (device.is_cuda()) cuda::require_device(device.index);
    return device;
  }
  cuda::require_device(0);
  LOCKSTEP_CHECK(local_rank < cuda::device_count(),
                 "[init] this is process {} of its machine (local rank {}), which has {} CUDA device(s); start at most "
                 "as many processes (--nproc-per-node), or name a device, such as cuda:0",
                 local_rank + 1, local_rank, cuda::device_count());
  return {kCUDA, local_rank};
}

void check_backend_of(const std::string& backend, Device device, int world_size) {
  LOCKSTEP_CHECK(backend != "nccl" || device.is_cuda(),
                 "[init] the nccl backend works on CUDA devices, not on {}; use "
                 "--device cuda, or another backend",
                 to_string(device));
  if (device.is_cpu() || world_size == 1) return;
  LOCKSTEP_CHECK(
      backend == "auto" || backend == "nccl",
      "[init] the {} backend works on CPU tensors, and this rank computes on {}; use backend nccl, or device "
      "cpu",
      backend, to_string(device));
  LOCKSTEP_CHECK(nccl::why_unavailable().empty(), "[init] ranks on CUDA devices need NCCL: {}",
                 nccl::why_unavailable());
}

/// Empty if there is that backend.
std::string why_no_backend(const std::string& backend) {
  const std::vector<std::string> available = available_backends();
  if (backend == "auto" || std::find(available.begin(), available.end(), backend) != available.end()) return {};
  std::string names = "auto";
  for (const std::string& name : available) names += ", " + name;
  return fmt::format("[init] backend '{}' is not available in this build; available: {}", backend, names);
}

std::string text_of(const Environment& environment, std::string_view name) {
  const auto entry = environment.find(name);
  return entry == environment.end() ? std::string() : entry->second;
}

/// Where the other ranks can reach this one.
gloo::Options gloo_options(const Rendezvous& found, const Environment& environment, Milliseconds timeout) {
  gloo::Options options;
  std::string wish = text_of(environment, "LOCKSTEP_INTERFACE");
  if (wish.empty()) wish = text_of(environment, "GLOO_SOCKET_IFNAME");
  if (!wish.empty()) {
    (if_nametoindex(wish.c_str()) != 0 ? options.interface : options.address) = wish;
    return options;
  }
  if (found.single_node) {
    options.address = loopback_address();
    return options;
  }
  LOCKSTEP_CHECK(!found.master_addr.empty(),
                 "[init] the job has several machines, and nothing says how they reach each other: set MASTER_ADDR to "
                 "the address of rank 0's machine, or LOCKSTEP_INTERFACE to this machine's interface or address");
  options.address =
      local_address_towards(found.master_addr, static_cast<std::uint16_t>(found.master_port), deadline_in(timeout));
  return options;
}

/// Ranks that were told to take different backends would wait for each other in different places.
void check_same_backend(const std::string& backend, const Rendezvous& place, Milliseconds timeout) {
  const std::string mine = fmt::format("{} of rank {}", backend, place.rank);
  const std::string first = place.store->compare_set("world/backend", "", mine, timeout);
  LOCKSTEP_CHECK(first.substr(0, first.find(' ')) == backend,
                 "[init] the ranks were given different backends: {}, and {}; give all the same", first, mine);
}

ProcessGroupPtr make_group(const std::string& backend, const Rendezvous& place, const ProcessGroupOptions& group,
                           const Environment& environment) {
  const auto scoped = [&](const char* name) { return meeting_place(place.store, name); };
  if (backend == "shm") return shm::make_process_group(scoped("shm"), group);
  if (backend == "mpi") return mpi::make_process_group(scoped("mpi"), group);
  if (backend == "auto" || backend == "nccl") {  // nccl's operations on CPU tensors
    shm::Attempt attempt = shm::try_process_group(scoped("shm"), group);
    if (attempt.group) return std::move(attempt.group);
    if (group.rank == 0 && backend == "auto")
      logging::info("gloo carries this job; not shared memory, because of {}", attempt.obstacle);
    LOCKSTEP_CHECK(gloo::is_available(),
                   "[init] the ranks cannot share memory ({}), and this build has no Gloo; install libgloo-dev and "
                   "configure with LOCKSTEP_GLOO=ON",
                   attempt.obstacle);
  }
  return gloo::make_process_group(scoped("gloo"), group, gloo_options(place, environment, group.timeout));
}

/// The store of the rank that serves it to the others: the server ends with whoever here uses the store last, be it the
/// Job or a group that has outlived it.
struct ServedStore {
  StorePtr store;
  std::unique_ptr<TCPStoreServer> server;
  Milliseconds patience = kFarewell;
  OwnProcess made_in = {};

  ~ServedStore() {
    if (!made_in.is_here()) {
      leave_for_ever(store, server);
      return;
    }
    try {
      store.reset();
      if (!server->wait_until_idle(patience))
        logging::info("the store closes while {} connections are open", server->connections());
    } catch (const std::exception& error) {
      logging::warn("the end of the store: {}", error.what());
    }
  }
};

}  // namespace

struct Job::State {
  Rendezvous place;
  LocalPlace local;
  std::shared_ptr<ServedStore> served;  // null: another process serves it
  Device device;
  StorePtr store;
  ProcessGroupPtr group;
  OwnProcess made_in;

  void meet(Rendezvous found) {
    place = std::move(found);
    if (!place.server) return;
    served.reset(new ServedStore{std::move(place.store), std::move(place.server)});
    place.store = StorePtr(served, served->store.get());
  }

  ~State() {
    if (!made_in.is_here()) {
      // In a forked child: Note [Another process's objects].
      leave_for_ever(group, store, place.store, served, place.meeting_file, place.meeting);
      return;
    }
    try {
      place.meeting.reset();
      const bool failed = std::uncaught_exceptions() > 0 || (group && group->failed());
      if (served) served->patience = group ? farewell(failed, group->timeout()) : kLeaveTaking;
      group.reset();
      store.reset();
      place.store.reset();
      served.reset();
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
  return state_->local.rank;
}
int Job::local_world_size() const {
  return state_->local.world_size;
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
  if (nccl::is_available()) names.push_back("nccl");
  return names;
}

Job init(const InitOptions& options) {
  keep_standard_streams_open();
  LOCKSTEP_CHECK(options.timeout.count() > 0, "[init] the timeout is {} ms; expected a positive one",
                 options.timeout.count());
  auto state = std::make_unique<Job::State>();
  const Environment environment = current_environment();
  LOCKSTEP_CHECK(!options.store || options.init_method.empty(),
                 "[init] a store is given and the init_method '{}'; expected one of them", options.init_method);
  const bool alone = options.init_method.empty() && !options.store && !options.rank && !options.world_size &&
                     read_launcher(environment).launcher.empty();
  const std::string no_backend = why_no_backend(options.backend);
  LOCKSTEP_CHECK(!alone || no_backend.empty(), "{}", no_backend);
  if (!alone) {
    try {
      state->meet(rendezvous({.url = options.init_method.empty() ? "env://" : options.init_method,
                              .rank = options.rank,
                              .world_size = options.world_size,
                              .token = options.token,
                              .timeout = no_backend.empty() ? options.timeout : std::min(options.timeout, kReach),
                              .store = options.store},
                             environment));
    } catch (const std::exception&) {
      if (no_backend.empty()) throw;
      throw Error(no_backend);
    }
  }
  Rendezvous& place = state->place;
  ProcessGroupOptions group{.rank = place.rank, .world_size = place.world_size, .timeout = options.timeout};
  bool others_are_here = false;
  const auto refuse = [&](const std::exception& error) {
    if (place.world_size == 1) return;
    refuse_meeting(*place.store, fmt::format("rank {} says: {}", place.rank, error.what()));
    // Others may only be on their way to the store.
    if (state->served && !others_are_here) std::this_thread::sleep_for(std::min(kLeaveTaking, options.timeout));
  };
  const auto check = [&](const std::function<void()>& what) {
    try {
      what();
    } catch (const std::exception& error) {
      refuse(error);
      throw;
    }
  };
  // Of what a rank finds out by waiting for the others they know themselves, but for this.
  const auto meet = [&](const std::function<void()>& what) {
    try {
      what();
    } catch (const SameRankError& error) {
      refuse(error);
      throw;
    }
  };
  check([&] { LOCKSTEP_CHECK(no_backend.empty(), "{}", no_backend); });
  if (place.world_size > 1) {
    logging::set_prefix(fmt::format("[Rank {}] ", place.rank));
    meet([&] { state->local = local_place_of(place, group); });
    others_are_here = !is_told(place);
  }
  check([&] {
    state->device = device_of(options, state->local.rank);
    check_backend_of(options.backend, state->device, place.world_size);
  });
  if (place.world_size == 1) {
    state->store = std::make_shared<HashStore>();
    state->group = make_single_process_group(group);
    FlightDumps::add(state->group->recorder());
    return Job(std::move(state));
  }
  state->store = std::make_shared<PrefixStore>("user", place.store);
  const bool with_nccl = state->device.is_cuda();
  check([&] { check_same_backend(with_nccl ? "nccl" : options.backend, place, options.timeout); });
  ProcessGroupPtr made;
  meet([&] { made = make_group(with_nccl ? "nccl" : options.backend, place, group, environment); });
  if (with_nccl) nccl::add_executor(*made, std::make_shared<PrefixStore>("world/nccl", place.store), state->device);
  state->group = std::move(made);
  place.meeting.reset();
  return Job(std::move(state));
}

}  // namespace lockstep::distributed
