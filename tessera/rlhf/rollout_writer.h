// SPDX-License-Identifier: Apache-2.0
// Writes the completions of a rollout: which prompts, drawn by which ranks, kept in the ledger.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/experience.h"
#include "tessera/parallel/executor.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/ledger.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"

// Legend: B completions of a rollout, F rewards.
namespace tessera::planner {
class Plan;
}

namespace tessera::rlhf {

/// The position of a step: the policy with `version` updates wrote the rollout, of which this is
/// update number `update` of tasks::RlOptions::updates().
struct Place {
  std::int64_t version = 0, update = 0;
  std::int64_t epoch = 0, rollout = 0;  ///< number of the rollout in its epoch
};

/// The part of an Experience that writes. Its references must outlive it. Unless stated otherwise,
/// methods that are not const are collective.
class RolloutWriter {
 protected:
  RolloutWriter(const planner::Plan& plan,
                const tasks::Rl& task,
                comm::World& world,
                parallel::Executor& policy,
                const tasks::Prompts& prompts);

  /// Lets completions be drawn by another copy of the policy on the same ranks, in groups of their
  /// own: `world` and `drawing`, which must outlive this. `prepare`: called before they are drawn;
  /// gives the copy the policy's weights.
  void draw_with(comm::World& world, parallel::Executor& drawing, std::function<void()> prepare);

