// SPDX-License-Identifier: Apache-2.0
// The secret that the processes of one job share, and proofs that a process knows it.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::hosts {

inline constexpr std::size_t kSecretBytes = 32;
using Mac = std::array<std::byte, kSecretBytes>;

/// A key of 256 bits. It is sent on the standard input of an agent, never on a command line, and is
/// never logged.
struct Secret {
  std::array<std::byte, kSecretBytes> key{};
  /// True if the key is a hash of names that others can guess: it then separates jobs and rejects
  /// strangers that connect by accident, but not attackers.
  bool guessable = false;
};

/// Returns bytes of the kernel's generator. Throws Error{Environment}.
std::array<std::byte, kSecretBytes> random_bytes();
Secret random_secret();

std::string to_hex(const Secret& secret);
/// Returns nothing unless `text` is 64 hexadecimal digits.
std::optional<Secret> secret_from_hex(std::string_view text);

inline constexpr const char* kSecretFile = "TESSERA_SECRET_FILE";

/// Returns the secret of a job whose processes were started by another launcher: a hash of the file
/// that TESSERA_SECRET_FILE names, which must hold 32 bytes or more and be readable by its owner
/// alone (Error{Config} if not), and of `job`; without the variable a guessable one, of `job`
/// alone.
Secret shared_secret(std::string_view job);

/// Returns HMAC-SHA-256 of the parts, each preceded by its length.
Mac mac_of(const Secret& secret, std::initializer_list<std::span<const std::byte>> parts);
/// Compares in constant time.
bool same_mac(const Mac& a, const Mac& b) noexcept;

}  // namespace tessera::hosts
