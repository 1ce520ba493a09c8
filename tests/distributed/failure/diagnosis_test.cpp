// What is told of operations and failures, without any failing: labels, fingerprints, reports, dumps, rank0_only.

#include "lockstep/distributed/failure/diagnosis.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/core/factories.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/ranks.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;

TEST(OperationLabel, EqualTextsShareOneCopy) {
  const OperationLabel one("bucket 2: fc1.weight"), two(std::string("bucket 2: ") + "fc1.weight");
  EXPECT_EQ(one.text(), "bucket 2: fc1.weight");
  EXPECT_EQ(one.c_str(), two.c_str());
  EXPECT_TRUE(OperationLabel().empty());
  EXPECT_STREQ(OperationLabel().c_str(), "");
}

TEST(OperationLabel, LongTextsAreCutBetweenCharacters) {
  const std::string long_text(OperationLabel::kMaxBytes + 1, 'a');
  EXPECT_EQ(OperationLabel(long_text).text(), long_text.substr(0, OperationLabel::kMaxBytes - 3) + "...");
  EXPECT_EQ(OperationLabel(std::string(OperationLabel::kMaxBytes, 'b')).text().size(), OperationLabel::kMaxBytes);
  std::string two_bytes;
  while (two_bytes.size() <= OperationLabel::kMaxBytes) two_bytes += "\xc3\xa4";
  const std::string_view cut = OperationLabel("x" + two_bytes).text();
  EXPECT_TRUE(cut.ends_with("\xc3\xa4..."));
}

TEST(LabelScope, TheInnermostOfThisThreadCounts) {
  const OperationLabel outer("outer"), inner("inner");
  EXPECT_TRUE(LabelScope::current().empty());
  {
    const LabelScope one(outer);
    {
      const LabelScope two(inner);
      EXPECT_EQ(LabelScope::current().text(), "inner");
      std::thread([] { EXPECT_TRUE(LabelScope::current().empty()); }).join();
    }
    EXPECT_EQ(LabelScope::current().text(), "outer");
  }
  EXPECT_TRUE(LabelScope::current().empty());
}

Operation all_reduce_of(const Tensor& tensor) {
  return {.kind = OperationKind::all_reduce, .input = tensor, .output = tensor};
}

TEST(Fingerprint, TellsCallsThatDoNotMatch) {
  const Operation base = all_reduce_of(ones({2, 3}));
  const auto differs = [&](auto&& change) {
    Operation other = base;
    change(other);
    return fingerprint(other) != fingerprint(base);
  };
  EXPECT_FALSE(differs([](Operation& o) { o.input = o.output = zeros({2, 3}); })) << "values are the ranks' own";
  EXPECT_FALSE(differs([](Operation& o) { o.number = 9; })) << "numbers are compared by themselves";
  EXPECT_TRUE(differs([](Operation& o) { o.label = OperationLabel("other"); }));
  EXPECT_FALSE(differs([](Operation& o) { o.step = 7; })) << "a step that the program did not vouch for";
  EXPECT_TRUE(differs([](Operation& o) { o.input = o.output = ones({3, 2}); }));
  EXPECT_TRUE(differs([](Operation& o) { o.input = o.output = ones({6}); }));
  EXPECT_TRUE(differs([](Operation& o) { o.input = o.output = ones({2, 3}, {.dtype = kFloat64}); }));
  EXPECT_TRUE(differs([](Operation& o) { o.reduce = ReduceOp::max; }));
  EXPECT_TRUE(differs([](Operation& o) { o.kind = OperationKind::all_gather; }));
  EXPECT_TRUE(differs([](Operation& o) { o.peer = 0; }));
  EXPECT_TRUE(differs([](Operation& o) { o.checked_step = 7; }));
}

