#include "lockstep/core/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "lockstep/core/check.h"

namespace lockstep {

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  LOCKSTEP_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
                 "[sha256] libcrypto cannot begin a digest");
}

void Sha256::update(const void* data, std::size_t bytes) {
  LOCKSTEP_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1, "[sha256] libcrypto cannot go on with a digest");
}

Sha256::Digest Sha256::finish() {
  Digest digest;
  LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1,
                 "[sha256] libcrypto cannot end a digest");
  return digest;
}

Sha256::Digest sha256(std::string_view data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

Sha256::Digest hmac_sha256(std::string_view key, std::string_view message) {
  Sha256::Digest digest;
  // An empty key must not be a null pointer, which libcrypto takes for "the key of the last call".
  LOCKSTEP_CHECK(
      HMAC(EVP_sha256(), key.empty() ? "" : key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(), nullptr) != nullptr,
      "[sha256] libcrypto cannot make an HMAC");
  return digest;
}

std::string to_hex(const Sha256::Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep
