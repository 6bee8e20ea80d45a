// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/control_page.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <new>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

constexpr double kClaimS = 0.1;  // time allowed for a claimed message to be written

// FUTEX_PRIVATE would be wrong: the waiters are other processes.
void wake(std::atomic<std::uint32_t>& word) noexcept {
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
                std::atomic<std::uint32_t>::is_always_lock_free);
  syscall(
      SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool message_arrives(const ControlPage& page) noexcept {
  for (const double deadline = now_s() + kClaimS; now_s() < deadline;) {
    if (page.aborted.load(std::memory_order_acquire) != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return page.aborted.load(std::memory_order_acquire) != 0;
}

}  // namespace

std::string_view activity_text(std::uint32_t activity) {
  constexpr std::array<std::string_view, 6> kTexts = {"",
                                                      "reading data",
                                                      "loading a checkpoint",
                                                      "saving a checkpoint",
                                                      "generating text",
                                                      "writing metrics and reports"};
  return activity < kTexts.size() ? kTexts[activity] : "";
}

std::size_t ControlPage::bytes(int ranks) {
  return sizeof(ControlPage) + static_cast<std::size_t>(ranks) * sizeof(RankLine);
}

ControlPage* ControlPage::format(void* memory, int ranks) {
  auto* page = new (memory) ControlPage;
  page->ranks = static_cast<std::uint32_t>(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    new (page->lines() + rank) RankLine;
  return page;
}

bool ControlPage::abort(int rank, std::uint32_t kind, std::string_view text) noexcept {
  // A rank that was killed between its claim and its message never writes the message. If several
  // ranks find that out, one takes over: the others see that the number of claims has changed.
  for (std::uint32_t claims = 0; !abort_claim.compare_exchange_strong(claims, claims + 1);) {
    if (message_arrives(*this)) return false;
  }
  constexpr std::string_view kCut = " ...";
  const bool fits = text.size() < sizeof(message);
  std::string_view head = text.substr(0, fits ? text.size() : sizeof(message) - 1 - kCut.size());
  if (!fits) head.remove_suffix(text::incomplete_utf8_tail(head));
  std::memcpy(message, head.data(), head.size());
  if (!fits) std::memcpy(message + head.size(), kCut.data(), kCut.size());
  message[head.size() + (fits ? 0 : kCut.size())] = '\0';
  abort_rank.store(static_cast<std::uint32_t>(rank), std::memory_order_relaxed);
  aborted.store(kind + 1, std::memory_order_release);
  ring_all();
  return true;
}

std::string ControlPage::abort_message() const {
  if (aborted.load(std::memory_order_acquire) == 0) return "";
  return std::string(message, strnlen(message, sizeof(message)));
}

void ControlPage::ring(int rank) noexcept {
  std::atomic<std::uint32_t>& bell = line(rank).doorbell;
  bell.fetch_add(1, std::memory_order_release);
  wake(bell);
}

void ControlPage::ring_all() noexcept {
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    ring(static_cast<int>(rank));
}

}  // namespace tessera
