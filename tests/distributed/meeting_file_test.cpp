#include "lockstep/distributed/rendezvous/meeting_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/wire.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::free_port;
using testing::TemporaryPath;

constexpr Milliseconds kTimeout{20'000};

Environment open_mpi(int rank, const std::string& job) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", job}};
}

/// Sets TMPDIR to a folder of the test's own.
class MeetingFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_.text());
    setenv("TMPDIR", folder_.text().c_str(), 1);
  }
  void TearDown() override {
    previous_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", previous_.c_str(), 1);
    std::filesystem::remove_all(folder_.text());
  }
  std::string private_folder() const { return folder_.text() + "/lockstep-" + std::to_string(geteuid()); }

  TemporaryPath folder_;
  std::string previous_ = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "";
};

TEST_F(MeetingFileTest, IsForTheUserAloneAndGoesWithTheJob) {
  const RendezvousOptions options{.timeout = kTimeout};
  {
    const Rendezvous place = rendezvous(options, open_mpi(0, "mine"));
    ASSERT_TRUE(place.meeting_file);
    const std::string path = place.meeting_file->path();
    EXPECT_EQ(path.rfind(private_folder() + "/", 0), 0u) << path;
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_read | perms::owner_write);
    EXPECT_EQ(std::filesystem::status(private_folder()).permissions(), perms::owner_all);
    // The store lets nobody in who has not read the file.
    EXPECT_EQ(place.server->bind_address(), "127.0.0.1");
    const TCPStoreOptions stranger{.port = place.server->port(), .timeout = Milliseconds(2'000)};
    EXPECT_NE(error_of([&] { TCPStore store(stranger); }).find("wrong token"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(private_folder()));
}

TEST_F(MeetingFileTest, WhatAKilledJobLeftIsPassedOver) {
  // A dead port, a port where somebody else listens, and text that is no meeting place.
  TCPStoreServer other(TCPStoreServerOptions{.token = "another job's"});
  for (const std::string& text :
       {encode({free_port(), make_token()}), encode({other.port(), make_token()}), std::string("lockstep-meet")}) {
    const std::string job = make_token();
    std::ofstream(MeetingFile("Open MPI " + job).path()) << text;
    std::thread late([&] {
      const RendezvousOptions options{.timeout = kTimeout};
      Rendezvous second = rendezvous(options, open_mpi(1, job));
      EXPECT_EQ(second.store->get("word"), "hello");
      second.store->set("heard", "1");
    });
    std::this_thread::sleep_for(Milliseconds(200));
    const Rendezvous first = rendezvous({.timeout = kTimeout}, open_mpi(0, job));
    first.store->set("word", "hello");
    first.store->get("heard");
    late.join();
  }
}

TEST_F(MeetingFileTest, ARankWithoutRankZeroSaysWhereItLooked) {
  const std::string error = error_of([] { rendezvous({.timeout = Milliseconds(300)}, open_mpi(1, "nobody else")); });
  EXPECT_NE(error.find("rank 1 has not met rank 0 within 300 ms"), std::string::npos) << error;
  EXPECT_NE(error.find(private_folder()), std::string::npos) << error;
}

TEST_F(MeetingFileTest, AFolderThatOthersCanWriteIsRefused) {
  std::filesystem::create_directories(private_folder());
  std::filesystem::permissions(private_folder(), std::filesystem::perms::all);
  const std::string error = error_of([] { rendezvous({.timeout = kTimeout}, open_mpi(0, "x")); });
  EXPECT_NE(error.find("not a folder that belongs to this user alone"), std::string::npos) << error;
  std::filesystem::remove_all(private_folder());
  std::filesystem::create_directories(folder_.text() + "/elsewhere");
  std::filesystem::permissions(folder_.text() + "/elsewhere", std::filesystem::perms::owner_all);
  std::filesystem::create_symlink(folder_.text() + "/elsewhere", private_folder());
  EXPECT_NE(error_of([] { rendezvous({.timeout = kTimeout}, open_mpi(0, "x")); }).find("belongs to this user alone"),
            std::string::npos);
}

TEST_F(MeetingFileTest, ExplicitAddressAndPortComeFirst) {
  Environment environment = open_mpi(0, "told");
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(free_port());
  const Rendezvous place = rendezvous({.timeout = kTimeout}, environment);
  EXPECT_FALSE(place.meeting_file);
  EXPECT_EQ(std::to_string(place.master_port), environment["MASTER_PORT"]);
}

TEST(MeetingPlace, GoesThroughTextAndNothingElseDoes) {
  const auto place = decode_meeting_place(encode({29500, "secret"}));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->port, 29500);
  EXPECT_EQ(place->token, "secret");
  EXPECT_TRUE(decode_meeting_place(encode({1, ""})));
  for (const char* text : {"", "\n", "lockstep-meeting-1", "lockstep-meeting-1\n", "lockstep-meeting-1 \n",
                           "lockstep-meeting-1 0 x\n", "lockstep-meeting-1 65536 x\n", "lockstep-meeting-1 -1 x\n",
                           "lockstep-meeting-1 80\n", "lockstep-meeting-1 80 x", "lockstep-meeting-2 80 x\n"})
    EXPECT_FALSE(decode_meeting_place(text)) << text;
}

}  // namespace
}  // namespace lockstep::distributed
