// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/secret.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::hosts {
namespace {

constexpr off_t kMostSecretFileBytes = 1 << 20;

void append(std::vector<unsigned char>& bytes, std::span<const std::byte> part) {
  const std::uint64_t length = part.size();
  const auto* const digits = reinterpret_cast<const unsigned char*>(&length);
  bytes.insert(bytes.end(), digits, digits + sizeof(length));
  const auto* const begin = reinterpret_cast<const unsigned char*>(part.data());
  bytes.insert(bytes.end(), begin, begin + part.size());
}

std::string read_secret_file(const std::string& path) {
  struct stat facts {};
  TESSERA_REQUIRE(stat(path.c_str(), &facts) == 0,
                  Config,
                  fmt::format("{}={}: {}", kSecretFile, path, std::strerror(errno)),
                  fmt::format("(umask 077; head -c 32 /dev/urandom > {})", path));
  TESSERA_REQUIRE((facts.st_mode & 077) == 0,
                  Config,
                  fmt::format("{}={}: others than its owner may read the file", kSecretFile, path),
                  "chmod 600 " + path);
  TESSERA_REQUIRE(
      facts.st_size >= static_cast<off_t>(kSecretBytes) && facts.st_size <= kMostSecretFileBytes,
      Config,
      fmt::format("{}={}: the file has {} bytes", kSecretFile, path, facts.st_size),
      "store 32 random bytes in it");
  return files::read(path);
}

}  // namespace

std::array<std::byte, kSecretBytes> random_bytes() {
  std::array<std::byte, kSecretBytes> bytes{};
  TESSERA_REQUIRE(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
                  Environment,
                  fmt::format("no random bytes: getrandom: {}", std::strerror(errno)),
                  "");
  return bytes;
}

Secret random_secret() {
  return {random_bytes()};
}

std::string to_hex(const Secret& secret) {
  std::string text;
  for (const std::byte byte : secret.key)
    text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

std::optional<Secret> secret_from_hex(std::string_view text) {
  if (text.size() != 2 * kSecretBytes) return std::nullopt;
  Secret secret;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (digit < 0) return std::nullopt;
    std::byte& byte = secret.key[i / 2];
    byte = (byte << 4) | static_cast<std::byte>(digit);
  }
  return secret;
}

Secret shared_secret(std::string_view job) {
  const char* const path = std::getenv(kSecretFile);
  Secret zero;
  zero.guessable = path == nullptr || *path == '\0';
  const std::string text = zero.guessable ? "" : read_secret_file(path);
  Secret secret = zero;
  secret.key = mac_of(zero, {std::as_bytes(std::span(text)), std::as_bytes(std::span(job))});
  return secret;
}

Mac mac_of(const Secret& secret, std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<unsigned char> message;
  for (const std::span<const std::byte> part : parts)
    append(message, part);
  Mac mac{};
  unsigned int length = 0;
  const unsigned char* const made = HMAC(EVP_sha256(),
                                         secret.key.data(),
                                         static_cast<int>(secret.key.size()),
                                         message.data(),
                                         message.size(),
                                         reinterpret_cast<unsigned char*>(mac.data()),
                                         &length);
  TESSERA_REQUIRE(
      made != nullptr && length == mac.size(), Environment, "libcrypto has no HMAC", "");
  return mac;
}

bool same_mac(const Mac& a, const Mac& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tessera::hosts
