#include "lockstep/distributed/store/wire.h"

#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/sha256.h"
#include "lockstep/distributed/store/socket.h"

namespace lockstep::distributed::wire {

namespace {

void append_integer(std::string& text, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace

Writer& Writer::byte(std::uint8_t value) {
  payload_ += static_cast<char>(value);
  return *this;
}

Writer& Writer::integer(std::uint64_t value) {
  append_integer(payload_, value);
  return *this;
}

Writer& Writer::bytes(std::string_view value) {
  integer(value.size());
  payload_ += value;
  return *this;
}

std::string Writer::message() const {
  std::string text;
  text.reserve(kLengthBytes + payload_.size());
  append_integer(text, payload_.size());
  return text += payload_;
}

std::string_view Reader::take(std::size_t count) {
  if (count > rest_.size()) throw StoreError("[TCPStore] a message is shorter than its fields say");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint8_t Reader::byte() {
  return static_cast<std::uint8_t>(take(1)[0]);
}
std::uint64_t Reader::integer() {
  return decode_integer(take(8).data());
}

std::string Reader::bytes() {
  const std::uint64_t count = integer();
  return std::string(take(static_cast<std::size_t>(std::min<std::uint64_t>(count, SIZE_MAX))));
}

std::uint64_t decode_integer(const char* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t filled = 0;
  while (filled < count) {
    const ssize_t got = getrandom(bytes.data() + filled, count - filled, 0);
    LOCKSTEP_CHECK(got > 0 || errno == EINTR, "[Store] the system gives no random bytes: {}", std::strerror(errno));
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string proof(std::string_view token, std::string_view side, std::string_view server_nonce,
                  std::string_view client_nonce) {
  std::string message(side);
  message.append(server_nonce).append(client_nonce);
  const Sha256::Digest digest = hmac_sha256(token, message);
  return std::string(digest.begin(), digest.end());
}

}  // namespace lockstep::distributed::wire

namespace lockstep::distributed {

std::string make_token() {
  std::string token;
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char byte : wire::random_bytes(32)) {
    token += kDigits[static_cast<unsigned char>(byte) >> 4];
    token += kDigits[byte & 15];
  }
  return token;
}

std::string token_weakness(std::string_view token) {
  if (token.empty()) return "is not set";
  const auto characters =
      static_cast<std::size_t>(std::ranges::count_if(token, [](unsigned char c) { return std::isspace(c) == 0; }));
  if (characters >= kMinTokenLength) return {};
  return fmt::format("is too short: {} character(s) besides blanks", characters);
}

void check_token(std::string_view token, std::string_view what, const std::string& host, Deadline deadline) {
  const std::string weakness = token_weakness(token);
  if (weakness.empty() || is_loopback(host, deadline)) return;
  throw StoreError(
      fmt::format("[TCPStore] {} {} needs a token, so that only the job's own processes get in, and it {}; set "
                  "LOCKSTEP_TOKEN to the same secret of at least {} characters on every node, such as the output of "
                  "'openssl rand -hex 32'",
                  what, host, weakness, kMinTokenLength));
}

}  // namespace lockstep::distributed
