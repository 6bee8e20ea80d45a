// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/authenticated_link.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kCodeBytes = 16;
constexpr std::size_t kNumberBytes = 12;  // of the initial vector that counts messages
/// The size of a small message precedes it. The code is computed over both.
using Size = std::uint32_t;
/// Larger messages are sent in parts, so that a part is in the cache when the engine reads it, and
/// the network works while the next one is hashed.
constexpr std::size_t kPartBytes = std::size_t{1} << 20;

using Code = std::array<std::byte, kCodeBytes>;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

hosts::Mac key_of(const hosts::Secret& secret,
                  int from,
                  int to,
                  const LinkNonce& from_nonce,
                  const LinkNonce& to_nonce) {
  const std::array<std::int32_t, 2> pair = {from, to};
  return hosts::mac_of(
      secret, {bytes_of("tessera link"), std::as_bytes(std::span(pair)), from_nonce, to_nonce});
}

}  // namespace

/// Computes the codes of the messages of one direction, one after the other. Threads: one.
class AuthenticatedLink::Direction {
 public:
  explicit Direction(const hosts::Mac& key) : context_(EVP_CIPHER_CTX_new()) {
    static_assert(sizeof(key) == 32);  // AES-256
    require(context_ != nullptr &&
            EVP_EncryptInit_ex(context_,
                               EVP_aes_256_gcm(),
                               nullptr,
                               reinterpret_cast<const unsigned char*>(key.data()),
                               nullptr) == 1);
  }
  ~Direction() { EVP_CIPHER_CTX_free(context_); }
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  /// Begins the next message.
  void begin() {
    std::array<unsigned char, kNumberBytes> number{};
    std::memcpy(number.data(), &count_, sizeof(count_));
    ++count_;
    require(EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, number.data()) == 1);
  }
  /// Adds a part of it, of at most kPartBytes.
  void add(std::span<const std::byte> part) {
    int length = 0;
    if (part.empty()) return;
    require(EVP_EncryptUpdate(context_,
                              nullptr,
                              &length,
                              reinterpret_cast<const unsigned char*>(part.data()),
                              static_cast<int>(part.size())) == 1);
  }
  /// Returns the code of the whole message.
  Code end() {
    int length = 0;
    Code code{};
    auto* const out = reinterpret_cast<unsigned char*>(code.data());
    require(EVP_EncryptFinal_ex(context_, out, &length) == 1 &&
            EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kCodeBytes, out) == 1);
    return code;
  }

  std::vector<std::byte> joined;  ///< a small message or the end of a large one, and its code

 private:
  static void require(bool good) {
    TESSERA_REQUIRE(good, Environment, "libcrypto has no AES-256-GCM", "");
  }

  EVP_CIPHER_CTX* context_;
  std::uint64_t count_ = 0;
};

AuthenticatedLink::AuthenticatedLink(std::unique_ptr<HostLink> link,
                                     int rank,
                                     const hosts::Secret& secret,
                                     const std::map<int, LinkNonce>& nonces)
    : link_(std::move(link)) {
  const LinkNonce& own = nonces.at(rank);
  for (const auto& [peer, nonce] : nonces) {
    if (peer == rank) continue;
    sending_[peer] = std::make_unique<Direction>(key_of(secret, rank, peer, own, nonce));
    receiving_[peer] = std::make_unique<Direction>(key_of(secret, peer, rank, nonce, own));
  }
}

AuthenticatedLink::~AuthenticatedLink() = default;

void AuthenticatedLink::send(int peer, std::span<const Bytes> messages) {
  Direction& direction = *sending_.at(peer);
  std::vector<std::byte>& joined = direction.joined;
  for (Bytes message : messages) {
    joined.clear();
    direction.begin();
    if (message.size() <= kSmallBytes) {
      const Size size = static_cast<Size>(message.size());
      const Bytes prefix = std::as_bytes(std::span(&size, 1));
      joined.assign(prefix.begin(), prefix.end());
    }
    while (message.size() > kSmallBytes) {
      const Bytes part = message.first(std::min(message.size(), kPartBytes));
      direction.add(part);
      link_->send(peer, {&part, 1});
      message = message.subspan(part.size());
    }
    joined.insert(joined.end(), message.begin(), message.end());
    direction.add(joined);
    const Code code = direction.end();
    joined.insert(joined.end(), code.begin(), code.end());
    const Bytes last(joined);
    link_->send(peer, {&last, 1});
  }
}

void AuthenticatedLink::receive(int peer, std::span<std::byte> message) {
  Direction& direction = *receiving_.at(peer);
  const std::size_t prefix = message.size() <= kSmallBytes ? sizeof(Size) : 0;
  std::span<std::byte> rest = message;
  direction.begin();
  while (rest.size() > kSmallBytes) {
    const std::span<std::byte> part = rest.first(std::min(rest.size(), kPartBytes));
    link_->receive(peer, part);
    direction.add(part);
    rest = rest.subspan(part.size());
  }
  direction.joined.resize(prefix + rest.size() + kCodeBytes);
  const std::span<std::byte> joined(direction.joined);
  link_->receive(peer, joined);
  // The size counts only if the code is right; it must not lead out of the memory before that.
  auto size = static_cast<Size>(rest.size());
  std::memcpy(&size, joined.data(), prefix);
  const bool fits = size <= rest.size();
  const Bytes arrived = joined.first(prefix + (fits ? size : rest.size()));
  direction.add(arrived);
  const Code expected = direction.end();
  TESSERA_REQUIRE(
      fits && CRYPTO_memcmp(joined.data() + arrived.size(), expected.data(), kCodeBytes) == 0,
      Comm,
      fmt::format("what arrived as a message of rank {} was not sent by a rank of this job, or was "
                  "changed on the way",
                  peer),
      "look for other programs that connect to the ports of this job, and use a network that only "
      "its users can reach");
  std::copy_n(joined.data() + prefix, size, rest.data());
}

std::vector<int> partners_of(int rank, const HostLayout& layout) {
  const int own = layout.host_of(rank);
  std::vector<int> partners;
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host == own) continue;
    const int receiver = layout.receiver(rank, host);
    for (int other = layout.begin(host); other < layout.begin(host + 1); ++other) {
      if (other == receiver || layout.receiver(other, own) == rank) partners.push_back(other);
    }
  }
  return partners;
}

}  // namespace tessera::comm
