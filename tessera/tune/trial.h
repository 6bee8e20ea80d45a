// SPDX-License-Identifier: Apache-2.0
// A trial: a short training with a layout in a process of its own, whose steps are measured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::tune {

enum class Outcome : std::uint8_t {
  Measured,
  Stopped,      ///< clearly slower than the best trial so far
  Failed,       ///< with `error`
  TimedOut,     ///< not enough steps within its time
  Interrupted,  ///< the user has stopped the search
};
std::string name(Outcome outcome);
/// Throws Error{Format} for an unknown name.
Outcome outcome_of(const std::string& name);

struct TrialResult {
  Outcome outcome = Outcome::Failed;
  /// The median of the measured steps and its standard error, in seconds; 0: none was measured.
  double step_s = 0, error_s = 0;
  std::int64_t steps = 0;         ///< that were measured
  std::int64_t memory_bytes = 0;  ///< peak of rank 0
  double wall_s = 0;
  int exit_code = 0;
  std::string error;  ///< the trial's own error, on one line
};

struct TrialOptions {
  std::vector<std::string> command;  ///< the program and its words, without those of the trial
  std::filesystem::path folder;      ///< receives config.json, stdout.log, stderr.log and the run
  std::int64_t first_step = 3;       ///< earlier steps are not measured
  std::int64_t steps = 4;            ///< that are measured
  double most_seconds = 600;         ///< of the whole trial
  /// A trial is stopped after two measured steps if their median is above this; 0: never.
  double clearly_slower_s = 0;
  /// True once the user has stopped the search.
  std::function<bool()> interrupted = {};
};

/// Trains with `config` until enough steps are measured. The trial writes no checkpoints and has no
/// evaluations; its run folder is removed afterwards. Its processes are in a group of their own,
/// which ends with the trial. Throws Error{Io} if the folder or the process cannot be made; every
/// other failure is a result.
TrialResult run_trial(const json::Value& config, const TrialOptions& options);

/// The median and its standard error of a few values, from their median absolute deviation.
std::pair<double, double> median_and_error(std::vector<double> values);
/// The last error in the output of a program: "error: ..." without its prefix; else its last line.
std::string error_in(const std::string& output);

}  // namespace tessera::tune
