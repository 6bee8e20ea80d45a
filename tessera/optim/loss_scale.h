// SPDX-License-Identifier: Apache-2.0
// Loss scaling for fp16 training: the factor on the loss, and how it reacts to overflows of the
// gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// The reaction of a step when the loss or the gradient is not finite: it throws Error{Numeric}, or
/// leaves the weights as they are so that training continues.
enum class OnNonfinite : std::uint8_t { Stop, Skip };

/// Rules of dynamic loss scaling; see LossScaler. Megatron's is also that of Colossal-AI.
enum class ScalerKind : std::uint8_t { DeepSpeed, Megatron, BMTrain };

/// The `fp16` block: DeepSpeed's keys, and those of the other scalers under their own names. Keys
/// that only some scalers have are optional, so that a key of another scaler can be reported.
struct Fp16Options {
  bool enabled = false, auto_cast = false, fp16_master_weights_and_grads = false;
  ScalerKind scaler = ScalerKind::DeepSpeed;
  double loss_scale = 0.0;  ///< above 0: static
  std::optional<double> initial_scale;
  std::optional<std::int64_t> initial_scale_power;
  // Keys of DeepSpeed.
  std::optional<std::int64_t> loss_scale_window, hysteresis;
  std::optional<bool> consecutive_hysteresis;
  std::optional<double> min_loss_scale;
  // Keys of Megatron and Colossal-AI.
  std::optional<double> growth_factor, backoff_factor, min_scale, max_scale;
  std::optional<std::int64_t> growth_interval;
  // Keys of BMTrain.
  std::optional<double> loss_scale_factor, max_loss_scale;
  std::optional<std::int64_t> loss_scale_steps;

  void describe(config::Fields& fields);
  /// Returns the options with every key that the scaler reads at this ZeRO stage: the form in which
  /// a resolved configuration shows them.
  [[nodiscard]] Fp16Options completed(int zero_stage) const;
};

/// Checks the keys of the block at `path` against each other: keys of another scaler, two keys for
/// one value, an initial scale outside its bounds, unsupported combinations. Keys without an effect
/// are added to `notes`. Pure; a disabled block is not checked.
void check_fp16(const Fp16Options& options,
                int zero_stage,
                const std::string& path,
                config::Problems& problems,
                const config::Origins& origins,
                std::vector<std::string>& notes);

/// The loss scale as a state machine over the steps. Each step reports whether its gradients
/// overflowed (on any rank, so that all ranks agree); such a step changes no weights. Sources:
/// DeepSpeed 0.16 (DynamicLossScaler for ZeRO stages 1 to 3, FP16_Optimizer for stage 0),
/// Megatron-LM and Colossal-AI (DynamicGradScaler), BMTrain (OptimManager). Threads: one.
///
///   deepspeed, 1-3  overflow: halve, once `hysteresis` overflows have occurred. Clean: double
///                   every loss_scale_window steps after the last overflow, and reset the
///                   hysteresis.
///   deepspeed, 0    overflow: halve at once. Clean: double one step later than above.
///   megatron        overflow: from the `hysteresis`-th on multiply by backoff_factor. After
///                   growth_interval consecutive clean steps: multiply by growth_factor, and
///                   reset the hysteresis.
///   bmtrain         overflow: divide, if above the minimum. loss_scale_steps clean steps after
///                   the last change: multiply, if below the maximum.
class LossScaler {
 public:
  LossScaler(const Fp16Options& options, int zero_stage);
  [[nodiscard]] double scale() const { return scale_; }
  [[nodiscard]] bool dynamic() const { return rule_ != Rule::Static; }
  /// Returns whether no overflow can lower the scale any more.
  [[nodiscard]] bool at_smallest() const { return !dynamic() || scale_ <= smallest_; }
  /// Updates the state after a step. Throws Error{Numeric} where DeepSpeed ends the run: at stages
  /// 1 to 3, on an overflow when the scale is at its minimum and the hysteresis is used up. The
  /// state has advanced even then, so that a caller may continue.
  void update(bool overflow);
  /// Returns the state for checkpoints: {"scaler", "scale", "iteration", "last_overflow",
  /// "hysteresis_left", "clean_steps"}; values that a rule does not use stay at their initial
  /// values.
  [[nodiscard]] json::Value state() const;
  /// Continues exactly from `state`. From the state of another scaler only the scale is taken; a
  /// static scaler takes nothing from a static one, because the configuration has the scale. Throws
  /// Error{Format} naming what is missing.
  void restore(const json::Value& state);

 private:
  enum class Rule : std::uint8_t { Static, DeepSpeed, DeepSpeedStage0, Megatron, BMTrain };
  void update_deepspeed(bool overflow);
  void update_deepspeed_stage0(bool overflow);
  void update_megatron(bool overflow);
  void update_bmtrain(bool overflow);

  Rule rule_ = Rule::Static;
  std::string name_ = "static";
  double growth_ = 2.0, backoff_ = 0.5;
  double smallest_ = 1.0, largest_;
  std::int64_t interval_ = 1, hysteresis_ = 1;
  bool consecutive_ = false;

  double scale_ = 1.0;
  std::int64_t iteration_ = 0;
  std::int64_t last_overflow_ = -1;  // DeepSpeed's rules: the iteration
  std::int64_t hysteresis_left_ =
      1;  // deepspeed: overflows left until the scale is halved; megatron: until 0
  std::int64_t clean_steps_ = 0;  // Megatron's and BMTrain's rules
};

}  // namespace tessera::optim
