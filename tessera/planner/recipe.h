// SPDX-License-Identifier: Apache-2.0
// The optimizer and the schedule of a configuration: checks before the plan, objects after it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Unknown or unimplemented types, wrong parameters, and group rates and a weight_decay_schedule
/// that the rule cannot apply are added to `problems` or thrown as Error{Config}.
void check_rule(const Plan& plan, config::Problems& problems, const config::Origins& origins);
/// Notes for the user about parameters that have no effect.
std::vector<std::string> optimizer_notes(const optim::OptimizerOptions& options);
std::vector<std::string> schedule_notes(const TrainConfig& config);
/// Sets hidden_size of a mu-P rule if the configuration leaves it to the model.
void fill_width(optim::OptimizerOptions& options, const models::Resolved& model);
/// Checks the schedule of a plan whose batch may be unknown (0).
void check_schedule(const Plan& plan, config::Problems& problems, const config::Origins& origins);

/// The requirements that the configured optimizer has of the communication between ranks; AdamW's
/// needs if none is configured. Nothing is checked.
struct ExchangeNeeds {
  bool compressed = false;     ///< an optim::CompressedRule
  bool local_weights = false;  ///< it is also one of local weights
  bool fused = false;          ///< it also sends all parameters as one vector
};
ExchangeNeeds exchange_needs(const optim::OptimizerOptions& options);

/// Weight decay and learning rate of each parameter, as a function that outlives the plan. Decay
/// applies by the rule "two or more dimensions", unless optimizer.decay_all or a group of
/// optimizer.groups overrides it. `base_lr`: the rule's rate, of which a group's lr is a multiple
/// (check_rule() has ensured this).
parallel::ParamSettings settings_of(const Plan& plan, double base_lr);

/// A sentence for the user if a run of `steps` is shorter than its warm-up; this is allowed for
/// quick tries.
std::optional<std::string> warmup_note(const TrainConfig& config, std::int64_t steps);
/// Returns warnings about the learning rates of a run with known steps: a warm-up that the run or
/// the schedule's total does not outlast, and lowest rates above the optimizer's.
std::vector<std::string> schedule_warnings(const Plan& plan);
/// Returns warnings before a run with known steps begins: ranks of a host that share cores, and
/// those of schedule_warnings().
std::vector<std::string> warnings_of(const Plan& plan, int local_ranks);

/// optimizer.params completed with the defaults.
json::Value complete_optimizer_params(const optim::OptimizerOptions& options);

}  // namespace tessera::planner
