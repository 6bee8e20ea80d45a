// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/plan.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/open_model.h"
#include "tessera/engine/rl/critic.h"
#include "tessera/engine/rl/reference_model.h"
#include "tessera/nn/block.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/planner/memory.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::engine::rl {
namespace {

/// Ranks may share layers as in training; the other models and exactness need whole ones.
template <class Refuse>
void refuse_layouts(const planner::Plan& plan, const tasks::Rl& task, const Refuse& refuse) {
  if (plan.data_ranks == plan.ranks) return;
  const planner::ParallelOptions& layout = plan.config.parallel;
  const tasks::RlOptions& options = task.options();
  if (layout.pipeline.size > 1 || layout.context.size > 1 || layout.sequence)
    refuse("ranks that share stages or tokens",
           "set parallel.tensor alone, or remove the section parallel");
  if (layout.tensor.layout() != planner::TensorLayout::OneD)
    refuse("parallel.tensor.mode " + layout.tensor.name(), "set parallel.tensor.mode to 1d");
  const char* const whole = "remove parallel.tensor";
  if (task.has_critic()) refuse("a critic of ranks that share layers", whole);
  if (task.has_reference() && !is_base_of_policy(plan, options))
    refuse("a reference of ranks that share layers",
           "train an adapter, whose reference is its base, or remove parallel.tensor");
  for (const tasks::RlReward& reward : task.rewards()) {
    if (reward.model) refuse("a reward model of ranks that share layers", whole);
  }
  if (options.top_k > 0 || options.top_p < 1)
    refuse("rl.top_k and rl.top_p of ranks that share the vocabulary", whole);
  const data::DataOptions& data = plan.config.data;
  if ((!data.validation.empty() || data.validation_fraction > 0 || !data.test.empty()) &&
      options.validation.temperature == 0)
    refuse("greedy validation of ranks that share the vocabulary",
           "set rl.validation.temperature to 1");
  if (options.parity == tasks::Parity::Exact)
    refuse("rl.parity exact of ranks that share the vocabulary", "set rl.parity to measure");
}

void refuse_what_is_not_built(const planner::Plan& plan, const tasks::Rl& task) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw Error(Error::Kind::Unsupported, "not built yet: the task rl with " + what, fix);
  };
  const planner::TrainConfig& config = plan.config;
  refuse_layouts(plan, task, refuse);
  if (plan.batch_ramp) refuse("rampup_batch_size", "remove it");
  if (!config.data.drop_last) refuse("data.drop_last false", "remove it");
  if (plan.freezing.any()) {
    refuse("parameters that are frozen in a part of the training",
           "freeze for the whole training: optimizer.groups with \"frozen\": true");
  }
  if (!config.data.sources.is_null())
    refuse("data.sources", "give one list of files in data.train");
  const tasks::RlOptions& options = task.options();
  const bool same = options.cache == tasks::RlCache::Same ||
                    (options.cache == tasks::RlCache::BF16 && plan.working == DType::BF16);
  TESSERA_REQUIRE(same || options.parity != tasks::Parity::Exact,
                  Config,
                  std::string("rl.cache ") +
                      (options.cache == tasks::RlCache::Int8 ? "int8" : "bf16") +
                      " rounds keys and values, so that sampling cannot have the "
                      "log-probabilities of training, and rl.parity is exact",
                  "set rl.cache to same, or rl.parity to measure");
  const std::int64_t size = options.rollout_size(plan.global_batch);
  TESSERA_REQUIRE(size % options.samples == 0,
                  Config,
                  fmt::format("a rollout of {} completions is no whole number of groups of "
                              "rl.samples {}",
                              size,
                              options.samples),
                  fmt::format("set train_batch_size to a multiple of {}", options.samples));
}

std::int64_t width_of(const planner::Plan& plan) {
  return plan.working == DType::BF16 ? 2 : 4;
}

