// SPDX-License-Identifier: Apache-2.0
// Finds ranks of this host that make no progress.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tessera/base/control_page.h"

namespace tessera::launch {

/// A rank that makes no progress.
struct HangingRank {
  int rank = 0;
  bool stopped = false;  ///< its process has been stopped by a signal, as by SIGSTOP, and must end
  std::string text;      ///< since when, where, who waits for it
};

/// Seconds without progress after which a HangWatch reports.
struct HangLimits {
  double waited_for_s = 8.0;  ///< a rank that others wait for, or whose process is stopped
  double stopped_s = 10.0;    ///< a stopped process that others wait for, or that is asked to stop
  double activity_s = 30.0;   ///< an Activity: reading, saving, generating, writing reports
};

/// Looks at the lines of the control page. A rank makes progress when it posts an operation, begins
/// a step, or shows work (RankLine::work); peers also wait for one that shows life. At most one
/// second counts between two calls, because this process may have been stopped as well. Threads:
/// one.
class HangWatch {
 public:
  HangWatch(ControlPage& control, int first_rank, const HangLimits& limits = {})
      : control_(control), first_rank_(first_rank), limits_(limits) {}
  /// Call it a few times in a second with the processes of the ranks of this host; 0: has ended.
  /// Returns each of these once, at most one in a call: a rank that others wait for; ranks that are
  /// held up in the same activity; a rank whose process is stopped. A stopped process is returned
  /// again with HangingRank::stopped if others wait for it, or if the job is asked to stop.
  std::optional<HangingRank> look(const std::vector<pid_t>& processes);

 private:
  struct Watched {
    std::uint64_t life = 0, work = 0;  ///< the signs at the last look
    double no_life_s = 0.0, no_work_s = 0.0;
    bool told = false, told_activity = false;
  };
  void update(const std::vector<pid_t>& processes);
  [[nodiscard]] std::vector<int> waiting_for(int rank) const;
  std::optional<HangingRank> find_hanging(std::size_t i, pid_t process);
  std::optional<HangingRank> find_held_up(const std::vector<pid_t>& processes);
  [[nodiscard]] int rank_of(std::size_t i) const { return first_rank_ + static_cast<int>(i); }

  ControlPage& control_;
  int first_rank_;
  HangLimits limits_;
  double last_look_ = -1.0;
  std::vector<Watched> ranks_;
};

}  // namespace tessera::launch
