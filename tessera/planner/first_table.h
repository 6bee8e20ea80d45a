// SPDX-License-Identifier: Apache-2.0
// The one table that a run begins with: at most 25 lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// What the table tells beside the plan.
struct TableFacts {
  std::int64_t train_tokens = 0, validation_tokens = 0, train_samples = 0;
  std::uint64_t free_disk_bytes = 0, available_memory_bytes = 0;
  std::string run_dir;
  std::int64_t resume_step = 0;
  std::string resume_from;           ///< empty: starts from the beginning
  std::vector<std::string> changes;  ///< accepted differences at a resume, old -> new
};
/// Lines without line ends: model, parameters, tokens, layout, batch arithmetic, memory per rank
/// against what is free, data, checkpoint bytes x keep against free disk, resume point, seed.
std::vector<std::string> first_table(const Plan& plan, const TableFacts& facts);

}  // namespace tessera::planner
