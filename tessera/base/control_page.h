// SPDX-License-Identifier: Apache-2.0
// The control page: a shared-memory page of one world on which every rank publishes its state and
// reads the state of the others. launch/ (which watches processes) and comm/ (which waits for
// peers) both use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// Maximum number of ranks of one world on one host.
inline constexpr int kMostRanks = 1024;

/// State of a rank. Transitions: Starting -> Running -> Finished | Failed | Lost.
enum class RankState : std::uint32_t { Starting, Running, Finished, Failed, Lost };

/// The activity of a rank while it posts nothing: work that a disk, a file server or a reader of
/// its output can hold up for ever.
enum class Activity : std::uint32_t { None, ReadData, Load, Save, Generate, Report };
/// Returns "reading data", "saving a checkpoint"; empty: None, or an unknown value.
std::string_view activity_text(std::uint32_t activity);

/// Entry of one rank on the page. Plain atomics only: the memory is shared by processes.
struct alignas(64) RankLine {
  std::atomic<std::uint32_t> state{0};
  std::atomic<std::uint32_t> pid{0};
  std::atomic<std::int64_t> step{-1};  ///< the step that the rank works on; -1 before the first
  std::atomic<std::uint64_t> last_seq{
      0};  ///< sequence number of the last collective that the rank posted
  std::atomic<std::uint32_t> doorbell{0};     ///< futex word; incremented to wake this rank
  std::atomic<std::uint32_t> waiting_for{0};  ///< 1 + the rank that this one waits for; 0: none
  /// Incremented as long as peers should wait for this rank, also if it waits for a disk.
  std::atomic<std::uint64_t> life{0};
  std::atomic<std::uint64_t> work{0};  ///< incremented after each piece of work that posts nothing
  std::atomic<std::uint32_t> activity{0};    ///< an Activity
  std::atomic<std::uint32_t> activities{0};  ///< number of activities that have begun
  char where[88]{};                          ///< call site of the last collective, NUL-terminated
};

/// The page: a header followed by one RankLine per rank.
struct alignas(64) ControlPage {
  static constexpr std::uint32_t kMagic = 0x74657373;  // "tess"
  std::uint32_t magic = kMagic;
  std::uint32_t ranks = 0;
  /// 0 while the world is intact; otherwise 1 + the kind of the error of the rank that broke it.
  /// Set once, after the message has been written.
  std::atomic<std::uint32_t> aborted{0};
  std::atomic<std::uint32_t> abort_claim{
      0};  ///< incremented by a rank that is about to write the message
  std::atomic<std::uint32_t> abort_rank{0};
  std::atomic<std::uint32_t> reporter{
      0};  ///< 1 + the rank that reports the failure, if ranks report it
  std::atomic<std::uint32_t> stop_requested{
      0};                ///< 0, or the signal that asked all ranks to stop after this step
  char message[8192]{};  ///< message of the first failure

  [[nodiscard]] RankLine* lines() { return reinterpret_cast<RankLine*>(this + 1); }
  [[nodiscard]] RankLine& line(int rank) { return lines()[rank]; }
  static std::size_t bytes(int ranks);

  /// Constructs a page for `ranks` ranks in zeroed memory of bytes(ranks) bytes.
  static ControlPage* format(void* memory, int ranks);
  /// Breaks the world and wakes every rank. Only the message of the first caller is kept; one that
  /// is too long is cut at a character boundary. If the first caller was killed while it wrote the
  /// message, a later call takes over after about 0.1 s. Returns whether the message on the page is
  /// that of this call; the world is broken in any case.
  bool abort(int rank, std::uint32_t kind, std::string_view text) noexcept;
  [[nodiscard]] std::string abort_message() const;
  void ring(int rank) noexcept;  ///< wakes one rank
  void ring_all() noexcept;
};

}  // namespace tessera
