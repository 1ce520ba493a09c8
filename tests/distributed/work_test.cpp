#include "lockstep/distributed/process_group/work.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;

TEST(Work, WaitsUntilItsDeadline) {
  Work work("all_reduce #3 (float32 [2], sum)", Milliseconds(20));
  EXPECT_FALSE(work.is_completed());
  EXPECT_NE(error_of([&] { work.wait(); }).find("all_reduce #3 (float32 [2], sum) has not ended within 20 ms"),
            std::string::npos);
  std::thread completer([&] { work.complete(); });
  work.wait(Milliseconds(20'000));
  completer.join();
  EXPECT_TRUE(work.is_success());
  work.complete(std::make_exception_ptr(Error("too late")));
  work.wait();
}

TEST(Work, RethrowsItsError) {
  Work work("barrier #0", Milliseconds(20));
  work.complete(std::make_exception_ptr(ProcessGroupError("rank 1 is gone")));
  EXPECT_TRUE(work.is_completed());
  EXPECT_FALSE(work.is_success());
  EXPECT_TRUE(work.exception());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of([&] { work.wait(); }), "rank 1 is gone");
}

TEST(FlightRecorder, KeepsTheLastOperations) {
  FlightRecorder recorder(3);
  for (std::uint64_t n = 0; n < 5; ++n) recorder.queued({.kind = OperationKind::barrier, .number = n});
  recorder.started(4);
  recorder.finished(4, false);
  recorder.finished(0, true);  // overwritten long ago
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].operation.number, 2u);
  EXPECT_EQ(records[2].state, OperationRecord::State::failed);
  EXPECT_EQ(name(records[1].state), "queued");
}

}  // namespace
}  // namespace lockstep::distributed
