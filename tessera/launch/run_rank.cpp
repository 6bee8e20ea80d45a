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
#include "tessera/base/foreign_error.h"
#include "tessera/base/log.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {
namespace {

constexpr double kReportingS =
    1.0;  // time for another thread's report, which a slow disk may delay
// In addition to the grace period, after which a rank has left or was ended by its watch thread,
// which reports.
constexpr double kEarlierRanksS = 2.0;
constexpr std::chrono::milliseconds kLook{5};

Report own_report;
// Not destroyed with static objects: other threads may still run.
JobConnection* other_hosts = nullptr;
double patience_s = 0.0;
int first_local_rank = 0;  // the first rank of this host
std::size_t hosts_of_job = 1;
bool reports_others = true;
bool stops_at_once = false;
std::atomic<bool> noted = false, reporting = false, reported = false;

bool has_left(std::uint32_t state) {
  return state == static_cast<std::uint32_t>(RankState::Lost) ||
         state == static_cast<std::uint32_t>(RankState::Finished);
}

/// Returns whether no earlier rank can report any more.
bool is_first(ControlPage& control, int rank) {
  for (int other = first_local_rank; other < rank; ++other) {
    if (!has_left(control.line(other).state)) return false;
  }
  return true;
}

/// Lets earlier ranks report first, but only for a limited time: a stopped one never reports.
void wait_for_earlier_ranks(ControlPage& control, int rank) {
  const double until = now_s() + patience_s;
  while (!is_first(control, rank) && control.reporter == 0 && now_s() < until)
    std::this_thread::sleep_for(kLook);
}

/// Makes this rank the reporter; returns false if another rank already is. The first claim is
/// final.
bool claim_report(ControlPage& control, int rank) {
  std::uint32_t holder = 0;
  const auto self = static_cast<std::uint32_t>(rank) + 1;
  return control.reporter.compare_exchange_strong(holder, self) || holder == self;
}

std::vector<std::string> report_of(ControlPage& control) {
  std::vector<std::string> lines = {failure_text(control)};
  for (int rank = 0; rank < static_cast<int>(control.ranks); ++rank) {
    if (static_cast<std::uint32_t>(rank) == control.abort_rank ||
        !is_known(control, rank, hosts_of_job))
      continue;
    lines.push_back(remote_line(rank, control.line(rank)));
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
    const Error own = foreign_error(error.what());
    const bool bug = own.kind() == Error::Kind::Bug;
    return fail(rank,
                control,
                own.kind(),
                bug ? fmt::format("unexpected exception: {}", error.what()) : own.text());
  }
}

}  // namespace

void report_from_ranks(const Options& options) {
  own_report = options.report;
  first_local_rank = options.part ? options.part->first_rank : 0;
  hosts_of_job = options.part ? static_cast<std::size_t>(options.part->hosts) : 1;
  reports_others = !options.part || options.part->host == 0;
  patience_s = options.grace_s + kEarlierRanksS;
  stops_at_once = options.stops_at_once;
}

void keep_connection(std::unique_ptr<JobConnection> connection) {
  other_hosts = connection.release();
}

int signal_that_ends(const ControlPage& control) noexcept {
  return stops_at_once ? static_cast<int>(control.stop_requested.load()) : 0;
}

void report_failure(ControlPage& control, int rank) {
  if (!own_report || control.aborted == 0) return;
  const bool broke_it = control.abort_rank == static_cast<std::uint32_t>(rank);
  if (broke_it && (!is_first(control, rank) || !reports_others) && !noted.exchange(true))
    log::error(failure_text(control));
  // Other hosts report only if rank 0 or its host is the cause, and may be gone.
  if (!reports_others && control.abort_rank != 0) return;
  wait_for_earlier_ranks(control, rank);
  if (!claim_report(control, rank)) return;
  if (reporting.exchange(true)) {
    const double until = now_s() + kReportingS;
    while (!reported && now_s() < until)
      std::this_thread::sleep_for(kLook);
    return;
  }
  own_report(report_of(control), exit_code(abort_kind(control)));
  reported = true;
}

ControlPage* begin_rank(const RankInfo& rank) {
  if (rank.control < 0) return nullptr;
  ControlPage* const control = map_control(rank.control, rank.world_size);
  control->line(rank.rank).pid = static_cast<std::uint32_t>(getpid());
  control->line(rank.rank).state = static_cast<std::uint32_t>(RankState::Running);
  return control;
}

void break_world(const RankInfo& rank, ControlPage* control, const Error& error) {
  fail(rank, control, error.kind(), error.text());
}

int run_rank(const RankInfo& rank, const std::function<int(const RankInfo&)>& fn) {
  ControlPage* const control = begin_rank(rank);
  return end_rank(rank, control, run_guarded(rank, control, fn));
}

int end_rank(const RankInfo& rank, ControlPage* control, int code) {
  // The ranks then end because the world was broken, not because one of them failed.
  if (control != nullptr && code != kExitOk && signal_that_ends(*control) != 0)
    code = unsaved_exit_code(signal_that_ends(*control));
  if (control != nullptr) {
    const bool orderly = is_orderly(code);
    // Otherwise peers that wait for this rank would wait forever.
    if (!orderly)
      fail(rank,
           control,
           kind_of(code),
           fmt::format("it ended with exit code {} without a message", code));
    control->line(rank.rank).state =
        static_cast<std::uint32_t>(orderly ? RankState::Finished : RankState::Failed);
    report_failure(*control, rank.rank);
  }
  delete std::exchange(other_hosts, nullptr);
  return code;
}

}  // namespace tessera::launch
