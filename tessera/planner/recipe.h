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

/// Unknown or not built types, wrong parameters, and rates of groups and a
/// weight_decay_schedule that the rule cannot follow, go to `problems` or are thrown as
/// Error{Config}.
void check_rule(const Plan& plan, config::Problems& problems, const config::Origins& origins);
/// What the user should be told of parameters that choose nothing.
std::vector<std::string> optimizer_notes(const OptimizerOptions& options);
std::vector<std::string> schedule_notes(const TrainConfig& config);
/// hidden_size of a mu-P rule, where the configuration leaves it to the model.
void fill_width(OptimizerOptions& options, const models::Resolved& model);
/// Of a plan whose batch may be unknown (0).
void check_schedule(const Plan& plan, config::Problems& problems, const config::Origins& origins);

/// How the optimizer that the configuration names wants its ranks to meet; as of AdamW where it
/// names none. Nothing is checked.
struct ExchangeNeeds {
  bool compressed = false;     ///< an optim::CompressedRule
  bool local_weights = false;  ///< and one of local weights
  bool fused = false;          ///< and one that sends all parameters as one vector
};
ExchangeNeeds exchange_needs(const OptimizerOptions& options);

/// Decay and rates of each parameter, as a function that outlives the plan: by the rule "two or
/// more dimensions", unless optimizer.decay_all or a group of optimizer.groups says otherwise.
/// `base_lr`: the rule's, which a group's lr is a multiple of (check_rule() has seen to that).
parallel::ParamSettings settings_of(const Plan& plan, double base_lr);

/// A sentence for the user when a run of `steps` is shorter than its warm-up; that is allowed, for
/// a quick try.
std::optional<std::string> warmup_note(const TrainConfig& config, std::int64_t steps);
/// What a user is warned of before a run with known steps begins: ranks of a host that share cores,
/// and that note.
std::vector<std::string> warnings_of(const Plan& plan, int local_ranks);

/// optimizer.params with the defaults in place of what is not given.
json::Value complete_optimizer_params(const OptimizerOptions& options);

}  // namespace tessera::planner
