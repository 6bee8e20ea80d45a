// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/reward_values.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/shared_values.h"
#include "tessera/models/objective.h"
#include "tessera/nn/step_context.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/text/tokenizer.h"

namespace tessera::rlhf {

std::unique_ptr<engine::OpenModel> find_scorer(const std::string& from,
                                               const text::Tokenizer& tokenizer,
                                               std::int64_t length) {
  std::unique_ptr<engine::OpenModel> out = engine::find_model(from);
  TESSERA_REQUIRE(
      models::traits_of(out->shape.objective.name).predicts == models::Predicts::TextClass,
      Config,
      fmt::format("{} gives texts no score: its objective is {}",
                  from,
                  out->shape.objective.name.empty() ? std::string(models::kDefaultObjective)
                                                    : out->shape.objective.name),
      "name a run of the task reward, or the folder of a classifier with one label");
  TESSERA_REQUIRE(
      out->tokenizer->fingerprint() == tokenizer.fingerprint(),
      Config,
      fmt::format("the reward model {} reads other tokens than the policy writes", from),
      "train a reward model with the policy's tokenizer");
  TESSERA_REQUIRE(out->shape.max_positions >= length,
                  Config,
                  fmt::format("the reward model {} reads at most {} tokens, and completions with "
                              "their prompts have up to {}",
                              from,
                              out->shape.max_positions,
                              length),
                  "lower data.sequence_length");
  // A head that gives one number per text, whatever objective trained it.
  engine::set_objective(
      *out,
      {.name = "sequence_classification",
       .options = json::Value::object({{"num_labels", json::Value::integer(1)},
                                       {"problem_type", json::Value::string("regression")}})});
  return out;
}

RewardValues::RewardValues(const std::vector<tasks::RlReward>& rewards,
                           const planner::Plan& plan,
                           comm::World& world,
                           const tasks::RlModel& layout,
                           const Lender& lender)
    : rewards_(rewards), world_(world), micro_batch_(planner::micro_batch_of(plan)) {
  for (const tasks::RlReward& reward : rewards_) {
    commands_.push_back(reward.command && world.is_leader()
                            ? std::make_unique<tasks::RewardCommand>(*reward.command)
                            : nullptr);
    const int number = kFirstRewardWorld + static_cast<int>(models_.size());
    std::unique_ptr<ReadModel>& model = models_.emplace_back();
    if (!reward.model) continue;
    auto found = find_scorer(
        reward.model->from, *planner::tokenizer_of(plan), planner::sequence_length_of(plan));
    if (lender.ranks != nullptr && reward.model->from == lender.from) {
      model = std::make_unique<ReadModel>(std::move(found), lender.ranks, lender.model);
    } else {
      model = std::make_unique<ReadModel>(
          std::move(found), world, layout_of(layout, "reward", plan), number);
    }
  }
}

at::Tensor weights_of(const std::vector<tasks::RlReward>& rewards) {
  std::vector<double> out;
  for (const tasks::RlReward& reward : rewards)
    out.push_back(reward.weight);
  return at::tensor(out, at::kDouble);
}

namespace {

std::vector<double> by_rule(const tasks::RuleReward& rule, std::span<const tasks::Answer> answers) {
  std::vector<double> out;
  for (const tasks::Answer& answer : answers)
    out.push_back(rule.of(answer));
  return out;
}

}  // namespace

std::optional<double> mean_of_rules(const std::vector<tasks::RlReward>& rewards,
                                    std::span<const tasks::Answer> answers) {
  double sum = 0.0;
  bool any = false;
  for (const tasks::RlReward& reward : rewards) {
    if (reward.rule == nullptr) continue;
    any = true;
    for (const double value : by_rule(*reward.rule, answers))
      sum += reward.weight * value;
  }
  if (!any || answers.empty()) return std::nullopt;
  return sum / static_cast<double>(answers.size());
}

std::vector<double> scores_of(engine::OpenModel& scorer,
                              comm::World& world,
                              const Rows& rows,
                              std::int64_t micro_batch) {
  const std::int64_t size = rows.size();
  const at::Tensor lengths_B = at::tensor(rows.lengths, at::kLong);
  std::vector<double> out(static_cast<std::size_t>(size), 0.0);
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  for (std::int64_t at = 0; at < size; at += micro_batch * group.size()) {
    const std::int64_t first = at + micro_batch * group.index;
    if (first >= size) {
      scorer.executor->infer_nothing();
      continue;
    }
    const std::int64_t count = std::min(micro_batch, size - first),
                       columns = rows.columns(first, count);
    nn::Batch batch;
    batch.set("input_ids",
              rows.input_ids_BT.narrow(0, first, count).narrow(1, 0, columns).contiguous());
    batch.set("attention_mask",
              at::arange(columns)
                  .unsqueeze(0)
                  .lt(lengths_B.narrow(0, first, count).unsqueeze(1))
                  .to(at::kLong));
    for (std::int64_t b = first; b < first + count; ++b)
      batch.sample_ids.push_back(b);
    nn::StepContext context(nn::Mode::Eval, 0);
    const nn::Outcome made = scorer.executor->infer(batch, context);
    world.show_life();
    const at::Tensor own =
        made.outputs.at("logits").flatten().to(at::kCPU, at::kDouble).contiguous();
    TESSERA_ASSERT(own.numel() == count);
    std::copy_n(own.const_data_ptr<double>(), count, out.begin() + first);
  }
  engine::share_values(world, out, "scores of completions");
  return out;
}

std::vector<double> RewardValues::own_scores(std::size_t index, const Rows& rows) {
  return models_.at(index)->compute(rows.size(), [&](engine::OpenModel& model, comm::World& world) {
    return scores_of(model, world, rows, micro_batch_);
  });
}

std::vector<double> RewardValues::scores(std::size_t index, const Rows& rows) {
  std::vector<double> out = own_scores(index, rows);
  models_[index]->share(out, "scores of completions");
  return out;
}

std::vector<double> RewardValues::one(std::size_t index, std::span<const tasks::Answer> answers) {
  const tasks::RlReward& reward = rewards_[index];
  if (reward.rule != nullptr) return by_rule(*reward.rule, answers);
  std::vector<double> out(answers.size(), 0.0);
  const auto poll = [this] { world_.show_life(); };
  if (commands_[index] != nullptr) out = commands_[index]->of(answers, poll);
  if (reward.http && world_.is_leader()) out = tasks::RewardHttp(*reward.http).of(answers, poll);
  engine::share_with_all(world_, out, "rewards of a program");
  return out;
}

at::Tensor RewardValues::of(std::span<const tasks::Answer> answers, const Rows& rows) {
  // Ranks without a model wait for its scores when their own models have given theirs.
  std::vector<std::vector<double>> scores(rewards_.size());
  for (std::size_t f = 0; f < rewards_.size(); ++f) {
    if (models_[f] != nullptr) scores[f] = own_scores(f, rows);
  }
  std::vector<at::Tensor> columns;
  for (std::size_t f = 0; f < rewards_.size(); ++f) {
    std::vector<double>& values = scores[f];
    if (models_[f] != nullptr) {
      models_[f]->share(values, "scores of completions");
    } else {
      values = one(f, answers);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      TESSERA_REQUIRE(!std::isinf(values[i]),
                      Data,
                      fmt::format("the reward {} of the completion of {} is infinite",
                                  rewards_[f].name,
                                  answers[i].place),
                      "let it be a number, or null where there is none");
    }
    columns.push_back(at::tensor(values, at::kDouble));
  }
  return at::stack(columns, 1);
}

}  // namespace tessera::rlhf
