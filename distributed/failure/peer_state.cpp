#include "lockstep/distributed/failure/peer_state.h"

#include <algorithm>

#include "lockstep/distributed/store/wire.h"

namespace lockstep::distributed {

std::string PeerState::encode() const {
  wire::Writer fields;
  fields.integer(called)
      .byte(running)
      .integer(fingerprint)
      .bytes(collective)
      .bytes(point_to_point)
      .bytes(elsewhere)
      .integer(static_cast<std::uint64_t>(step))
      .byte(left)
      .bytes(ended_by)
      .bytes(exception)
      .byte(caught)
      .bytes(trouble)
      .integer(static_cast<std::uint64_t>(lost_peer))
      .byte(static_cast<std::uint8_t>(missed))
      .integer(static_cast<std::uint64_t>(since_ms))
      .bytes(process.host)
      .bytes(process.space)
      .integer(static_cast<std::uint64_t>(process.pid))
      .integer(process.start)
      .integer(calls.size());
  for (const Call& call : calls) fields.integer(call.number).integer(call.fingerprint).bytes(call.description);
  return fields.message();
}

PeerState PeerState::decode(std::string_view text) {
  wire::Reader fields(text);
  fields.integer();  // the length that message() puts in front
  PeerState state;
  state.called = fields.integer();
  state.running = fields.byte() != 0;
  state.fingerprint = fields.integer();
  state.collective = fields.bytes();
  state.point_to_point = fields.bytes();
  state.elsewhere = fields.bytes();
  state.step = static_cast<std::int64_t>(fields.integer());
  state.left = fields.byte() != 0;
  state.ended_by = fields.bytes();
  state.exception = fields.bytes();
  state.caught = fields.byte() != 0;
  state.trouble = fields.bytes();
  state.lost_peer = static_cast<int>(fields.integer());
  state.missed = static_cast<Way>(std::min(fields.byte(), static_cast<std::uint8_t>(Way::network)));
  state.since_ms = static_cast<std::int64_t>(fields.integer());
  state.process.host = fields.bytes();
  state.process.space = fields.bytes();
  state.process.pid = static_cast<pid_t>(fields.integer());
  state.process.start = fields.integer();
  for (std::uint64_t left = fields.integer(); left > 0; --left) {
    Call& call = state.calls.emplace_back();
    call.number = fields.integer();
    call.fingerprint = fields.integer();
    call.description = fields.bytes();
  }
  return state;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lockstep::distributed
