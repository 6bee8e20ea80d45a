// SPDX-License-Identifier: Apache-2.0
// Accounting of memory: every allocation of a rank is counted under a tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::memory {

/// Purpose of an allocation. Gradients are the gradient accumulation buffers that an update reads;
/// GradientsInFlight are the temporary buffers in which a block's gradient is computed and
/// communicated.
enum class Tag : std::uint8_t {
  Parameters,
  Gradients,
  GradientsInFlight,
  Optimizer,
  Activations,
  Communication,
  Other
};
inline constexpr int kNumTags = 7;
std::string_view name(Tag tag) noexcept;

struct Charge;

struct Usage {
  std::array<std::int64_t, kNumTags> current{};  ///< bytes by tag
  std::array<std::int64_t, kNumTags> peak{};     ///< peak of each tag by itself
  std::int64_t total = 0;
  std::int64_t total_peak = 0;  ///< peak of the sum
};

/// Memory counters of one rank. Threads: any. Ranks that are threads of one process have one ledger
/// each (see ScopedLedger).
class Ledger {
 public:
  void add(Tag tag, std::int64_t bytes) noexcept;  ///< a negative count is memory that was freed
  [[nodiscard]] Usage usage() const noexcept;
  void reset_peak() noexcept;

  Ledger();
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// The counters. They live as long as charges are open, so that a block may outlive its rank.
  struct State;

 private:
  friend struct Charge;
  State* state_;
};

/// Bytes that were charged to a ledger. The owner releases a charge once, from any thread and under
/// any tag; it is taken from the ledger and tag that it was opened under, which may no longer be
/// alive or current. The type is trivial so that it can be part of a block's header.
struct Charge {
  Ledger::State* ledger = nullptr;
  std::int64_t bytes = 0;
  Tag tag = Tag::Other;

  /// Charges this thread's current ledger under `tag`.
  static Charge open(std::int64_t bytes, Tag tag) noexcept;
  void release() noexcept;  ///< a second call does nothing
};

/// Returns the ledger that allocations of this thread are charged to; never null (by default one of
/// the process).
Ledger& current_ledger() noexcept;
/// Charges the allocations of this thread to `ledger` while the object lives.
class ScopedLedger {
 public:
  explicit ScopedLedger(Ledger& ledger) noexcept;
  ~ScopedLedger();
  ScopedLedger(const ScopedLedger&) = delete;
  ScopedLedger& operator=(const ScopedLedger&) = delete;

 private:
  Ledger* before_;
};

/// Counts the allocations of this thread under `tag` while the object lives; the innermost tag
/// applies. Default: Activations.
class ScopedTag {
 public:
  explicit ScopedTag(Tag tag) noexcept;
  ~ScopedTag();
  ScopedTag(const ScopedTag&) = delete;
  ScopedTag& operator=(const ScopedTag&) = delete;

 private:
  Tag before_;
};
Tag current_tag() noexcept;

}  // namespace tessera::memory
