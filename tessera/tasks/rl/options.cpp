// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/options.h"

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::tasks {

void RlAdvantage::describe(config::Fields& fields) {
  fields.field("estimator",
               estimator,
               {.text = "How rewards become advantages: group (less the mean of the completions of "
                        "one prompt), leave_one_out (less the mean of the others), to_go (each "
                        "token gets the rewards behind it), gae (by a critic), or dschat_gae (by "
                        "a critic, as DeepSpeed-Chat has it).",
                .choices = {"group", "leave_one_out", "to_go", "gae", "dschat_gae"}});
  fields.field("scale",
               scale,
               {.text = "Of group: what standard deviation the advantages are divided by.",
                .choices = {"none", "group", "batch"}});
  fields.field("sum",
               sum,
               {.text = "Of group: whether several rewards are added before or after each of them "
                        "is normalized.",
                .choices = {"sum_then_normalize", "normalize_then_sum"}});
  fields.field(
      "epsilon", epsilon, {.text = "Added to standard deviations that are divided by.", .min = 0});
  fields.field(
      "gamma",
      gamma,
      {.text = "Of to_go and gae: what a reward one token later is worth.", .min = 0, .max = 1});
  fields.field(
      "lambda",
      lambda,
      {.text = "Of gae: how far the critic's errors are carried back.", .min = 0, .max = 1});
  fields.field(
      "whiten",
      whiten,
      {.text = "Give the advantages of a rollout's tokens the mean 0 and the variance 1."});
  fields.field("clip_reward",
               clip_reward,
               {.text = "The largest absolute value of a completion's reward.",
                .min = 0,
                .above_min = true,
                .default_text = "none"});
}

void RlLoss::describe(config::Fields& fields) {
  fields.field("type",
               type,
               {.text = "Loss of the policy; docs/preferences.md has the formulas.",
                .choices = {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"}});
  fields.field("ratio",
               ratio,
               {.text = "What is compared with the policy that wrote a completion: each token, the "
                        "mean of its tokens (GSPO), or their sum, which is the whole completion.",
                .choices = {"token", "mean", "sum"}});
  fields.field(
      "epsilon_low", epsilon_low, {.text = "Ratios are clipped at 1 less this.", .min = 0});
  fields.field(
      "epsilon_high", epsilon_high, {.text = "Ratios are clipped at 1 and this.", .min = 0});
  fields.field("delta",
               delta,
               {.text = "The largest ratio, also where the advantage is negative.",
                .min = 0,
                .above_min = true,
                .default_text = "none"});
}

void RlKl::describe(config::Fields& fields) {
  fields.field("coefficient",
               coefficient,
               {.text = "What the divergence from the reference costs; 0: there is no reference.",
                .min = 0});
  fields.field("estimator",
               estimator,
               {.text = "The estimate of the divergence at a token; docs/preferences.md.",
                .choices = {"k1", "k2", "k3"}});
  fields.choice(
      "place", place, kKlPlaces, {.text = "Where it is charged: in the loss, or in the rewards."});
  fields.field("target",
               target,
               {.text = "In the rewards: the divergence of a completion that the coefficient is "
                        "adapted to (Ziegler et al. 2019).",
                .min = 0,
                .above_min = true,
                .default_text = "none: the coefficient is constant"});
  fields.field(
      "horizon",
      horizon,
      {.text = "Completions after which the coefficient has followed an error of 20 %.", .min = 1});
}

void RlCritic::describe(config::Fields& fields) {
  fields.field("from",
               from,
               {.text = "Run, checkpoint or folder that the critic begins as, such as a reward "
                        "model.",
                .default_text = "the policy's own beginning, with a new head"});
  fields.field("lr",
               lr,
               {.text = "Learning rate of the critic.",
                .min = 0,
                .above_min = true,
                .default_text = "the policy's"});
  fields.field("clip_range",
               clip_range,
               {.text = "How far a value may move from what it was when the rollout was made.",
                .min = 0,
                .above_min = true});
}

void RlPtx::describe(config::Fields& fields) {
  fields.field("data",
               data,
               {.text = "Texts in the formats of data.train. Every update also learns to predict "
                        "samples of them, of data.sequence_length tokens each.",
                .default_text = "none"});
  fields.field(
      "coefficient",
      coefficient,
      {.text = "The factor of the mean loss of their tokens.", .min = 0, .above_min = true});
  fields.field("samples",
               samples,
               {.text = "The number of samples of an update.",
                .min = 1,
                .default_text = "train_batch_size"});
}

void RlValidation::describe(config::Fields& fields) {
  fields.field("samples", samples, {.text = "Completions of each held-out prompt.", .min = 1});
  fields.field("temperature",
               temperature,
               {.text = "The temperature of sampling; 0: the most likely token is always chosen.",
                .min = 0});
}

void RlModel::describe(config::Fields& fields) {
  fields.field("zero_stage",
               zero_stage,
               {.text = "ZeRO stage. A model that is only read is sharded in stage 3 and whole on "
                        "each data-parallel rank in stage 0.",
                .min = 0,
                .max = 3,
                .default_text = "3 of models that are only read, the policy's of a critic"});
  fields.field("dtype",
               dtype,
               {.text = "The dtype of weights and activations.",
                .choices = {"fp32", "bf16"},
                .default_text = "the policy's, fp32 instead of fp16"});
  fields.field(
      "tensor",
      tensor,
      {.text = "Number of ranks that share every layer (mode 1d); the weights are sharded or "
               "copied over the others.",
       .min = 1,
       .default_text = "parallel.tensor.size"});
  fields.field("ranks",
               ranks,
               {.text = "Consecutive ranks that alone have this model, such as [2, 3]. Models on "
                        "different ranks are computed at the same time.",
                .default_text = "all ranks that learn",
                .type = "list of integers"});
  fields.section("offload",
                 offload,
                 "Lets the weights of this model rest on a disk while no block uses them, as "
                 "zero_optimization.offload_param does for the policy. No bit changes.");
}

std::optional<std::pair<std::int64_t, std::int64_t>> RlModel::rank_range() const {
  if (!ranks.is_array() || ranks.items().empty()) return std::nullopt;
  std::optional<std::int64_t> first, next;
  for (const json::Value& item : ranks.items()) {
    const std::optional<std::int64_t> rank = item.as_integer();
    if (!rank || *rank < 0 || (next && *rank != *next)) return std::nullopt;
    if (!first) first = rank;
    next = *rank + 1;
  }
  return std::pair(*first, *next - *first);
}

void RlCriticModel::describe(config::Fields& fields) {
  RlModel::describe(fields);
  fields.field(
      "adapter",
      adapter,
      {.text = "Low-rank adapter of the critic, with the keys of the section adapter: only "
               "the adapter and the head are trained.",
       .default_text = "none: the whole critic is trained",
       .type = "object"});
  fields.field("trunk",
               trunk,
               {.text = "reward: the critic begins as the reward model, and its frozen weights are "
                        "those of the reward model, in the same memory. Without an adapter the "
                        "final norm and the head are trained.",
                .choices = {"own", "reward"}});
}

void RlModels::describe(config::Fields& fields) {
  fields.section("reference", reference, "The reference.");
  fields.section("reward", reward, "All reward models.");
  fields.section("critic", critic, "The critic.");
}

void RlRollBack::describe(config::Fields& fields) {
  fields.field("rollouts",
               rollouts,
               {.text = "The least number of rollouts between the checkpoint that the run goes "
                        "back to and the first rollout of the alarm.",
                .min = 0,
                .max = 1e6});
  fields.field("most",
               most,
               {.text = "The number of times that the run goes back; the next alarm stops it.",
                .min = 1,
                .max = 1000});
  fields.field("kl_factor",
               kl_factor,
               {.text = "The coefficient of the divergence in the rewards is multiplied by this "
                        "each time.",
                .min = 1,
                .max = 1000});
}

void RlOptions::describe(config::Fields& fields) {
  fields.field(
      "algorithm",
      algorithm,
      {.text = "The algorithm, which sets the other options.", .choices = rl_algorithms().names()});
  fields.field("preset",
               preset,
               {.text = "The algorithm as another program computes it.",
                .choices = rl_presets().names(),
                .default_text = "none"});
  fields.field("samples", samples, {.text = "Completions of each prompt.", .min = 1, .max = 65536});
  fields.field("max_new_tokens",
               max_new_tokens,
               {.text = "The largest length of a completion.", .unit = "tokens", .min = 1});
  fields.field("temperature",
               temperature,
               {.text = "Of sampling, and of the log-probabilities that are learned.",
                .min = 0,
                .above_min = true});
  fields.field(
      "top_k",
      top_k,
      {.text = "Draws only from this number of most likely tokens; log-probabilities are those "
               "among them. 0: all.",
       .min = 0});
  fields.field("top_p",
               top_p,
               {.text = "Only the most likely tokens are drawn that together reach this share, and "
                        "log-probabilities are those among them.",
                .min = 0,
                .max = 1,
                .above_min = true});
  fields.field("dynamic_rounds",
               dynamic_rounds,
               {.text = "How often groups whose completions all earn the same are replaced by "
                        "completions of other prompts (DAPO's dynamic sampling).",
                .min = 0,
                .max = 100});
  fields.field("entropy_coefficient",
               entropy_coefficient,
               {.text = "What a token's entropy earns in the loss.", .min = 0});
  fields.field("iterations",
               iterations,
               {.text = "How often an update learns from each completion.", .min = 1});
  fields.field("mini_batches",
               mini_batches,
               {.text = "Updates that a rollout is divided into: it has mini_batches * "
                        "train_batch_size completions.",
                .min = 1});
  fields.field("prompts_at_once",
               prompts_at_once,
               {.text = "The most prompts whose completions one rank makes together. The ranks do "
                        "not change which these are.",
                .min = 1});
  fields.field("completions_at_once",
               completions_at_once,
               {.text = "The most completions of these prompts that a token is drawn for at a "
                        "time: when one ends, the next one takes its place and its memory.",
                .min = 1});
  fields.choice("cache",
                cache,
                kRlCaches,
                {.text = "How the keys and values of completions are stored while they are made: "
                         "same as they are computed, bf16, or int8 with a scale for each token and "
                         "head. Other forms take less memory, and the log-probabilities of "
                         "sampling are further from those of training."});
  fields.field("overlap",
               overlap,
               {.text = "1: ranks of their own write the next rollout while the others learn from "
                        "this one, with the policy that these began this one with; 0: all ranks do "
                        "one after the other.",
                .min = 0,
                .max = 1});
  fields.field("fuse_adapter",
               fuse_adapter,
               {.text = "Write rollouts with a copy of the weights in which the adapter is merged, "
                        "instead of its two small products next to each weight."});
  fields.field("rollout_ranks",
               rollout_ranks,
               {.text = "With overlap: the number of ranks, the last ones of the job, that only "
                        "write rollouts.",
                .min = 1,
                .max = 1000,
                .default_text = "1"});
  fields.field("rollout_tensor",
               rollout_tensor,
               {.text = "Number of ranks that share each layer while rollouts are written. If it "
                        "is not that of the training, the ranks keep a copy of the weights for "
                        "it, which they bring up to date before each rollout.",
                .min = 1,
                .max = 1000,
                .default_text = "parallel.tensor, or 1 with overlap"});
  fields.field("rewards",
               rewards,
               {.text = "What is rewarded: [{\"type\": \"exact_match\", \"weight\": 1}, ...]; "
                        "docs/rl.md has the types and their options.",
                .required = true,
                .type = "list of objects"});
  fields.section("advantage", advantage, "How rewards become advantages.");
  fields.section("loss", loss, "What the policy learns of advantages.");
  fields.section("kl", kl, "The divergence from the reference.");
  fields.section("critic", critic, "The critic of the estimators gae and dschat_gae.");
  fields.section("ptx", ptx, "Pretraining texts that are learned with the completions.");
  fields.section("validation", validation, "How prompts of data.validation are answered.");
  fields.section(
      "models", models, "Layouts of the other models: reward models, critic and reference.");
  fields.field("reference",
               reference,
               {.text = "Run, checkpoint or folder of the reference.",
                .default_text = "the policy as it began"});
  fields.choice("truncated",
                truncated,
                kTruncated,
                {.text = "Whether completions that reach max_new_tokens without an end are learned "
                         "from (keep) or left out of the loss (mask)."});
  fields.choice(
      "parity",
      parity,
      kParities,
      {.text =
           "measure: compare the log-probability of each token as it was sampled with "
           "that of training, in every rollout. exact: both are the same to the bit, by kernels "
           "that compute each row alone, so that no pass is needed to compare them; the first "
           "rollout of a process is compared nevertheless. off: where each rollout serves a "
           "single update, no pass is made."});
  fields.field("parity_limit",
               parity_limit,
               {.text = "The largest difference of a log-probability; beyond it the run stops.",
                .min = 0,
                .above_min = true});
  fields.choice(
      "on_alarm",
      on_alarm,
      kOnAlarm,
      {.text =
           "Action when rollouts show that nothing can be learned any more: warn, stop, raise_kl, "
           "which doubles the coefficient of the divergence in the rewards, or roll_back, which "
           "continues from a checkpoint before the alarm with other random numbers; docs/rl.md "
           "lists the alarms."});
  fields.section("roll_back", roll_back, "How far and how often on_alarm roll_back goes back.");
  fields.field("chat_template",
               chat_template,
               {.text = "File with a chat template in Jinja, or chatml.",
                .default_text = "the one of the model's folder"});
}

Registry<RlAlgorithm>& rl_algorithms() {
  static Registry<RlAlgorithm> registry("algorithm of reinforcement learning");
  return registry;
}

Registry<RlAlgorithm>& rl_presets() {
  static Registry<RlAlgorithm> registry("preset of reinforcement learning");
  return registry;
}

namespace {

/// Applies the algorithm that `key` of the parameters names, if it names one.
void settle(const json::Value& params,
            const char* key,
            const Registry<RlAlgorithm>& known,
            RlOptions& options) {
  const json::Value* const name = params.find(key);
  if (name != nullptr && name->is_string() && known.has(name->as_string()))
    known.get(name->as_string()).settle(options);
}

}  // namespace

RlOptions read_rl_options(const json::Value& params,
                          config::Problems& problems,
                          config::Origins& origins) {
  RlOptions options;
  if (const json::Value* const name = params.find("algorithm"); name == nullptr || name->is_null())
    rl_algorithms().get(options.algorithm).settle(options);
  settle(params, "algorithm", rl_algorithms(), options);
  settle(params, "preset", rl_presets(), options);
  const std::string algorithm = options.algorithm;
  config::read(params, options, problems, origins);
  if (options.preset && origins.given("algorithm") && rl_presets().has(*options.preset)) {
    problems.add(origins.place("algorithm"),
                 "algorithm",
                 fmt::format("algorithm and preset are both given, and the preset {} is {}",
                             *options.preset,
                             algorithm),
                 "keep one of them");
  }
  return options;
}

}  // namespace tessera::tasks
