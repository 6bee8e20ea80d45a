// SPDX-License-Identifier: Apache-2.0
// Measures a training's arithmetic per second, and its fraction of the machine's peak.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/engine/engine.h"
#include "tessera/ops/op_log.h"

namespace tessera::engine {

/// For all ranks together.
struct Speed {
  double flops = 0;  ///< of a step's matrix products, including recomputed ones
  double peak =
      /// FLOP/s of matrix products in the working dtype, measured on all ranks at the same time.
      0;
  /// Seconds of a step whose operations run at the machine's peak of arithmetic or of memory
  /// traffic, whichever bounds each, on the slowest rank; 0: not known.
  double least_s = 0;
  /// Returns "0.145 TFLOP/s (MFU 61%)" for a step of this duration, and with least_s "(MFU 61%, 74%
  /// of the speed of light)".
  [[nodiscard]] std::string text(double step_s) const;
};

/// Measures a training that will take more than a minute: the arithmetic of its twelfth step, and
/// then the machine, which takes about half a second. Shorter trainings are not measured, except on
/// a device, where the third step is. All methods are collective.
class SpeedMeter {
 public:
  void before_step(Engine& engine);
  /// Writes speed.json into `run_dir`, unless it is empty, on the leader. Throws Error{Io}.
  void after_step(Engine& engine, const StepReport& report, const std::filesystem::path& run_dir);
  [[nodiscard]] const std::optional<Speed>& speed() const { return speed_; }

 private:
  [[nodiscard]] bool is_worth_it(Engine& engine);
  [[nodiscard]] static std::int64_t measured_step(Engine& engine);
  std::int64_t steps_ = 0;
  double seconds_ = 0;  ///< of the steps from the third to the eleventh
  bool measures_ = false;
  std::unique_ptr<ops::OpLog> log_;
  std::optional<Speed> speed_;
};

/// Returns the contents of speed.json in a run folder; nothing if it does not exist.
std::optional<Speed> read_speed(const std::filesystem::path& run_dir);

}  // namespace tessera::engine