TEST(PeerState, ComesBackAsItWas) {
  PeerState state;
  state.called = 19;
  state.running = true;
  state.fingerprint = 0xfedcba9876543210ull;
  state.collective = "all_reduce #18 (float32 [4], avg)";
  state.point_to_point = "send #0 (to rank 2)";
  state.step = -1;
  state.ended_by = "threw: a\nb";
  state.process = own_identity();
  const PeerState back = PeerState::decode(state.encode());
  EXPECT_EQ(back.encode(), state.encode());
  EXPECT_EQ(back.step, -1);
  EXPECT_EQ(back.lost_peer, -1);
  EXPECT_EQ(back.process.pid, getpid());
  EXPECT_NE(error_of([&] { PeerState::decode(state.encode().substr(0, 40)); }), "");
  EXPECT_NE(error_of([] { PeerState::decode("nonsense"); }), "");
}

TEST(ProcessFate, OfThisProcessAndOfChildren) {
  ProcessIdentity own = own_identity();
  if (own.space.empty()) GTEST_SKIP() << "there is no /proc to look into";
  EXPECT_EQ(fate_of(own), ProcessFate::running);
  ProcessIdentity later = own;
  ++later.start;
  EXPECT_EQ(fate_of(later), ProcessFate::gone) << "another process has the number now";
  ProcessIdentity elsewhere = own;
  elsewhere.space = "another machine";
  EXPECT_EQ(fate_of(elsewhere), ProcessFate::unknown);

  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string state = [] {
      PeerState self;
      self.process = own_identity();
      return self.encode();
    }();
    [[maybe_unused]] const ssize_t written = write(ready[1], state.data(), state.size());
    pause();
    _exit(0);
  }
  char text[1024];
  const ssize_t size = read(ready[0], text, sizeof(text));
  ASSERT_GT(size, 0);
  const ProcessIdentity identity = PeerState::decode({text, static_cast<std::size_t>(size)}).process;
  EXPECT_EQ(identity.pid, child);
  EXPECT_EQ(fate_of(identity), ProcessFate::running);
  kill(child, SIGSTOP);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  EXPECT_EQ(fate_of(identity), ProcessFate::stopped);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(fate_of(identity), ProcessFate::gone);
  close(ready[0]);
  close(ready[1]);
}

/// A rank that waits in, or has done, collective `number` at `step`.
Observation at(std::uint64_t number, bool running, std::int64_t step, std::uint64_t fingerprint = 1) {
  PeerState state;
  state.called = number + 1;
  state.running = running;
  state.fingerprint = fingerprint;
  state.collective = "all_reduce #" + std::to_string(number) + " (float32 [8], avg; bucket " +
                     std::to_string(number % 3) + ": fc" + std::to_string(number % 3) + ".weight)";
  state.step = step;
  state.process = {.host = "node7", .space = "", .pid = 4711, .start = 1};
  return {.state = state, .answered = true, .fate = ProcessFate::running};
}

std::string headline(const std::vector<Observation>& seen, const std::string& store_error = "", int peer = -1) {
  return diagnose({"", "timed out", peer}, seen, store_error, 0).headline;
}

TEST(Diagnosis, WhoIsBehindAndWhoWaits) {
  const Observation waits = at(18, true, 41);
  EXPECT_EQ(headline({waits, waits, at(17, true, 41), waits}),
            "rank 2 is still in all_reduce #17 (float32 [8], avg; bucket 2: fc2.weight) at step 41; ranks 0, 1, 3 wait "
            "in all_reduce #18 (float32 [8], avg; bucket 0: fc0.weight) at step 41");
  EXPECT_EQ(headline({waits, at(17, false, 40)}),
            "rank 1 is alive, but last seen after all_reduce #17 (float32 [8], avg; bucket 2: fc2.weight) at step 40; "
            "rank 0 waits in all_reduce #18 (float32 [8], avg; bucket 0: fc0.weight) at step 41");
}

TEST(Diagnosis, TheWorstIsTheCause) {
  const Observation waits = at(18, true, 41);
  Observation silent = at(17, false, 40), gone = silent, stopped = silent, threw = silent, left = silent;
  silent.answered = gone.answered = stopped.answered = false;
  silent.fate = ProcessFate::unknown;
  gone.fate = ProcessFate::gone;
  stopped.fate = ProcessFate::stopped;
  threw.state->ended_by = "threw: out of milk";
  left.state->left = true;
  const auto cause = [&](const std::vector<Observation>& seen) {
    const std::string text = headline(seen);
    return text.substr(0, text.find(','));
  };
  EXPECT_EQ(cause({waits, at(16, false, 40), silent}), "rank 2 does not answer");
  EXPECT_EQ(cause({waits, silent, stopped}), "rank 2 is stopped (SIGSTOP or a debugger)");
  EXPECT_EQ(cause({waits, stopped, gone}), "rank 2 is gone: process 4711 on node7 has ended");
  EXPECT_EQ(cause({waits, gone, left}), "rank 2 left the group in good order");
  EXPECT_EQ(cause({waits, gone, threw}), "rank 2 threw: out of milk; last seen after all_reduce #17 (float32 [8]");
}