  [[nodiscard]] std::uint64_t seed() const;
  /// Returns the seed of sampling, another one after each time that the run went back.
  [[nodiscard]] std::uint64_t sampling_seed() const;
  [[nodiscard]] std::int64_t updates() const { return options_.updates(); }
  /// Returns the place of the update that a policy of `steps` updates makes on `batch`.
  [[nodiscard]] Place place_of(const data::GlobalBatch& batch, std::int64_t steps) const;
  /// Returns the prompt of completion number `number` of a rollout. Rollouts at the end of the data
  /// continue with its beginning.
  [[nodiscard]] std::int64_t prompt_of(const Place& place, std::int64_t number) const;
  /// Returns the prompt of a group that replaces another for the `round`th time.
  [[nodiscard]] std::int64_t other_prompt(std::int64_t group, std::int64_t round) const;
  /// Returns the first row of the completions that the update learns, a global batch of them.
  [[nodiscard]] std::int64_t first_row(std::int64_t update) const;
  /// Returns the number of tokens of the completions of an update with their prompts.
  [[nodiscard]] std::int64_t tokens_of(std::int64_t update) const;
  [[nodiscard]] std::uint64_t seed_of(std::int64_t number, std::int64_t round) const;
  [[nodiscard]] const std::vector<std::int32_t>& prompt_ids(const Completion& of) const;
  /// True on the ranks that read the ledger: of the data-parallel ranks that hold the same part of
  /// the model, the first.
  [[nodiscard]] bool reads_ledger() const { return world_.group(mesh::AxisSet::dp()).index == 0; }
  /// Returns the numbers of completions of these groups that are generated together. They are the
  /// same on any number of ranks.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> units(
      const std::vector<std::int64_t>& groups) const;
  /// Returns the numbers of all groups of a rollout.
  [[nodiscard]] std::vector<std::int64_t> all_groups() const;
  /// Writes the completions of a rollout, or takes those of a rollout that was judged before from
  /// the ledger. The policy's weights must be complete.
  void write(const Place& place);
  /// Returns the progress of a rollout as the log shows it: how many of `all` completions are
  /// written, and on the leader the mean reward of these by rules.
  [[nodiscard]] std::string progress(const std::vector<std::int64_t>& written,
                                     std::size_t all,
                                     double tokens_per_s) const;
  /// Logs how fast the rollout was written.
  void tell_speed() const;
  [[nodiscard]] Rows rows_for(const std::vector<std::int64_t>& numbers);
  /// True if the ledger has every completion of the rollout with its rewards and advantages. The
  /// result is the same on every rank.
  [[nodiscard]] bool was_judged();
  /// Returns whether `kept` has every valid completion of rollout `version`, if `judged` with its
  /// worth; the same on every rank.
  [[nodiscard]] bool has_all(const std::optional<KeptRollout>& kept,
                             std::int64_t version,
                             bool judged);
  /// Gives every rank the completions of `kept`, which has all of them.
  void take_completions(const std::optional<KeptRollout>& kept);
  /// Computes the rewards of the completions of these groups, which need them before the others.
  void reward(const std::vector<std::int64_t>& groups);
  /// Returns the groups whose completions all have the same reward.
  [[nodiscard]] std::vector<std::int64_t> equal_groups() const;
  /// Generates the completions of these groups, except those that are in the ledger.
  void generate(const Place& place, const std::vector<std::int64_t>& groups, std::int64_t round);
  static constexpr const char* kStartOver =
      "start over with --resume never, or from a checkpoint of a step that is a multiple of "
      "rl.iterations * rl.mini_batches";
  [[nodiscard]] std::string lacking(const char* what) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] Completion& at(std::int64_t number);
  [[nodiscard]] std::int64_t vocabulary() const;
  /// Returns whether the ledger's completion is that one.
  [[nodiscard]] bool fits(const Completion& kept, const Completion& wanted) const;
  [[nodiscard]] bool is_valid(const Completion& kept) const;
  /// Returns the units whose completions are not all in the ledger; takes over those of the others.
  std::vector<std::vector<std::int64_t>> missing(std::vector<std::vector<std::int64_t>> all);
  /// The groups of ranks that have different completions to exchange.
  enum class Among : std::uint8_t {
    DataRanks,  ///< ranks that share layers have the same ones
    Drawers,    ///< likewise, in the groups of ranks by which they are drawn
    All         ///< one rank of the job has a completion
  };
  /// Gives every rank the completions `numbers`; this rank has those in `mine`.
  void exchange(const std::vector<std::int64_t>& numbers,
                const std::vector<std::int64_t>& mine,
                const std::vector<Completion>& made,
                Among among = Among::DataRanks);
  /// Returns whether the ledger had the completion as it is when the run began. Completions that
  /// were made together are made together again if it lacks one of them.
  [[nodiscard]] bool is_kept(std::int64_t number) const;
  /// Appends the completions to the ledger, except those that it had.
  void keep(const std::vector<std::int64_t>& numbers);
  [[nodiscard]] std::string text_of(const Completion& one) const;
  [[nodiscard]] std::vector<std::int64_t> all_numbers() const;
  [[nodiscard]] std::vector<std::string> texts_of(const std::vector<std::int64_t>& numbers) const;
  [[nodiscard]] std::vector<tasks::Answer> answers(const std::vector<std::int64_t>& numbers,
                                                   const std::vector<std::string>& texts) const;

  const planner::Plan& plan_;
  const tasks::Rl& task_;
  const tasks::RlOptions& options_;
  comm::World& world_;
  parallel::Executor& executor_;  ///< of the policy
  comm::World* drawers_;          ///< the ranks in the groups that draw completions
  parallel::Executor* drawing_;   ///< of the policy, or of its copy
  std::function<void()> prepare_drawing_;
  const tasks::Prompts& prompts_;
  data::SampleOrder order_;
  std::int64_t size_;            ///< B
  std::int64_t roll_backs_ = 0;  ///< how often the run went back to an earlier checkpoint
  std::optional<RewardValues> rewards_;
  std::filesystem::path replayed_;   ///< the ledger to learn from again; empty: none
  std::optional<Ledger> ledger_;     ///< on the leader
  std::optional<KeptRollout> kept_;  ///< its contents when the run began
  // The current rollout.
  std::int64_t version_ = -1;
  std::vector<Completion> completions_;
  Rows rows_;
  at::Tensor rewards_BF_;     ///< if they were needed to choose groups
  engine::StepTokens drawn_;  ///< what was generated since make() began
};

}  // namespace tessera::rlhf
