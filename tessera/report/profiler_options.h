// SPDX-License-Identifier: Apache-2.0
// The sections of profilers: profile (traces), flops_profiler and comms_logger. Keys and defaults
// are DeepSpeed's if it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::report {

struct ProfileOptions {
  std::vector<double> steps;  ///< first and last
  /// Returns the steps to trace; nothing if there are none.
  [[nodiscard]] std::optional<std::pair<std::int64_t, std::int64_t>> range() const;
  void describe(config::Fields& fields);
  void check(config::Problems& problems, const config::Origins& origins) const;
};
struct FlopsProfilerOptions {
  bool enabled = false;
  std::int64_t profile_step = 1;
  std::int64_t module_depth = -1, top_modules = 1;
  bool detailed = true;
  std::string output_file;
  void describe(config::Fields& fields);
};
struct CommsLoggerOptions {
  bool enabled = false, verbose = false, prof_all = true;
  std::vector<std::string> prof_ops;
  void describe(config::Fields& fields);
};

}  // namespace tessera::report
