// SPDX-License-Identifier: Apache-2.0
// Loss scaling of fp16 training: by what the loss is multiplied, and how that number follows the
// overflows of the gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// The `fp16` block: DeepSpeed's keys, and those of the other scalers under their own names. What
/// only some scalers know is optional, so that a key of another scaler can be told.
struct Fp16Options {
  bool enabled = false, auto_cast = false, fp16_master_weights_and_grads = false;
  std::string scaler = "deepspeed";
  double loss_scale = 0.0;  ///< above 0: static
  std::optional<double> initial_scale;
  std::optional<std::int64_t> initial_scale_power;
  // DeepSpeed's.
  std::optional<std::int64_t> loss_scale_window, hysteresis;
  std::optional<bool> consecutive_hysteresis;
  std::optional<double> min_loss_scale;
  // Megatron's and Colossal-AI's.
  std::optional<double> growth_factor, backoff_factor, min_scale, max_scale;
  std::optional<std::int64_t> growth_interval;
  // BMTrain's.
  std::optional<double> loss_scale_factor, max_loss_scale;
  std::optional<std::int64_t> loss_scale_steps;

  void describe(config::Fields& fields);
  /// The same with every key that its scaler reads at this ZeRO stage: what a resolved
  /// configuration shows.
  [[nodiscard]] Fp16Options completed(int zero_stage) const;
};

/// Rules between the keys of the block that stands at `path`: keys of another scaler, two words for
/// one thing, a start outside its bounds, what is not built. Keys that are read but change nothing
/// go to `notes`. Pure; says nothing of a block that is switched off.
void check_fp16(const Fp16Options& options,
                int zero_stage,
                const std::string& path,
                config::Problems& problems,
                const config::Origins& origins,
                std::vector<std::string>& notes);

/// The scale as a state machine over the steps: each tells whether its gradients overflowed (on any
/// rank, so that all agree); such a step changes no weights. Sources: DeepSpeed 0.16
/// (DynamicLossScaler for ZeRO stages 1 to 3, FP16_Optimizer for stage 0), Megatron-LM and
/// Colossal-AI (DynamicGradScaler), BMTrain (OptimManager). Threads: one.
///
///   deepspeed, 1-3  overflow: once `hysteresis` of them used up their patience, halve. Clean:
///                   double every loss_scale_window steps after the last overflow, patience is
///                   whole again.
///   deepspeed, 0    overflow: halve at once. Clean: double one step later than above.
///   megatron        overflow: from the `hysteresis`-th on times backoff_factor. growth_interval
///                   clean steps in a row: times growth_factor, patience is whole again.
///   bmtrain         overflow: divide, if above the smallest. loss_scale_steps clean steps since
///                   the scale changed: multiply, if below the largest.
class LossScaler {
 public:
  LossScaler(const Fp16Options& options, int zero_stage);
  [[nodiscard]] double scale() const { return scale_; }
  [[nodiscard]] bool dynamic() const { return rule_ != Rule::Static; }
  /// No overflow will lower it any more.
  [[nodiscard]] bool at_smallest() const { return !dynamic() || scale_ <= smallest_; }
  /// After a step. Error{Numeric} where DeepSpeed ends the run: stages 1 to 3, an overflow that
  /// finds the scale at its smallest and no patience left. The state has moved on then, so that a
  /// caller may choose to go on.
  void update(bool overflow);
  /// For checkpoints: {"scaler", "scale", "iteration", "last_overflow", "hysteresis_left",
  /// "clean_steps"}; what a rule does not count stays as it began.
  [[nodiscard]] json::Value state() const;
  /// Goes on exactly where state() stood. Of another scaler's state only the scale is taken, of a
  /// static one by a static one nothing: the configuration has it. Error{Format} names what is
  /// missing.
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
  std::int64_t last_overflow_ = -1;   // DeepSpeed's both: the iteration
  std::int64_t hysteresis_left_ = 1;  // deepspeed: overflows to the first that halves; megatron: 0
  std::int64_t clean_steps_ = 0;      // Megatron's, BMTrain's
};

}  // namespace tessera::optim
