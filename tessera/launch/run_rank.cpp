// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/run_rank.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {
namespace {

constexpr double kOthersReportS = 1.0;  // whoever came first may be at it, with a disk that hangs

Report own_report;
std::atomic<bool> reporting = false, reported = false;

/// The first rank that still can.
bool speaks(ControlPage& control, int rank) {
  for (int other = 0; other < rank; ++other) {
    if (control.line(other).state != static_cast<std::uint32_t>(RankState::Lost)) return false;
  }
  return true;
}

std::string_view word_of(std::uint32_t state) {
  switch (static_cast<RankState>(state)) {
    case RankState::Starting:
      return "starting";
    case RankState::Running:
      return "running";
    case RankState::Finished:
      return "had finished";
    case RankState::Failed:
      return "left";
    case RankState::Lost:
      return "lost too";
  }
  return "unknown";
}

std::vector<std::string> report_of(ControlPage& control) {
  std::vector<std::string> lines = {failure_text(control)};
  for (int rank = 0; rank < static_cast<int>(control.ranks); ++rank) {
    if (static_cast<std::uint32_t>(rank) == control.abort_rank) continue;
    const RankLine& line = control.line(rank);
    lines.push_back(fmt::format("rank {}: {}, {}", rank, word_of(line.state), position(line)));
  }
  return lines;
}

int fail(const RankInfo& rank, ControlPage* control, Error::Kind kind, const std::string& text) {
  if (control != nullptr) control->abort(rank.rank, static_cast<std::uint32_t>(kind), text);
  return exit_code(kind);
}

int run_guarded(const RankInfo& rank,
                ControlPage* control,
                const std::function<int(const RankInfo&)>& fn) {
  try {
    return fn(rank);
  } catch (const Error& error) {
    return fail(rank, control, error.kind(), error.text());
  } catch (const std::bad_alloc&) {
    return fail(rank, control, Error::Kind::Memory, "memory ran out");
  } catch (const std::exception& error) {
    return fail(
        rank, control, Error::Kind::Bug, fmt::format("unexpected exception: {}", error.what()));
  }
}

}  // namespace

void report_from_ranks(Report report) {
  own_report = std::move(report);
}

void report_failure(ControlPage& control, int local_rank) {
  if (!own_report || control.aborted == 0 || !speaks(control, local_rank)) return;
  if (reporting.exchange(true)) {
    const double until = now_s() + kOthersReportS;
    while (!reported && now_s() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  own_report(report_of(control), exit_code(abort_kind(control)));
  reported = true;
}

int run_rank(const RankInfo& rank, const std::function<int(const RankInfo&)>& fn) {
  ControlPage* const control =
      rank.control >= 0 ? map_control(rank.control, rank.local_world_size) : nullptr;
  if (control != nullptr) {
    control->line(rank.rank).pid = static_cast<std::uint32_t>(getpid());
    control->line(rank.rank).state = static_cast<std::uint32_t>(RankState::Running);
  }
  const int code = run_guarded(rank, control, fn);
  if (control != nullptr) {
    const bool orderly = is_orderly(code);
    // Peers that wait for this rank would wait for ever.
    if (!orderly)
      fail(rank,
           control,
           kind_of(code),
           fmt::format("it ended with exit code {} and without a message", code));
    control->line(rank.rank).state =
        static_cast<std::uint32_t>(orderly ? RankState::Finished : RankState::Failed);
    report_failure(*control, rank.local_rank);
  }
  return code;
}

}  // namespace tessera::launch
