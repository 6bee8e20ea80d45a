// SPDX-License-Identifier: Apache-2.0
// The computation of a training, whatever the layout: optimizer, schedule, batch and seed; the
// checks of these before the plan, and the objects made from them after it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/optim/average.h"
#include "tessera/optim/batch_ramp.h"
#include "tessera/optim/decay_ramp.h"
#include "tessera/optim/loss_scale.h"
#include "tessera/optim/options.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"
#include "tessera/parallel/param_groups.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/planner/course.h"

namespace tessera::planner {

struct ModelPlan;
struct TrainConfig;

struct Recipe {
  optim::OptimizerOptions optimizer;
  optim::SchedulerOptions scheduler;
  std::int64_t global_batch = 0;
  std::optional<optim::BatchRamp> ramp;  ///< how the global batch grows to global_batch
  json::Value written_ramp;              ///< rampup_batch_size
  double clip_norm = 0, clip_value = 0;
  bool clip_after_warmup = false;
  optim::OnNonfinite on_nonfinite = optim::OnNonfinite::Stop;
  optim::AverageOptions ema;
  optim::Fp16Options scaling;  ///< loss scaling, if the weights are fp16
  int scaling_stage = 1;       ///< ZeRO stage for DeepSpeed's loss scaler rule
  std::int64_t seed = 1234;
  std::optional<std::int64_t> max_steps;
  std::optional<double> epochs;
};

/// Unknown or unimplemented types, wrong parameters, and group rates and a weight_decay_schedule
/// that the rule cannot apply are added to `problems` or thrown as Error{Config}. `kept`: dtypes of
/// masters and moments.
void check_rule(const TrainConfig& config,
                const ModelPlan& model,
                const parallel::KeptTypes& kept,
                config::Problems& problems,
                const config::Origins& origins);
/// Checks the schedule of a configuration whose batch, of `recipe`, may be unknown (0).
void check_schedule(const TrainConfig& config,
                    const Recipe& recipe,
                    config::Problems& problems,
                    const config::Origins& origins);

/// optimizer.type/params, with the average of trainer.ema.
std::unique_ptr<optim::Rule> make_rule(const Recipe& recipe);
/// scheduler.type/params, or the curve of the course. `rule`: the result of make_rule().
std::unique_ptr<optim::Schedule> make_schedule(const Recipe& recipe,
                                               const Course& course,
                                               const optim::Rule& rule);
/// The global batch of the update that begins after `consumed` samples; empty if it never changes.
std::function<std::int64_t(std::int64_t consumed)> batch_sizes(const Recipe& recipe);
/// optimizer.weight_decay_schedule. `groups`: optimizer.groups.
optim::DecayRamp make_decay_ramp(const Recipe& recipe,
                                 const Course& course,
                                 const std::vector<parallel::ParamGroup>& groups);

/// Weight decay and learning rate of each parameter, as a function that outlives the plan. Decay
/// applies by the rule "two or more dimensions", unless optimizer.decay_all or a group of
/// optimizer.groups overrides it. `base_lr`: the rule's rate, of which a group's lr is a multiple
/// (check_rule() has ensured this).
parallel::ParamSettings settings_of(const Recipe& recipe, const ModelPlan& model, double base_lr);

/// Returns warnings about the learning rates of a run: a warm-up that the run or the schedule's
/// total does not outlast, and lowest rates above the optimizer's.
std::vector<std::string> schedule_warnings(const Recipe& recipe, const Course& course);
/// Returns warnings before a run begins: ranks of a host that share cores, and those of
/// schedule_warnings().
std::vector<std::string> warnings_of(const Recipe& recipe, const Course& course, int local_ranks);

}  // namespace tessera::planner
