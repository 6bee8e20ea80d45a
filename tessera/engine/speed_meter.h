// SPDX-License-Identifier: Apache-2.0
// Measures a training's arithmetic per second, and its share of the machine's own rate of products.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/engine/engine.h"
#include "tessera/ops/op_log.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// For all ranks together.
struct Speed {
  double flops = 0;  ///< of a step's matrix products, including recomputed ones
  /// FLOP/s of matrix products in the working dtype: of the machine file of `tessera bench
  /// machine`, or measured on all ranks at the same time.
  double peak = 0;
  /// Seconds of a step whose operations run at the machine's peak of arithmetic or of memory
  /// traffic, whichever bounds each, on the slowest rank; 0: not known.
  double least_s = 0;
  /// The share of `peak` that a step of this duration reaches; 0: unknown.
  [[nodiscard]] double share(double step_s) const;
  /// Returns "0.145 TFLOP/s (MFU 61%)" for a step of this duration, and with least_s "(MFU 61%, 74%
  /// of the speed of light)".
  [[nodiscard]] std::string text(double step_s) const;
};

/// Counts the arithmetic of a step. On a device, or where `tessera bench machine` has measured the
/// machine of every rank, that is the third step. Otherwise trainings that will take more than a
/// minute are measured in their twelfth step, and then the machine, which takes about half a
/// second; shorter ones are not. All methods are collective.
class SpeedMeter {
 public:
  void before_step(Engine& engine);
  /// Writes speed.json into `run_dir`, unless it is empty, on the leader. Throws Error{Io}.
  void after_step(Engine& engine, const StepReport& report, const std::filesystem::path& run_dir);
  [[nodiscard]] const std::optional<Speed>& speed() const { return speed_; }

 private:
  [[nodiscard]] bool is_worth_it(Engine& engine);
  std::int64_t steps_ = 0;
  double seconds_ = 0;  ///< of the steps from the third to the eleventh
  bool measures_ = false;
  std::vector<double> known_;  ///< FLOP/s of each rank by its machine file; empty: not all have one
  std::unique_ptr<ops::OpLog> log_;
  std::optional<Speed> speed_;
};

/// Returns the FLOP/s of a rank's threads on a CPU by the file of `tessera bench machine`; 0 if the
/// machine is not measured.
double known_rate(const planner::Plan& plan);

/// Returns the contents of speed.json in a run folder; nothing if it does not exist.
std::optional<Speed> read_speed(const std::filesystem::path& run_dir);

}  // namespace tessera::engine
