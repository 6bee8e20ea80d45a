// SPDX-License-Identifier: Apache-2.0
// Finds ranks of this host for which others wait and that make no progress.
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
  bool stopped = false;  ///< its process has been stopped by a signal, as by SIGSTOP
  std::string text;      ///< since when, where, who waits for it
};

/// Looks at the lines of the control page. A rank makes progress when it posts an operation, begins
/// a step or shows life. At most one second counts between two calls, because this process may have
/// been stopped as well. Threads: one.
class HangWatch {
 public:
  /// `told_after_s` and `stopped_after_s`: seconds without progress after which look() returns a
  /// rank.
  HangWatch(ControlPage& control,
            int first_rank,
            double told_after_s = 8.0,
            double stopped_after_s = 10.0)
      : control_(control),
        first_rank_(first_rank),
        told_after_s_(told_after_s),
        stopped_after_s_(stopped_after_s) {}
  /// Call it a few times in a second with the processes of the ranks of this host; 0: has ended.
  /// Returns a rank that others wait for, once after told_after_s, and one whose process is stopped
  /// again after stopped_after_s; only then is HangingRank::stopped true.
  std::optional<HangingRank> look(const std::vector<pid_t>& processes);

 private:
  struct Watched {
    std::uint64_t signs = 0;
    double waited_s = 0.0;
    bool told = false;
  };
  [[nodiscard]] std::vector<int> waiting_for(int rank) const;

  ControlPage& control_;
  int first_rank_;
  double told_after_s_, stopped_after_s_;
  double last_look_ = -1.0;
  std::vector<Watched> ranks_;
};

}  // namespace tessera::launch
