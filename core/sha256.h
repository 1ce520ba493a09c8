#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of libcrypto, which computes all of this

namespace lockstep {

/// SHA-256 (FIPS 180-4) of a byte stream, in pieces. Throws Error if libcrypto fails, as when memory is short.
class Sha256 {
 public:
  static constexpr std::size_t kDigestBytes = 32;
  using Digest = std::array<std::uint8_t, kDigestBytes>;

  Sha256();
  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// The digest of everything so far. The object must not be updated afterwards.
  Digest finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

Sha256::Digest sha256(std::string_view data);
/// Keyed digest (HMAC, RFC 2104): proves that its maker knew `key`.
Sha256::Digest hmac_sha256(std::string_view key, std::string_view message);
/// Lower-case hexadecimal.
std::string to_hex(const Sha256::Digest& digest);
/// Compares in a time that depends on the lengths alone, so that it tells nothing about a secret.
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace lockstep
