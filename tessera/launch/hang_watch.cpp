// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/hang_watch.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/clock.h"
#include "tessera/base/process.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {
namespace {

constexpr double kMostCountedS = 1.0;
constexpr std::size_t kMostNamed = 8;

/// Returns true if a signal has stopped the process.
bool is_stopped(pid_t process) {
  return process_state(process) == 'T';
}

/// Returns true if the process is in a system call that only a disk or a file server ends.
bool waits_for_a_device(pid_t process) {
  return process_state(process) == 'D';
}

bool is_running(const RankLine& line) {
  const std::uint32_t state = line.state.load();
  return state == static_cast<std::uint32_t>(RankState::Starting) ||
         state == static_cast<std::uint32_t>(RankState::Running);
}

/// Returns "rank 3", or "ranks 0, 1, 2, ...".
std::string ranks_text(const std::vector<int>& ranks) {
  const std::vector<int> named(
      ranks.begin(),
      ranks.begin() + static_cast<std::ptrdiff_t>(std::min(kMostNamed, ranks.size())));
  return fmt::format("{} {}{}",
                     ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(named, ", "),
                     ranks.size() > kMostNamed ? ", ..." : "");
}

std::string stopped_text(pid_t process) {
  return fmt::format("a signal has stopped its process (kill -CONT {})", process);
}

}  // namespace

std::vector<int> HangWatch::waiting_for(int rank) const {
  std::vector<int> out;
  for (int other = 0; other < static_cast<int>(control_.ranks); ++other) {
    const RankLine& line = control_.line(other);
    if (other != rank && is_running(line) &&
        line.waiting_for.load() == static_cast<std::uint32_t>(rank) + 1)
      out.push_back(other);
  }
  return out;
}

void HangWatch::update(const std::vector<pid_t>& processes) {
  const double now = now_s();
  const double passed = last_look_ < 0 ? 0.0 : std::min(now - last_look_, kMostCountedS);
  last_look_ = now;
  ranks_.resize(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) {
    Watched& watched = ranks_[i];
    const RankLine& line = control_.line(rank_of(i));
    const std::uint64_t posted =
        line.last_seq.load() + static_cast<std::uint64_t>(std::max<std::int64_t>(0, line.step));
    const std::uint64_t life = posted + line.life.load();
    const std::uint64_t work = posted + line.work.load() + line.activities.load();
    watched.no_life_s += passed;
    watched.no_work_s += passed;
    const bool ended = processes[i] == 0;
    if (ended || life != watched.life) {
      watched.no_life_s = 0.0;
      watched.told = false;
    }
    if (ended || work != watched.work) {
      watched.no_work_s = 0.0;
      watched.told_activity = false;
    }
    watched.life = life;
    watched.work = work;
  }
}

/// A rank that others wait for, or whose process is stopped.
std::optional<HangingRank> HangWatch::find_hanging(std::size_t i, pid_t process) {
  Watched& watched = ranks_[i];
  const int rank = rank_of(i);
  const RankLine& line = control_.line(rank);
  if (process == 0 || watched.no_life_s < limits_.waited_for_s) return std::nullopt;
  const bool stopped = is_stopped(process);
  if (watched.told && (!stopped || watched.no_life_s < limits_.stopped_s)) return std::nullopt;
  const std::vector<int> waiters = is_running(line) ? waiting_for(rank) : std::vector<int>();
  // A rank that waits itself is not the cause, unless it was stopped while it waited.
  if (!stopped && (waiters.empty() || line.waiting_for.load() > 0)) return std::nullopt;
  const bool again = watched.told;
  if (again && waiters.empty() && control_.stop_requested.load() == 0) return std::nullopt;
  watched.told = true;
  if (again) watched.no_life_s = 0.0;
  std::string text = fmt::format("rank {} hangs: it has made no progress for {:.0f} s, {}",
                                 rank,
                                 again ? limits_.stopped_s : limits_.waited_for_s,
                                 position(line));
  if (!waiters.empty())
    text +=
        fmt::format("; {} {} for it", ranks_text(waiters), waiters.size() == 1 ? "waits" : "wait");
  if (stopped) text += "; " + stopped_text(process);
  return HangingRank{rank, stopped && again, text};
}

/// All ranks that are held up in the activity of the first one of them.
std::optional<HangingRank> HangWatch::find_held_up(const std::vector<pid_t>& processes) {
  std::vector<int> ranks;
  std::uint32_t activity = 0;
  bool device = false;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    Watched& watched = ranks_[i];
    const RankLine& line = control_.line(rank_of(i));
    const std::uint32_t its = line.activity.load();
    const bool held_up = processes[i] != 0 && !watched.told_activity && is_running(line) &&
                         watched.no_work_s >= limits_.activity_s && line.waiting_for.load() == 0 &&
                         !activity_text(its).empty() && !is_stopped(processes[i]);
    if (!held_up || (!ranks.empty() && its != activity)) continue;
    activity = its;
    watched.told_activity = true;
    device = device || waits_for_a_device(processes[i]);
    ranks.push_back(rank_of(i));
  }
  if (ranks.empty()) return std::nullopt;
  const bool one = ranks.size() == 1;
  return HangingRank{
      ranks.front(),
      false,
      fmt::format("{} {} been {} for {:.0f} s without progress, {}{}",
                  ranks_text(ranks),
                  one ? "has" : "have",
                  activity_text(activity),
                  limits_.activity_s,
                  position(control_.line(ranks.front())),
                  device ? "; the kernel waits for a disk or a file server"
                         : "; see whether its disk, file server or service answers")};
}

std::optional<HangingRank> HangWatch::look(const std::vector<pid_t>& processes) {
  update(processes);
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (auto found = find_hanging(i, processes[i])) return found;
  }
  return find_held_up(processes);
}

}  // namespace tessera::launch
