// SPDX-License-Identifier: Apache-2.0
// Collectives by operation and size, as DeepSpeed's comms_logger summarizes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/trace.h"

namespace tessera::report {

/// All collectives with the same operation, size and number of ranks.
struct CommsRow {
  std::string op;  ///< "all_gather"
  double bytes = 0;
  int ranks = 1;
  std::int64_t count = 0;
  double seconds = 0;  ///< from posting to result, including computation meanwhile
  double waited = 0;   ///< time of the rank in them: waiting and copying
  [[nodiscard]] double mean_s() const {
    return count > 0 ? seconds / static_cast<double>(count) : 0;
  }
  /// Bytes per second; 0 if no time passed.
  [[nodiscard]] double algbw() const;
  /// algbw() times the share of the data that an ideal algorithm moves over a rank's link: 2 (n -
  /// 1) / n for an all-reduce, (n - 1) / n for an all-gather, reduce-scatter and all-to-all, 1 for
  /// others. Source: NCCL tests, PERFORMANCE.md; DeepSpeed's utils/comms_logging.py.
  [[nodiscard]] double busbw() const;
};

/// Counts the collectives of its thread while it exists.
class CommsCounter : public trace::Listener {
 public:
  /// `ops`: DeepSpeed's names, such as "all_gather_into_tensor"; empty: all operations.
  explicit CommsCounter(std::vector<std::string> ops) : ops_(std::move(ops)) {}
  void hear(const trace::Span& span) override;
  /// Sorted by operation, then size.
  [[nodiscard]] std::vector<CommsRow> rows() const;

 protected:
  [[nodiscard]] bool counts(std::string_view op) const;

 private:
  std::vector<std::string> ops_;
  std::map<std::pair<std::string, std::pair<double, int>>, CommsRow> rows_;
};

/// Formats a table. `fastest`: for each row the shortest total wait of any rank; this rank's excess
/// over it is the cost of slower ranks. Empty: one rank.
std::string comms_table(const std::vector<CommsRow>& rows, const std::vector<double>& fastest);

}  // namespace tessera::report