Observation waits_for(int peer, Observation seen, Way way = Way::network) {
  seen.state->trouble = "timed out waiting for rank " + std::to_string(peer);
  seen.state->lost_peer = peer;
  seen.state->missed = way;
  return seen;
}

TEST(Diagnosis, ALinkThatIsCutIsNoRankThatComputes) {
  const Observation waits = at(18, true, 41), earlier = at(17, true, 41);
  const Diagnosis told = diagnose({"", "timed out", 2}, {waits, waits_for(2, waits), waits_for(1, waits)}, "", 0);
  EXPECT_TRUE(
      told.headline.starts_with("ranks 1, 2 do not hear each other, although all ranks live and reach the "
                                "store; ranks 0-2 wait in all_reduce #18"))
      << told.headline;
  EXPECT_EQ(told.culprits, "the link between ranks 1, 2");
  EXPECT_NE(
      told.report.find("what to do: look for what keeps ranks 1, 2 (process 4711 on node7, process 4711 on node7) "
                       "from each other: a cut link, a firewall between the two, or packets"),
      std::string::npos)
      << told.report;
  // Rank 0 waits in vain for one that waits in vain itself; or it has been through, and waits for both.
  EXPECT_TRUE(
      headline({waits_for(1, waits), waits_for(2, waits), waits}).starts_with("rank 1 hears nothing of rank 2,"));
  EXPECT_TRUE(headline({waits, waits_for(2, earlier), waits_for(1, earlier)}).starts_with("ranks 1, 2 do not hear"));
  EXPECT_TRUE(headline({waits, waits_for(2, waits), waits_for(1, earlier)}).starts_with("ranks 1, 2 do not hear each"));
}

TEST(Diagnosis, ARankThatMissesWhatHasBeenSentDoesNotCompute) {
  // In a broadcast from rank 0, which has gone on.
  const Observation missed = waits_for(0, at(17, true, 41)), waits = at(18, true, 41);
  const std::string text = headline({waits, missed, waits});
  EXPECT_TRUE(text.starts_with("rank 1 hears nothing of rank 0, although all ranks live and reach the store; "))
      << text;
  EXPECT_NE(text.find("; rank 1 is still in all_reduce #17"), std::string::npos) << text;
  EXPECT_TRUE(headline({at(17, false, 41), missed, waits}).starts_with("rank 1 hears nothing of rank 0"));
  // Nobody can say which link it is, but what is known is that it waits, too.
  const Diagnosis told = diagnose({"", "timed out", 1}, {waits_for(1, waits), at(17, true, 41)}, "", 0);
  EXPECT_NE(told.report.find("look why rank 1 did not get to the end of that collective: slow work, or the network"),
            std::string::npos);
}

