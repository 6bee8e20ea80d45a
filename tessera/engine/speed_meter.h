// SPDX-License-Identifier: Apache-2.0
// How much arithmetic a training does in a second, and how much of what the machine can do that is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/engine/engine.h"
#include "tessera/ops/op_log.h"

namespace tessera::engine {

/// Of all ranks together.
struct Speed {
  double flops = 0;  ///< of the matrix products of a step, what is computed again included
  double peak =
      0;  ///< FLOP/s that products in the working dtype reach, measured on all ranks at once
  /// "0.145 TFLOP/s (MFU 61%)" of a step that took so long.
  [[nodiscard]] std::string text(double step_s) const;
};

/// Measures a training that will take more than a minute: the arithmetic of its twelfth step, and
/// after it the machine, which takes about half a second. Shorter trainings are not measured. All
/// methods are collective.
class SpeedMeter {
 public:
  void before_step(Engine& engine);
  /// Writes speed.json into `run_dir`, unless that is empty, on the rank that speaks. Error{Io}.
  void after_step(Engine& engine, const StepReport& report, const std::filesystem::path& run_dir);
  [[nodiscard]] const std::optional<Speed>& speed() const { return speed_; }

 private:
  [[nodiscard]] bool is_worth_it(Engine& engine);
  std::int64_t steps_ = 0;
  double seconds_ = 0;  ///< of the steps from the third to the eleventh
  bool measures_ = false;
  std::unique_ptr<ops::OpLog> log_;
  std::optional<Speed> speed_;
};

/// What speed.json of a run folder says; nothing if it is not there.
std::optional<Speed> read_speed(const std::filesystem::path& run_dir);

}  // namespace tessera::engine
