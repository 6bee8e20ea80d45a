// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/watchdog.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "tessera/base/clock.h"

namespace tessera::comm {
namespace {

constexpr double kMostBetweenLooks = 1.0;  // seconds
constexpr std::string_view kFixMark = "\n  fix: ";

// Other ranks read RankLine::where while its owner writes it. It is written in atomic words, so
// that the worst case is a mixed text and not a data race.
constexpr std::size_t kWords = sizeof(RankLine::where) / sizeof(std::uint64_t);

std::uint64_t* words(RankLine& line) {
  static_assert(offsetof(RankLine, where) % sizeof(std::uint64_t) == 0);
  return reinterpret_cast<std::uint64_t*>(line.where);
}

}  // namespace

void abort_world(ControlPage& control, int rank, const Error& error) noexcept {
  control.abort(rank, static_cast<std::uint32_t>(error.kind()), error.text());
}

void throw_if_aborted(const ControlPage& control) {
  const std::uint32_t aborted = control.aborted.load();
  if (aborted == 0) return;
  const std::string text = control.abort_message();
  const std::size_t mark = text.find(kFixMark);
  const auto kind = static_cast<Error::Kind>(aborted - 1);
  if (mark == std::string::npos) throw Error(kind, text);
  throw Error(kind, text.substr(0, mark), text.substr(mark + kFixMark.size()));
}

void publish_operation(ControlPage& control, int rank, std::string_view what) noexcept {
  RankLine& line = control.line(rank);
  std::array<std::uint64_t, kWords> text{};
  std::memcpy(text.data(), what.data(), std::min(what.size(), sizeof(text) - 1));
  for (std::size_t i = 0; i < kWords; ++i)
    __atomic_store_n(words(line) + i, text[i], __ATOMIC_RELAXED);
  line.last_seq.store(line.last_seq.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

std::string describe(ControlPage& control, int rank) {
  RankLine& line = control.line(rank);
  std::array<std::uint64_t, kWords + 1> text{};
  for (std::size_t i = 0; i < kWords; ++i)
    text[i] = __atomic_load_n(words(line) + i, __ATOMIC_RELAXED);
  const std::uint64_t posted = line.last_seq.load(std::memory_order_relaxed);
  const std::int64_t step = line.step.load(std::memory_order_relaxed);
  const std::string where = step < 0 ? "before the first step" : fmt::format("step {}", step);
  if (posted == 0) return fmt::format("rank {} ({}, has posted nothing)", rank, where);
  return fmt::format("rank {} ({}, its operation {}: {})",
                     rank,
                     where,
                     posted,
                     reinterpret_cast<const char*>(text.data()));
}

bool Watchdog::stalled(std::span<const int> missing) {
  std::uint64_t signs = 0;
  for (const int rank : missing) {
    const RankLine& line = control_.line(rank);
    signs += line.last_seq.load(std::memory_order_relaxed) +
             line.life.load(std::memory_order_relaxed) +
             static_cast<std::uint64_t>(line.step.load(std::memory_order_relaxed));
  }
  const double now = now_s();
  if (last_look_ < 0 || signs != signs_) {
    waited_s_ = 0;
    signs_ = signs;
  } else {
    waited_s_ += std::min(now - last_look_, kMostBetweenLooks);
  }
  last_look_ = now;
  return waited_s_ > limit_s_;
}

}  // namespace tessera::comm