TEST(Diagnosis, WhoWaitsForOneThatIsLateHasNoCutLink) {
  Observation waits = waits_for(1, at(18, true, 41)), late = at(18, true, 41);
  late.state->since_ms = 9'000;
  const auto told = [](const std::vector<Observation>& seen) {
    return diagnose({"", "timed out", 1}, seen, "", 10'000).headline;
  };
  EXPECT_EQ(told({waits, late}).find("hears nothing"), std::string::npos);
  EXPECT_EQ(told({waits, at(18, true, 41), late}).find("hears nothing"), std::string::npos);
  EXPECT_TRUE(told({waits, at(18, true, 41), at(17, false, 41)}).starts_with("rank 2 is alive, but last seen after"));
  EXPECT_TRUE(told({waits, at(18, true, 41), at(18, true, 41)}).starts_with("rank 0 hears nothing of rank 1"));
}

TEST(Diagnosis, ARankThatLeftBecauseItFailedTooIsNoCause) {
  Observation gave_up = at(18, true, 41), gone = at(17, false, 40);
  gave_up.answered = gone.answered = false;
  gave_up.state->left = true;
  gave_up.state->trouble = "the process of rank 2 has ended";
  gone.fate = ProcessFate::gone;
  EXPECT_TRUE(headline({gave_up, at(18, true, 41), gone}).starts_with("rank 2 is gone: process 4711"));
}

TEST(Diagnosis, RanksMayWaitForEachOtherInDifferentGroups) {
  Observation waits = at(18, true, 41), elsewhere = at(17, false, 41);
  elsewhere.state->elsewhere = "barrier #3 in the group of ranks 1, 2";
  const std::string text = headline({waits, elsewhere, elsewhere}, "", /*peer=*/1);
  EXPECT_TRUE(text.starts_with("ranks wait for each other in different calls: rank 0 waits in all_reduce #18")) << text;
  EXPECT_TRUE(text.ends_with("; ranks 1, 2 wait in barrier #3 in the group of ranks 1, 2 at step 41")) << text;
}

TEST(Diagnosis, MismatchesGoByTheMajority) {
  const Observation waits = at(18, true, 41), other = at(18, true, 42, 2);
  const std::string two_of_three = headline({other, waits, waits});
  EXPECT_TRUE(two_of_three.starts_with("mismatched collectives: rank 0 called all_reduce #18")) << two_of_three;
  EXPECT_NE(two_of_three.find("ranks 1, 2 wait in all_reduce #18"), std::string::npos) << two_of_three;
  EXPECT_TRUE(headline({waits, other}).starts_with("mismatched collectives: rank 1 called"))
      << "a tie: rank 0 is right";
}

TEST(Diagnosis, ARankThatHasCaughtAnExceptionIsTheCauseUnlessAnotherHasDied) {
  const Observation waits = at(18, true, 41);
  Observation left = at(17, false, 41), gone = left, other = at(18, true, 42, 2);
  left.state->exception = other.state->exception = "out of milk";
  left.state->left = left.state->caught = other.state->caught = true;
  gone.answered = false;
  gone.fate = ProcessFate::gone;
  const std::string told = "rank 1 threw an exception, which the program has caught: out of milk; ";
  EXPECT_TRUE(headline({waits, left, waits}).starts_with(told + "then left the group, last seen after all_reduce #17"));
  EXPECT_TRUE(headline({waits, other}).starts_with(told + "last seen in all_reduce #18"));
  EXPECT_TRUE(headline({waits, left, gone}).starts_with(told));
  left.state->left = false;
  EXPECT_TRUE(headline({waits, left, gone}).starts_with("rank 2 is gone"));
  EXPECT_TRUE(headline({waits, left, waits}).starts_with(told));
  EXPECT_TRUE(headline({other, left}).starts_with("rank 1 is alive")) << "all have had one, and go on alike";
  left.state->called = 19;
  EXPECT_NE(headline({left, other}).find("every rank had caught an exception before ("), std::string::npos);
}

TEST(Diagnosis, WithoutTheStoreOnlyThePeerIsKnownToBeMissing) {
  Observation unseen = at(3, false, 1);
  unseen.answered = false;
  unseen.fate = ProcessFate::unknown;
  const std::string text = headline({at(18, true, 41), unseen, unseen}, "no connection", /*peer=*/2);
  EXPECT_TRUE(text.starts_with("rank 2 does not answer")) << text;
  EXPECT_EQ(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("the store does not answer"), std::string::npos) << text;
}

TEST(Diagnosis, TheReportNamesEveryRankAndWhatToDo) {
  Observation stopped = at(17, false, 40), waits = at(18, true, 41);
  stopped.answered = false;
  stopped.fate = ProcessFate::stopped;
  waits.state->trouble = "timed out waiting for rank 1";
  waits.state->since_ms = 7'500;
  const Diagnosis told = diagnose({"", "timed out", 1}, {waits, stopped, waits}, "", 10'000);
  for (const char* part :
       {"the group of 3 ranks has failed: rank 1 is stopped", "\n  ranks 0, 2 wait in all_reduce #18", "(2.5 s ago)",
        "\n    rank 0 says: timed out waiting for rank 1", "\n  rank 1 is stopped",
        "what to do: resume it within the timeout (kill -CONT 4711)"})
    EXPECT_NE(told.report.find(part), std::string::npos) << part << "\n" << told.report;
  EXPECT_EQ(told.alive, (std::vector<int>{0, 2}));
}

TEST(Diagnosis, RanksAsText) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 2, 3, 4, 7}), "ranks 0, 2-4, 7");
}

