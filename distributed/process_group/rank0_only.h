#pragma once

#include <string_view>
#include <utility>

namespace lockstep::distributed {

struct Operation;

/// Marks code that only one rank runs. While the object lives, a collective that this thread issues is an error at once
/// and by name, in a job of one process too; without it the job would hang until the deadline, because the other ranks
/// never make the call.
///
///   if (job.is_rank0()) {
///     const Rank0Only scope("saving the checkpoint");
///     save(model, path);
///     ddp.step(batch, loss);  // throws: [all_reduce] was called on rank 0 inside rank0_only("saving the checkpoint"),
///     ...
///   }
///
/// Sends and receives between two ranks are allowed.
class Rank0Only {
 public:
  /// `what` must outlive the object: a literal.
  explicit Rank0Only(std::string_view what);
  ~Rank0Only();
  Rank0Only(const Rank0Only&) = delete;
  Rank0Only& operator=(const Rank0Only&) = delete;

 private:
  const Rank0Only* outer_;
  std::string_view what_;
  friend void check_outside_rank0_only(const Operation& operation, int rank);
};

/// Runs `body` on rank 0 alone, in such a scope: rank0_only(job, "saving", [&] { save(model, path); }). `job` is a Job
/// or a ProcessGroup.
template <typename Job, typename Body>
void rank0_only(const Job& job, std::string_view what, Body&& body) {
  if (job.rank() != 0) return;
  const Rank0Only scope(what);
  std::forward<Body>(body)();
}

/// Throws Error inside a Rank0Only scope of this thread.
void check_outside_rank0_only(const Operation& operation, int rank);

}  // namespace lockstep::distributed
