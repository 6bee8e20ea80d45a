// SPDX-License-Identifier: Apache-2.0
// The work that a file from outside may cause: the budgets of all readers, in one place. They are
// far above what published data and models need, and keep every reader below 1.5 GB and a few
// seconds before it refuses the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::budget {

/// A line of a file of lines, or a stretch of a text without white space.
inline constexpr std::uint64_t kLineBytes = std::uint64_t{64} << 20;
/// A file that is read as a whole into memory: hosts, prompts, templates, lines of text.
inline constexpr std::uint64_t kWholeFileBytes = std::uint64_t{512} << 20;
/// The columns of a table.
inline constexpr std::uint64_t kColumns = 10'000;
/// A token of a vocabulary. The longest published ones have some hundred bytes.
inline constexpr std::uint64_t kTokenBytes = std::uint64_t{16} << 10;
/// The problems of a configuration that are listed.
inline constexpr std::size_t kProblems = 100;

/// Returns how long `bytes` of a text may be once a tokenizer normalized it. One character becomes
/// at most 18 others in Unicode's own forms.
[[nodiscard]] constexpr std::uint64_t normalized(std::uint64_t bytes) {
  return 64 * bytes + (std::uint64_t{1} << 20);
}
/// Returns how many bytes a compressed file of `bytes` may hold. Text shrinks to a third or a
/// tenth; files of which more than 99.5 % disappear are made to fill memories.
[[nodiscard]] constexpr std::uint64_t inflated(std::uint64_t bytes) {
  return 200 * bytes + (std::uint64_t{64} << 20);
}

/// Throws Error{Data} for a line of more than kLineBytes. Cheap for any other.
void require_line(std::uint64_t bytes, const std::string& file, std::int64_t line);
/// Throws Error{Data} if `amount` exceeds `most`: "WHERE: WHAT of 300 MB, more than ...". The
/// overload for counts names no unit.
void require_bytes(std::uint64_t amount,
                   std::uint64_t most,
                   const std::string& where,
                   const std::string& what,
                   const std::string& fix);
void require_count(std::uint64_t amount,
                   std::uint64_t most,
                   const std::string& where,
                   const std::string& what,
                   const std::string& fix);

}  // namespace tessera::budget
