// Messages between two ranks, under the names that PyTorch's tests have for them; docs/pytorch.md has the whole list.

#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

// The n-th receive from a rank meets its n-th send.
TEST(DistributedTest, send_recv) {
  run_ranks(4, Link::shm, [](ProcessGroup& group) {
    for (int source = 0; source < group.world_size(); ++source)
      for (int peer = 0; peer < group.world_size(); ++peer) {
        if (peer == source) continue;
        const Tensor tensor = full({3}, group.rank());
        if (group.rank() == source) group.send(tensor, peer)->wait();
        if (group.rank() != peer) continue;
        group.recv(tensor, source)->wait();
        expect_values(
            tensor, [&](auto) { return source; }, "recv");
      }
  });
}

void expect_many_messages() {
  run_ranks(4, Link::shm, [](ProcessGroup& group) {
    std::vector<Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int other = 1; other < group.world_size(); ++other) {
      tensors.push_back(full({1000}, group.rank() == 0 ? 0 : group.rank()));
      if (group.rank() == 0)
        works.push_back(group.recv(tensors.back(), other));
      else if (other == group.rank())
        works.push_back(group.send(tensors.back(), 0));
    }
    for (const WorkPtr& work : works) work->wait();
    for (std::size_t i = 0; i < works.size(); ++i) {
      EXPECT_TRUE(works[i]->is_completed());
      if (group.rank() != 0) continue;
      EXPECT_EQ(tensors[i].to_vector<double>().front(), static_cast<double>(i) + 1.0);
    }
  });
}
TEST(DistributedTest, isend) {
  expect_many_messages();
}
TEST(DistributedTest, irecv) {
  expect_many_messages();
}

}  // namespace
}  // namespace lockstep::distributed
