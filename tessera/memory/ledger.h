// SPDX-License-Identifier: Apache-2.0
// Who holds how many bytes: every allocation of a rank is counted under a tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::memory {

/// What memory is for. Gradients are the sums that an update reads; GradientsInFlight what a
/// block's gradient is made in and travels through on its way there.
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
  std::array<std::int64_t, kNumTags> peak{};     ///< of each tag by itself
  std::int64_t total = 0;
  std::int64_t total_peak = 0;  ///< of the sum
};

/// Counters of one rank. Threads: any; `threads` ranks of one process each have their own (see
/// ScopedLedger).
class Ledger {
 public:
  void add(Tag tag, std::int64_t bytes) noexcept;  ///< negative: freed
  [[nodiscard]] Usage usage() const noexcept;
  void reset_peak() noexcept;

  Ledger();
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// The counters; they live on while charges are open, so that a block may outlive its rank.
  struct State;

 private:
  friend struct Charge;
  State* state_;
};

/// Bytes that somebody holds. Whoever opened it releases it once, from any thread and under any
/// tag: it is taken from the ledger and tag that it was opened under, which need not be alive or
/// current any more. Trivial, so that it can lie in a block's header.
struct Charge {
  Ledger::State* ledger = nullptr;
  std::int64_t bytes = 0;
  Tag tag = Tag::Other;

  /// Charges this thread's current ledger under `tag`.
  static Charge open(std::int64_t bytes, Tag tag) noexcept;
  void release() noexcept;  ///< does nothing the second time
};

/// The ledger that allocations of this thread are charged to; never null (a process-wide one by
/// default).
Ledger& current_ledger() noexcept;
/// Charges this thread's allocations to `ledger` while it lives.
class ScopedLedger {
 public:
  explicit ScopedLedger(Ledger& ledger) noexcept;
  ~ScopedLedger();
  ScopedLedger(const ScopedLedger&) = delete;
  ScopedLedger& operator=(const ScopedLedger&) = delete;

 private:
  Ledger* before_;
};

/// Allocations of this thread are counted under `tag` while it lives; the innermost wins. Default:
/// Activations.
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
