#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/distributed/store/store.h"

// How TCPStore's client and server talk.
// A message is its length (8 bytes, little endian) and a payload. A request's payload is an operation and its fields; a
// response's is a status and a body. One request is in flight on a connection at a time.

namespace lockstep::distributed::wire {

enum class Request : std::uint8_t { set, get, add, compare_set, wait, check, erase, num_keys };
enum class Status : std::uint8_t { ok, timeout, error };

inline constexpr std::size_t kLengthBytes = 8;
/// The largest payload: compare_set with two values, or a wait's keys.
inline constexpr std::size_t kMaxPayload =
    2 * Store::kMaxValueBytes + 2 * Store::kMaxKeyBytes + 16 * Store::kMaxWaitKeys;

/// Builds a message; message() puts the length in front.
class Writer {
 public:
  Writer& byte(std::uint8_t value);
  Writer& integer(std::uint64_t value);
  Writer& bytes(std::string_view value);
  std::string message() const;

 private:
  std::string payload_;
};

/// Takes a payload apart. Throws StoreError where it is shorter than it says.
class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}
  std::uint8_t byte();
  std::uint64_t integer();
  std::string bytes();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t count);
  std::string_view rest_;
};

std::uint64_t decode_integer(const char* bytes);

// Note [Token]
// Before the first request both sides prove that they know the job's token without sending it: the server sends kHello
// and a nonce, the client answers its own nonce and HMAC-SHA256(token, "client" nonces), the server compares in
// constant time and answers a verdict and HMAC-SHA256(token, "server" nonces).
//
// An empty token proves nothing. Servers accept it on loopback addresses only, and then both sides look up to whom the
// other end of the connection belongs: it must be the same user (peer_owner()).
inline constexpr std::string_view kHello = "lockstep-store-1";
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr char kAdmitted = '+';
inline constexpr char kWrongToken = '-';
inline constexpr char kFull = 'f';
inline constexpr char kOtherUser = 'u';

std::string random_bytes(std::size_t count);
std::string proof(std::string_view token, std::string_view side, std::string_view server_nonce,
                  std::string_view client_nonce);

}  // namespace lockstep::distributed::wire

namespace lockstep::distributed {
/// A fresh secret for a job: 32 random bytes in hexadecimal.
std::string make_token();

/// The least that a token has, besides blanks, where other machines reach the store.
inline constexpr std::size_t kMinTokenLength = 16;
/// Why a token is no secret there: "is not set", "is too short: ..."; empty if it may be one.
std::string token_weakness(std::string_view token);
/// Throws StoreError where `host` is not on a loopback address, which is found out by the deadline, and the token is
/// too weak for it. `what`: "listening on", "connecting to".
void check_token(std::string_view token, std::string_view what, const std::string& host, Deadline deadline);
}  // namespace lockstep::distributed
