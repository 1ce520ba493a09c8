#include "lockstep/distributed/collectives/transport.h"

#include <utility>

namespace lockstep::distributed {
namespace {

class BufferedView final : public Transport::View {
 public:
  BufferedView(std::unique_ptr<Transport::Request> request, const void* data)
      : request_(std::move(request)), next_(static_cast<const std::byte*>(data)) {}

  void wait(std::size_t, Deadline deadline) override {
    if (request_) request_->wait(deadline);
    request_.reset();
  }
  const void* next(std::size_t bytes) override { return std::exchange(next_, next_ + bytes); }
  void release() override {}

 private:
  std::unique_ptr<Transport::Request> request_;
  const std::byte* next_;
};

}  // namespace

std::unique_ptr<Transport::View> Transport::view(int peer, std::uint64_t tag, void* room, std::size_t bytes) {
  return buffered_view(peer, tag, room, bytes);
}

std::unique_ptr<Transport::View> Transport::buffered_view(int peer, std::uint64_t tag, void* room, std::size_t bytes) {
  return std::make_unique<BufferedView>(recv(peer, tag, room, bytes), room);
}

}  // namespace lockstep::distributed
