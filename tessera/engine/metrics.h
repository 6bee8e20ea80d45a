// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl, one JSON object per line, flushed every step; and the step line for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/report/plot.h"

namespace tessera::engine {

/// The data of an evaluation: its keys begin with "eval_" or with "test_".
enum class EvalSplit : std::uint8_t { Validation, Test };

/// Returns a line of metrics.jsonl. `time`: seconds since 1970; `breakdown`: include the times of
/// the parts of a step.
json::Value step_values(const StepReport& report, bool breakdown, double time);
json::Value eval_values(std::int64_t step, const EvalReport& report, EvalSplit split);

/// Appends to a run's metrics.jsonl. Throws Error{Io} if it cannot be written.
class MetricsFile {
 public:
  /// Opens the file and removes the lines of steps after `last_step`, so that after a resume every
  /// step appears once.
  MetricsFile(const std::filesystem::path& path, std::int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void write(const StepReport& report, bool breakdown);
  void write(std::int64_t step, const EvalReport& report, EvalSplit split = EvalSplit::Validation);

 private:
  void append(const std::string& line);
  int fd_ = -1;
  std::filesystem::path path_;
};

/// The speed of a training step.
struct StepSpeed {
  double tokens_per_s = 0, seconds = 0;
};
/// Returns the medians over the last training steps in metrics.jsonl, of which the first steps of a
/// run and those that do more than others are few; zeros if there is none.
StepSpeed median_speed(const std::filesystem::path& path);

/// Lines that cannot be parsed, such as an incomplete last one, are left out.
report::LossHistory read_losses(const std::filesystem::path& path);

/// The values of terms over the steps, by name: "terms.NAME" of training, "eval_terms.NAME" of
/// evaluations.
using TermHistory = std::map<std::string, std::vector<report::CurvePoint>>;
/// Reads all terms of metrics.jsonl; lines that cannot be parsed are left out.
TermHistory read_terms(const std::filesystem::path& path);

/// The times and tokens of the steps since the last printed line. A single step says little: the
/// steps that are printed are often those that do more than others.
class StepsSincePrinted {
 public:
  void add(const StepReport& report);
  /// Returns `last`, which was added, with the means over all steps that were added, and begins
  /// anew.
  StepReport take(StepReport last);

 private:
  std::int64_t steps_ = 0;
  StepReport sums_;
};

/// "step 120/5000 | loss 3.2104 | lr 3.0e-04 | gnorm 0.82 | 178.0k tok/s | mem 1.2 GiB | data 1%
/// comm 9% | ETA 2h13m"
/// The share of padding is shown from one hundredth on. `unit`: what StepReport::batch_tokens
/// counts.
std::string step_line(const StepReport& report,
                      std::int64_t max_steps,
                      double eta_s,
                      std::string_view unit = "tok");
/// The second line, printed with `wall_clock_breakdown`.
std::string breakdown_line(const StepReport& report);

}  // namespace tessera::engine
