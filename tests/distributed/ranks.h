#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/distributed/gloo/gloo.h"
#include "lockstep/distributed/process_group/transport_executor.h"
#include "lockstep/distributed/shm/shm.h"
#include "lockstep/distributed/store/hash_store.h"
#include "tests/distributed/collectives/in_process_transport.h"

namespace lockstep::testing {

using distributed::Milliseconds;
using distributed::ProcessGroup;
using distributed::ProcessGroupOptions;
using distributed::ProcessGroupPtr;

/// How ranks that are threads talk.
enum class Link { in_process, gloo, shm };

inline std::string name_of(Link link) {
  return link == Link::gloo ? "Gloo" : link == Link::shm ? "Shm" : "InProcess";
}

inline ProcessGroupPtr make_group(Link link, const ProcessGroupOptions& options, const distributed::StorePtr& store,
                                  const std::shared_ptr<Mailboxes>& boxes) {
  if (link == Link::gloo) return distributed::gloo::make_process_group(store, options);
  if (link == Link::shm) return distributed::shm::make_process_group(store, options);
  return distributed::make_transport_group("in_process", options,
                                           std::make_unique<InProcessTransport>(boxes, options.rank), store);
}

/// Runs body(group) on `world_size` ranks, each a thread with its own group. Rethrows the first rank's exception, and
/// fails unless every rank has run to its end.
inline void run_ranks(int world_size, Link link, const std::function<void(ProcessGroup&)>& body,
                      Milliseconds timeout = Milliseconds(30'000)) {
  auto store = std::make_shared<distributed::HashStore>();
  auto boxes = std::make_shared<Mailboxes>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::atomic<int> ended = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const ProcessGroupPtr group =
            make_group(link, {.rank = rank, .world_size = world_size, .timeout = timeout}, store, boxes);
        body(*group);
        ++ended;
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  ASSERT_EQ(ended, world_size);
}

/// The message that `body` fails with on each rank; empty where it does not fail. All ranks are waited for.
inline std::vector<std::string> errors_of_ranks(int world_size, Link link, Milliseconds timeout,
                                                const std::function<void(ProcessGroup&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(world_size));
  run_ranks(
      world_size, link,
      [&](ProcessGroup& group) {
        try {
          body(group);
        } catch (const Error& error) {
          messages[static_cast<std::size_t>(group.rank())] = error.what();
        }
      },
      timeout);
  return messages;
}

}  // namespace lockstep::testing
