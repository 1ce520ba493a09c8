#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// SHA-256 (FIPS 180-4) of a byte stream, in pieces. Also the base of HMAC (RFC 2104).
class Sha256 {
 public:
  static constexpr std::size_t kDigestBytes = 32;
  static constexpr std::size_t kBlockBytes = 64;
  using Digest = std::array<std::uint8_t, kDigestBytes>;

  Sha256();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// The digest of everything so far. The object must not be updated afterwards.
  Digest finish();

 private:
  void compress(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, kBlockBytes> buffer_{};
  std::uint64_t total_bytes_ = 0;
};

Sha256::Digest sha256(std::string_view data);
/// Keyed digest: proves that its maker knew `key`.
Sha256::Digest hmac_sha256(std::string_view key, std::string_view message);
/// Lower-case hexadecimal.
std::string to_hex(const Sha256::Digest& digest);
/// Compares in a time that depends on the lengths alone, so that it tells nothing about a secret.
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace lockstep
