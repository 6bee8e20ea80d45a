// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/hang_watch.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/clock.h"
#include "tessera/launch/rank_end.h"

namespace tessera::launch {
namespace {

constexpr double kMostCountedS = 1.0;
constexpr std::size_t kMostNamed = 8;

/// Returns true if a signal has stopped the process. In /proc/PID/stat the state follows the name
/// in parentheses; a stopped process has the state T.
bool is_stopped(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::stringstream text;
  text << file.rdbuf();
  const std::string stat = text.str();
  const std::size_t name = stat.rfind(") ");
  return name != std::string::npos && stat.compare(name + 2, 2, "T ") == 0;
}

bool is_running(const RankLine& line) {
  return line.state.load() == static_cast<std::uint32_t>(RankState::Running);
}

std::string waiters_text(const std::vector<int>& waiters) {
  const std::vector<int> named(
      waiters.begin(),
      waiters.begin() + static_cast<std::ptrdiff_t>(std::min(kMostNamed, waiters.size())));
  return fmt::format("{} {}{} {} for it",
                     waiters.size() == 1 ? "rank" : "ranks",
                     fmt::join(named, ", "),
                     waiters.size() > kMostNamed ? ", ..." : "",
                     waiters.size() == 1 ? "waits" : "wait");
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

std::optional<HangingRank> HangWatch::look(const std::vector<pid_t>& processes) {
  const double now = now_s();
  const double passed = last_look_ < 0 ? 0.0 : std::min(now - last_look_, kMostCountedS);
  last_look_ = now;
  ranks_.resize(processes.size());
  std::optional<HangingRank> found;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const int rank = first_rank_ + static_cast<int>(i);
    Watched& watched = ranks_[i];
    const RankLine& line = control_.line(rank);
    const std::uint64_t signs = line.life.load() + line.last_seq.load() +
                                static_cast<std::uint64_t>(std::max<std::int64_t>(0, line.step));
    if (signs != watched.signs || !is_running(line) || processes[i] == 0) {
      watched = {signs, 0.0, false};
      continue;
    }
    watched.waited_s += passed;
    if (watched.waited_s < told_after_s_ || found) continue;
    const bool stopped = is_stopped(processes[i]);
    if (watched.told && (!stopped || watched.waited_s < stopped_after_s_)) continue;
    const std::vector<int> waiters = waiting_for(rank);
    // A rank that waits itself is not the cause, unless it was stopped while it waited.
    if (waiters.empty() || (!stopped && line.waiting_for.load() > 0)) continue;
    const bool again = watched.told;
    watched.told = true;
    if (again) watched.waited_s = 0.0;
    found = HangingRank{
        rank,
        stopped && again,
        fmt::format("rank {} hangs: it has made no progress for {:.0f} s, {}; {}{}",
                    rank,
                    again ? stopped_after_s_ : told_after_s_,
                    position(line),
                    waiters_text(waiters),
                    stopped ? fmt::format("; a signal has stopped its process (kill -CONT {})",
                                          processes[i])
                            : "")};
  }
  return found;
}

}  // namespace tessera::launch
