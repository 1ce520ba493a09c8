// A job's ranks as a grid: who is where, and in which groups.

#include "lockstep/distributed/job/job.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

void run_in(int world_size, const std::function<void(const ProcessGroupPtr&)>& body) {
  run_ranks(world_size, Link::in_process, [&](ProcessGroup& group) { body(group.shared_from_this()); });
}

class MeshOf : public ::testing::TestWithParam<MeshSizes> {};

INSTANTIATE_TEST_SUITE_P(Sizes, MeshOf,
                         ::testing::Values(MeshSizes{}, MeshSizes{.data = 2, .tensor = 2}, MeshSizes{.tensor = 4},
                                           MeshSizes{.data = 3, .pipeline = 2},
                                           MeshSizes{.data = 2, .pipeline = 2, .tensor = 2}),
                         [](const auto& info) {
                           const MeshSizes& s = info.param;
                           return "data" + std::to_string(s.data) + "pipeline" + std::to_string(s.pipeline) + "tensor" +
                                  std::to_string(s.tensor);
                         });

TEST_P(MeshOf, GroupsDifferInOneCoordinate) {
  const MeshSizes sizes = GetParam();
  const int world = sizes.data * sizes.pipeline * sizes.tensor;
  run_in(world, [&](const ProcessGroupPtr& group) {
    const Mesh mesh(group, sizes);
    EXPECT_EQ(mesh.sizes(), sizes);
    const MeshSizes here = mesh.position();
    EXPECT_EQ(mesh.rank_of(here), group->rank());
    const auto expect_group = [&](const ProcessGroupPtr& part, int MeshSizes::*dimension) {
      EXPECT_EQ(part->world_size(), sizes.*dimension);
      EXPECT_EQ(part->rank(), here.*dimension);
      for (int r = 0; r < part->world_size(); ++r) {
        MeshSizes there = here;
        there.*dimension = r;
        EXPECT_EQ(part->job_rank(r), mesh.rank_of(there));
      }
      const Tensor count = ones({3});
      part->all_reduce(count)->wait();
      EXPECT_EQ(count.to_vector<double>()[2], sizes.*dimension);
    };
    expect_group(mesh.tensor(), &MeshSizes::tensor);
    expect_group(mesh.pipeline(), &MeshSizes::pipeline);
    expect_group(mesh.data(), &MeshSizes::data);
    EXPECT_NE(error_of([&] { mesh.rank_of({.data = sizes.data, .pipeline = 0, .tensor = 0}); }).find("is outside of"),
              std::string::npos);
  });
}

TEST(Mesh, RefusesSizesThatDoNotFitInOneSentence) {
  run_in(2, [](const ProcessGroupPtr& group) {
    EXPECT_EQ(error_of([&] { Mesh(group, {.data = 2, .tensor = 2}); }),
              "[Mesh] data=2,pipeline=1,tensor=2 is for 4 rank(s), and the job has 2; choose sizes whose product is 2");
    EXPECT_EQ(error_of([&] { Mesh(group, {.data = 0}); }), "[Mesh] data is 0; expected 1 to 1048576");
    group->barrier()->wait();  // nothing was sent
  });
}

TEST(Mesh, IsReadFromText) {
  EXPECT_EQ(parse_mesh("data=2,tensor=4"), (MeshSizes{.data = 2, .tensor = 4}));
  EXPECT_EQ(parse_mesh("tensor=2,pipeline=3,data=5"), (MeshSizes{.data = 5, .pipeline = 3, .tensor = 2}));
  EXPECT_EQ(to_string(parse_mesh("pipeline=2")), "data=1,pipeline=2,tensor=1");
  for (const char* text : {"", ",", "data", "data=", "data=0", "data=-1", "data=2x", "data=2,", "data=2,data=2",
                           "model=2", "data=2,,tensor=2", " data=2", "data=99999999999", "=2"})
    EXPECT_NE(error_of([&] { parse_mesh(text); }).find("expected sizes from 1 to 1048576 such as data=2"),
              std::string::npos)
        << text;
}

}  // namespace
}  // namespace lockstep::distributed
