// SPDX-License-Identifier: Apache-2.0
// The section `checkpoint`: when checkpoints are written, and which are kept.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/config/cadence.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::checkpoint {

struct Options {
  static constexpr double kDefaultMinutes = 15;
  json::Value every;                    ///< steps or "epoch"; 0: never
  std::optional<double> every_minutes;  ///< 0: never
  std::int64_t keep = 3;
  /// True if the best evaluation is saved and kept; absent: if `eval` defines it, or stops early.
  /// Resolved in a plan.
  std::optional<bool> best;
  bool final = true;
  bool save_on_signal = true;
  bool async = true;
  bool load_universal = false;
  bool use_node_local_storage = false;
  std::int64_t peer_copies = 0;  ///< hosts, besides its own, that hold a rank's state in memory
  std::int64_t peer_every = 10;  ///< steps between two copies
  /// Seconds between two checkpoints; absent if only steps count.
  [[nodiscard]] std::optional<double> interval_s() const {
    const double minutes = every_minutes.value_or(every.is_null() ? kDefaultMinutes : 0);
    return minutes > 0 ? std::optional(60 * minutes) : std::nullopt;
  }
  [[nodiscard]] config::Cadence when() const { return config::cadence_of(every); }
  [[nodiscard]] bool keeps_best() const { return best.value_or(false); }
  void describe(config::Fields& fields);
};

}  // namespace tessera::checkpoint
