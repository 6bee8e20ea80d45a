// SPDX-License-Identifier: Apache-2.0
// Rewards of completions by rules, programs and models, on every rank.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/engine/open_model.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/rlhf/read_model.h"
#include "tessera/tasks/rl/reward.h"
#include "tessera/tasks/rl/reward_command.h"
#include "tessera/tasks/rl/reward_http.h"

// Legend: B completions, F rewards.
namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// A model in training that began as the one at `from` and holds its frozen weights.
struct Lender {
  std::string from;                                ///< empty: there is none
  std::shared_ptr<const ModelWorld> ranks = {};    ///< those that have it
  const parallel::ModelInstance* model = nullptr;  ///< nullptr on other ranks
};

/// Finds a model that gives texts one score, at their last token; its weights are not loaded yet.
/// Throws as find_model(), and Error{Config} for a model that gives none, has other tokens than
/// `tokenizer`, or fewer positions than `length`.
std::unique_ptr<engine::OpenModel> find_scorer(const std::string& from,
                                               const text::Tokenizer& tokenizer,
                                               std::int64_t length);
/// Returns its scores of all rows, [B] on every rank; micro-batch number i of `micro_batch` rows is
/// computed by data-parallel rank i mod n. Collective.
std::vector<double> scores_of(engine::OpenModel& scorer,
                              comm::World& world,
                              const Rows& rows,
                              std::int64_t micro_batch);

/// The weights of rewards, fp64 [F].
at::Tensor weights_of(const std::vector<tasks::RlReward>& rewards);

/// Returns the mean over the answers of the weighted sum of the rewards that are rules; nothing if
/// there are no answers or none of the rewards is a rule. Throws as tasks::RuleReward::of(). Not
/// collective.
std::optional<double> mean_of_rules(const std::vector<tasks::RlReward>& rewards,
                                    std::span<const tasks::Answer> answers);

class RewardValues {
 public:
  /// Opens the models that score, in the layout of rl.models.reward; those at lender.from read the
  /// lender's weights, on its ranks. `rewards` must outlive this object. Throws as find_scorer().
  /// Collective.
  RewardValues(const std::vector<tasks::RlReward>& rewards,
               const planner::Plan& plan,
               comm::World& world,
               const tasks::RlModel& layout = {},
               const Lender& lender = {});
  /// Returns fp64 [B, F], NaN if a function gives no reward. `rows`: the same completions as
  /// tokens. Rules are computed on every rank, programs and endpoints are asked
  /// by the leader, models run on all ranks.
  /// Throws Error{Data} for an infinite number. Collective.
  [[nodiscard]] at::Tensor of(std::span<const tasks::Answer> answers, const Rows& rows);
  /// Returns the scores of rows by the model of reward number `index`, which must be of the type
  /// model. Collective.
  [[nodiscard]] std::vector<double> scores(std::size_t index, const Rows& rows);

 private:
  /// Returns the scores of rows on the ranks of a model, and zeros on the others. Collective over
  /// the ranks of the model.
  [[nodiscard]] std::vector<double> own_scores(std::size_t index, const Rows& rows);
  /// Returns those of a function that is not a model, [B].
  [[nodiscard]] std::vector<double> one(std::size_t index, std::span<const tasks::Answer> answers);

  const std::vector<tasks::RlReward>& rewards_;
  comm::World& world_;
  std::int64_t micro_batch_;
  /// One per reward; nullptr if it is not a command.
  std::vector<std::unique_ptr<tasks::RewardCommand>> commands_;
  std::vector<std::unique_ptr<ReadModel>> models_;  ///< nullptr if it is not a model
};

}  // namespace tessera::rlhf
