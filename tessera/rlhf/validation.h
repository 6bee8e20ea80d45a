// SPDX-License-Identifier: Apache-2.0
// Evaluates a policy on held-out prompts: it answers them, and the answers are rewarded.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/comm/world.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/train_state.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::planner {
class Plan;
class PlanWithData;
}  // namespace tessera::planner

namespace tessera::rlhf {

/// Generates completions of `count` prompts of `held_out` as `rl.validation` says and rewards them.
/// The random numbers depend on the seed, the prompt and the sample, and not on the number of
/// updates, so that evaluations of one training differ by its weights alone. The report's loss is
/// the negative mean reward, and its metrics are those of report_of(); it has the same bits in
/// every layout. Changes neither the policy nor the training's own random numbers. Collective.
engine::EvalReport validate(const planner::Plan& plan,
                            const tasks::Rl& task,
                            comm::World& world,
                            engine::TrainState& policy,
                            const tasks::Prompts& held_out,
                            std::int64_t count,
                            RewardValues& rewards);

/// Does the same with the policy of a checkpoint of a run of the task rl, on the ranks of `world`.
/// `plan`: the run's, with max_steps set. With eval.weights "ema" the moving average answers.
/// Throws the errors of TrainState::load() and RewardValues. Memory: that of the policy's training,
/// without gradients. Collective.
engine::EvalReport validate_checkpoint(const planner::PlanWithData& plan,
                                       comm::World& world,
                                       const std::filesystem::path& checkpoint,
                                       const tasks::Prompts& held_out,
                                       std::int64_t count);

}  // namespace tessera::rlhf