TEST(Rank0Only, CollectivesInsideAreErrorsAtOnce) {
  const ProcessGroupPtr alone = make_single_process_group();
  int runs = 0;
  rank0_only(*alone, "saving the checkpoint", [&] {
    ++runs;
    const std::string error = error_of([&] { alone->all_reduce(ones({2})); });
    EXPECT_NE(error.find("[all_reduce] was called on rank 0 inside rank0_only(\"saving the checkpoint\")"),
              std::string::npos)
        << error;
    {
      const Rank0Only inner("inner");
      EXPECT_NE(error_of([&] { alone->barrier(); }).find("rank0_only(\"inner\")"), std::string::npos);
    }
    EXPECT_NE(error_of([&] { alone->barrier(); }), "");
    std::thread([&] { EXPECT_NO_THROW(alone->barrier()->wait()); }).join();
  });
  EXPECT_EQ(runs, 1);
  EXPECT_NO_THROW(alone->all_reduce(ones({2}))->wait()) << "after the scope";
}

TEST(Rank0Only, OtherRanksSkipItAndPointToPointWorks) {
  std::atomic<int> runs = 0;
  testing::run_ranks(2, testing::Link::in_process, [&](ProcessGroup& group) {
    rank0_only(group, "sending", [&] {
      ++runs;
      group.send(ones({3}), 1)->wait();
    });
    if (group.rank() == 1) group.recv(zeros({3}), 0)->wait();
    group.barrier()->wait();
  });
  EXPECT_EQ(runs, 1);
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(FlightDump, HoldsTheLastOperationsAsJson) {
  const testing::TemporaryPath path;
  const ProcessGroupPtr group = make_single_process_group({.recorded_operations = 3});
  group->set_step(41);
  const OperationLabel label("bucket 2: a \"quoted\" \\ name\n");
  for (int i = 0; i < 4; ++i) {
    const LabelScope scope(label);
    group->all_reduce(ones({2, i + 1}), ReduceOp::avg)->wait();
  }
  group->barrier()->wait();
  group->dump(path.text());
  const auto lines = lines_of(path.text());
  ASSERT_EQ(lines.size(), 4u) << "a header and the ring's three";
  EXPECT_EQ(lines[0]["dump"], "request");
  EXPECT_EQ(lines[0]["pid"], getpid());
  EXPECT_EQ(lines[0]["world_size"], 1);
  const auto& reduce = lines[2];
  EXPECT_EQ(reduce["operation"], "all_reduce");
  EXPECT_EQ(reduce["number"], 3);
  EXPECT_EQ(reduce["id"], 3);
  EXPECT_EQ(reduce["reduce"], "avg");
  EXPECT_EQ(reduce["label"], label.text());
  EXPECT_EQ(reduce["step"], 41);
  EXPECT_EQ(reduce["dtype"], "float32");
  EXPECT_EQ(reduce["input"], nlohmann::json::array({2, 4}));
  EXPECT_EQ(reduce["state"], "finished");
  EXPECT_LE(reduce["queued_ns"], reduce["started_ns"]);
  EXPECT_LE(reduce["started_ns"], reduce["finished_ns"]);
  EXPECT_EQ(lines[3]["operation"], "barrier");
  EXPECT_EQ(lines[3]["label"], "");

  group->dump(path.text());
  EXPECT_EQ(lines_of(path.text()).size(), 8u) << "dumps are added";
  EXPECT_NE(error_of([&] { group->dump("/nowhere/at/all"); }).find("/nowhere/at/all"), std::string::npos);
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_NE(error_of([&] { group->dump("/dev/full"); }).find("disk may be full"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::distributed
