// SPDX-License-Identifier: Apache-2.0
// The table that a run prints before its first step: what is trained, on which data, how, where,
// and whether it fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"

namespace tessera::report {

/// Facts that the plan does not contain.
struct TableFacts {
  std::int64_t train_tokens = 0, validation_tokens = 0, train_samples = 0;
  /// Number of training samples of each class; empty if there are no classes.
  std::vector<std::pair<std::string, std::int64_t>> classes = {};
  std::uint64_t free_disk_bytes = 0;
  std::uint64_t available_memory_bytes = 0;
  std::string host;  ///< of every rank
  std::string run_dir;
  std::int64_t resume_step = 0;
  double tokens_per_s = 0;  ///< the median of the last steps in the run folder; 0: unknown
  /// False if the number of tokens of a step depends on what the model writes; then `step_s` is the
  /// median duration of the last steps in the run folder, 0 if it is unknown.
  bool tokens_are_known = true;
  double step_s = 0;
  /// True if tokens_per_s was estimated from the peak of this machine, false if it was measured.
  bool speed_is_estimated = false;
  std::string resume_from;           ///< checkpoint; empty: from the beginning
  std::vector<std::string> changes;  ///< accepted differences from the checkpoint
  /// The estimate of the plan; absent: the table computes it.
  std::optional<planner::MemoryEstimate> memory;
  /// "in FILE": where to find all notes, if the table has no room for them.
  std::string more_notes;
};

/// Returns how often the training reads its data: steps times samples per step, divided by the
/// number of samples; 0 if there are none.
double passes_over_data(const planner::PlanWithData& plan, const TableFacts& facts);
/// Returns a warning, with advice, if the data is read so often that further passes teach little;
/// else empty.
std::string warning_of_passes(const planner::PlanWithData& plan, const TableFacts& facts);

/// The lines of the table, at most 25.
std::vector<std::string> first_table(const planner::PlanWithData& plan, const TableFacts& facts);

}  // namespace tessera::report