/// Returns the bytes of a model that is only read: its weights, sharded over the ranks.
std::int64_t bytes_of(const models::Resolved& model, const planner::Plan& plan) {
  std::int64_t elements = 0, largest = 0;
  for (const auto& param : nn::parameters_of(model.model)) {
    elements += param->numel();
    largest = std::max(largest, param->numel());
  }
  const std::int64_t ranks = plan.ranks;
  return (ranks == 1 ? elements : elements / ranks + 2 * largest) * width_of(plan);
}

/// Returns the bytes of an element of the cache of keys and values.
double cache_width(const planner::Plan& plan,
                   const tasks::RlOptions& options,
                   std::int64_t channels) {
  constexpr double kScale = 4.0;  // one fp32 for the channels of a token and head
  if (options.cache == tasks::RlCache::Int8) return 1.0 + kScale / static_cast<double>(channels);
  if (options.cache == tasks::RlCache::BF16) return 2.0;
  return static_cast<double>(width_of(plan));
}

/// Returns the bytes of the pages of keys and values: of the prompts, which completions share, and
/// of the completions that are continued at a time.
std::int64_t cache_bytes(const planner::Plan& plan, const tasks::RlOptions& options) {
  const models::Resolved& model = plan.model;
  const auto whole = [](std::int64_t tokens) {
    return (tokens + nn::kPageTokens - 1) / nn::kPageTokens * nn::kPageTokens;
  };
  const std::int64_t heads = std::max<std::int64_t>(1, model.num_heads),
                     kv_heads = model.num_kv_heads > 0 ? model.num_kv_heads : heads,
                     channels = model.hidden_size / heads;
  const std::int64_t together = std::min(options.prompts_at_once * options.samples,
                                         options.rollout_size(plan.global_batch)),
                     rows = std::min(together, options.completions_at_once),
                     prompts = std::min(together / options.samples, rows + 1);
  const std::int64_t tokens =
      prompts * whole(std::max<std::int64_t>(0, plan.sequence_length - options.max_new_tokens)) +
      rows * (whole(options.max_new_tokens) + nn::kPageTokens);
  return static_cast<std::int64_t>(
      static_cast<double>(2 * model.num_layers * kv_heads * channels * tokens) *
      cache_width(plan, options, channels));
}

}  // namespace

void settle_plan(planner::Plan& plan) {
  const tasks::Rl* const task = tasks::as_rl(plan.task.get());
  if (task == nullptr) return;
  refuse_what_is_not_built(plan, *task);
  const tasks::RlOptions& options = task->options();
  std::string told;
  plan.beside = 0;
  const auto count = [&](const std::string& what, std::int64_t bytes) {
    plan.beside += bytes;
    told += fmt::format(
        "{}{} {}", told.empty() ? "" : ", ", what, text::bytes(static_cast<std::uint64_t>(bytes)));
  };
  // Rows of completions with some numbers for each token, on every rank.
  constexpr std::int64_t kNumbers = 8;
  count("rollout",
        options.rollout_size(plan.global_batch) * plan.sequence_length * kNumbers *
            static_cast<std::int64_t>(sizeof(double)));
  count("cache of keys and values", cache_bytes(plan, options));
  if (task->has_reference() && !is_base_of_policy(plan, options)) {
    count("reference",
          bytes_of(options.reference ? find_model(*options.reference)->shape
                                     : (plan.base ? *plan.base : plan.model),
                   plan));
  }
  for (const tasks::RlReward& reward : task->rewards()) {
    if (reward.model)
      count("reward model " + reward.name, bytes_of(find_model(reward.model->from)->shape, plan));
  }
  if (task->has_critic()) {
    const planner::MemoryEstimate need = planner::estimate_memory(critic_plan(plan, options));
    count("critic", need.parameters + need.gradients + need.optimizer);
  }
  plan.notes.push_back("beside the policy a rank has: " + told);
}

}  // namespace tessera::engine::rl
