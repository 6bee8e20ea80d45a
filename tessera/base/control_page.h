// SPDX-License-Identifier: Apache-2.0
// The control page: shared memory of one world on which every rank says how it is and reads how the
// others are. launch/ (which watches processes) and comm/ (which waits for peers) both use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// Ranks of one world on one host, at most.
inline constexpr int kMostRanks = 1024;

/// States of a rank, in this order: Starting -> Running -> Finished | Failed | Lost.
enum class RankState : std::uint32_t { Starting, Running, Finished, Failed, Lost };

/// One rank's line of the page. Plain atomics only: it lives in memory shared by processes.
struct alignas(64) RankLine {
  std::atomic<std::uint32_t> state{0};
  std::atomic<std::uint32_t> pid{0};
  std::atomic<std::int64_t> step{-1};         ///< the step it works on; -1 before the first
  std::atomic<std::uint64_t> last_seq{0};     ///< of the last collective it posted
  std::atomic<std::uint32_t> doorbell{0};     ///< futex word: raised to wake this rank
  std::atomic<std::uint32_t> waiting_for{0};  ///< 1 + rank it waits for, 0 none
  std::atomic<std::uint64_t> life{0};         ///< raised between pieces of work that post nothing
  char where[88]{};                           ///< call site of the last collective, NUL-terminated
};

/// The page: a header and one RankLine a rank.
struct alignas(64) ControlPage {
  static constexpr std::uint32_t kMagic = 0x74657373;  // "tess"
  std::uint32_t magic = kMagic;
  std::uint32_t ranks = 0;
  /// 0 while the world is whole; otherwise the kind of error + 1 of whoever broke it. Set once,
  /// message first.
  std::atomic<std::uint32_t> aborted{0};
  std::atomic<std::uint32_t> abort_claim{0};  ///< raised by whoever is about to write the message
  std::atomic<std::uint32_t> abort_rank{0};
  std::atomic<std::uint32_t> reporter{0};  ///< 1 + the rank that reports it, where ranks do
  std::atomic<std::uint32_t> stop_requested{
      0};                ///< 0, or the signal that asked all ranks to stop after this step
  char message[8192]{};  ///< the first failure in words

  [[nodiscard]] RankLine* lines() { return reinterpret_cast<RankLine*>(this + 1); }
  [[nodiscard]] RankLine& line(int rank) { return lines()[rank]; }
  static std::size_t bytes(int ranks);

  /// Formats zeroed memory of bytes(ranks).
  static ControlPage* format(void* memory, int ranks);
  /// Breaks the world with the first caller's message (later callers are ignored; what there is no
  /// room for is cut off between two characters) and wakes every rank. Somebody who was killed
  /// while doing that counts as not having begun: then this call takes over, after about 0.1 s.
  /// Returns whether the message is this call's; the world is broken in any case.
  bool abort(int rank, std::uint32_t kind, std::string_view text) noexcept;
  [[nodiscard]] std::string abort_message() const;
  void ring(int rank) noexcept;  ///< wakes one rank
  void ring_all() noexcept;
};

}  // namespace tessera
