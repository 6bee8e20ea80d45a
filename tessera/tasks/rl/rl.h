// SPDX-License-Identifier: Apache-2.0
// The task rl: a policy answers prompts and learns from the rewards of its answers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/record_task.h"
#include "tessera/tasks/rl/options.h"
#include "tessera/tasks/rl/reward.h"

namespace tessera::tasks {

class Rl final : public RecordTask {
 public:
  Rl(RlOptions options, std::vector<RlReward> rewards)
      : options_(std::move(options)), rewards_(std::move(rewards)) {}
  [[nodiscard]] std::string objective() const override { return "policy"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override;
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override;

  [[nodiscard]] bool writes_answers() const override { return true; }
  [[nodiscard]] std::string experience() const override { return "rollouts"; }
  [[nodiscard]] int extra_ranks() const override { return options_.generators(); }

  [[nodiscard]] const RlOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<RlReward>& rewards() const { return rewards_; }
  /// Returns whether a reference model computes log-probabilities of the completions.
  [[nodiscard]] bool has_reference() const { return options_.kl.coefficient > 0; }
  /// Returns whether there is a critic, which predicts expected rewards.
  [[nodiscard]] bool has_critic() const;

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override;
  [[nodiscard]] const char* noun() const override { return "completions"; }
  RlOptions options_;
  std::vector<RlReward> rewards_;
};

/// Returns the task as Rl; nullptr if it is another one.
const Rl* as_rl(const Task* task);
/// Returns how many of the ranks of a job only write rollouts (rl.overlap), by a configuration as
/// it is written; 0 if it is not of the task rl, or its values are not valid.
std::int64_t rollout_ranks_of(const json::Value& source);

}  // namespace tessera::tasks
