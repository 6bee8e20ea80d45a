// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/validation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/engine.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/report.h"
#include "tessera/rlhf/rollout_writer.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/task.h"

namespace tessera::rlhf {
namespace {

/// Returns the options of sampling for held-out prompts.
tasks::RlOptions for_validation(const tasks::RlOptions& trained) {
  tasks::RlOptions out = trained;
  out.samples = trained.validation.samples;
  out.dynamic_rounds = 0;
  if (trained.validation.temperature > 0) {
    out.temperature = trained.validation.temperature;
  } else {
    // The most likely token is the only one that can be drawn.
    out.temperature = 1.0;
    out.top_k = 1;
    out.top_p = 1.0;
  }
  return out;
}

/// Writes completions that no ledger keeps.
class Answers final : private RolloutWriter {
 public:
  Answers(const planner::Plan& plan,
          const tasks::Rl& task,
          comm::World& world,
          engine::TrainState& policy,
          const tasks::Prompts& held_out,
          std::int64_t count)
      : RolloutWriter(plan, task, world, policy.executor(), held_out) {
    policy.wait();
    constexpr std::int64_t kNoVersion = -2;  // its random numbers differ from those of training
    version_ = kNoVersion;
    size_ = count * options_.samples;
  }

  engine::EvalReport report(RewardValues& rewards) {
    completions_.assign(static_cast<std::size_t>(size_), {});
    generate({.version = version_}, all_groups(), 0);
    const std::vector<std::int64_t> all = all_numbers();
    const std::vector<std::string> texts = texts_of(all);
    rows_ = rows_for(all);
    Scored scored;
    scored.mask_BT = rows_.labels_BT.ge(0);
    scored.weights_F = weights_of(task_.rewards());
    scored.rewards_BF = rewards.of(answers(all, texts), rows_);
    engine::EvalReport out;
    out.metrics = report_of({.completions = completions_,
                             .scored = scored,
                             .generated_BT = {},
                             .returns_BT = {},
                             .reward_names = names()},
                            options_);
    out.loss = -engine::find_metric(out.metrics, "reward")->mean;
    for (const Completion& one : completions_)
      out.tokens += std::ssize(one.ids);
    return out;
  }
};

}  // namespace

engine::EvalReport validate(const planner::Plan& plan,
                            const tasks::Rl& task,
                            comm::World& world,
                            engine::TrainState& policy,
                            const tasks::Prompts& held_out,
                            std::int64_t count,
                            RewardValues& rewards) {
  const tasks::Rl with_other_options(for_validation(task.options()), task.rewards());
  return Answers(plan, with_other_options, world, policy, held_out, count).report(rewards);
}

engine::EvalReport validate_checkpoint(const planner::PlanWithData& plan,
                                       comm::World& world,
                                       const std::filesystem::path& checkpoint,
                                       const tasks::Prompts& held_out,
                                       std::int64_t count) {
  const tasks::Rl* const task = tasks::as_rl(planner::task_of(plan).get());
  TESSERA_ASSERT(task != nullptr);
  std::optional<ops::BatchInvariance> alone;
  if (task->options().parity == tasks::Parity::Exact) alone.emplace();
  engine::TrainState policy(engine::train_state_options(plan), world);
  policy.load(checkpoint::Checkpoint(checkpoint));
  if (planner::eval_options_of(plan).weights != tasks::EvalWeights::Trained)
    policy.exchange_average();
  tasks::RlModel layout = task->options().models.reward;
  // A command may have other ranks than the training, which can lack those of reward models.
  if (layout.has_own_groups() && !has_ranks(layout, plan)) {
    layout.tensor.reset();
    layout.ranks = {};
  }
  RewardValues rewards(task->rewards(), plan, world, layout);
  const engine::EvalReport out = validate(plan, *task, world, policy, held_out, count, rewards);
  policy.wait();
  return out;
}

}  // namespace tessera::rlhf
