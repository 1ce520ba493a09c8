#include "lockstep/distributed/collectives/sub_transport.h"

#include <utility>

#include "lockstep/distributed/collectives/collectives.h"

namespace lockstep::distributed {

SubTransport::SubTransport(std::shared_ptr<Transport> below, std::vector<int> ranks, std::uint64_t salt)
    : transport_(std::move(below)), ranks_(std::move(ranks)), salt_(salt) {}

std::uint64_t SubTransport::salted(std::uint64_t tag) const {
  return other_tag(message_tag(tag, salt_, 0x73706c69));
}

std::unique_ptr<Transport::Request> SubTransport::send(int peer, std::uint64_t tag, const void* data,
                                                       std::size_t bytes) {
  return transport_->send(below(peer), salted(tag), data, bytes);
}

// A view is a receive here, which waits for no view of another group (see Transport::view()).
std::unique_ptr<Transport::Request> SubTransport::recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) {
  return transport_->recv(below(peer), salted(tag), data, bytes);
}

}  // namespace lockstep::distributed
