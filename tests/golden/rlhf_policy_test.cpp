// SPDX-License-Identifier: Apache-2.0
// Advantages, estimates of divergences, and losses of policies and critics, with their gradients,
// against what TRL's and DeepSpeed-Chat's own functions give in float64.
#include <optional>
#include <string>

#include "rlhf_support.h"

#include "tessera/losses/advantages.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/log_probabilities.h"
#include "tessera/losses/policy.h"
#include "tessera/losses/ppo.h"

namespace tessera {
namespace {

using golden::at;
using golden::doubles;
using golden::expect_near;
using golden::gradient;
using golden::into;
using golden::leaf;

void check_log_probabilities(const json::Value& record) {
  const at::Tensor logits = doubles(at(record, "logits"));

  expect_near(losses::token_log_probabilities(logits, golden::integers(at(record, "index"))),
              at(record, "logps"),
              "log-probabilities");
  expect_near(losses::token_entropies(logits), at(record, "entropy"), "entropies");
}

void check_kl(const json::Value& record) {
  const at::Tensor reference = doubles(at(record, "ref_logps")), mask = doubles(at(record, "mask"));
  std::size_t checked = 0;

  for (const std::string& name : losses::kl_estimators().names()) {
    const at::Tensor policy = leaf(doubles(at(record, "logps")));
    const at::Tensor kl = losses::kl_estimators().get(name)(policy, reference);

    expect_near(kl, at(record, name), name);
    expect_near(gradient(kl.sum(), policy), at(at(record, "gradients"), name), name);
    expect_near(
        losses::masked_mean(kl, mask), at(record, "masked_means").items().at(checked), name);
    ++checked;
  }
  EXPECT_EQ(checked, at(record, "gradients").members().size());
}

void check_gae(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    const at::Tensor mask = doubles(at(entry, "mask"));

    const losses::Gae gae = losses::generalized_advantages(
        {.rewards_BT = doubles(at(entry, "rewards")),
         .values_BT = doubles(at(entry, "values")),
         .mask_BT = mask,
         .done_BT = doubles(at(entry, "done")),
         .bootstrap_B = doubles(at(entry, "bootstrap_value"))},
        {.gamma = at(entry, "gamma").as_double(), .lambda = at(entry, "lam").as_double()});

    expect_near(gae.advantages_BT, at(entry, "advantages"), "advantages");
    expect_near(gae.returns_BT, at(entry, "returns"), "returns");
    expect_near(losses::whitened(gae.advantages_BT, mask), at(entry, "whitened"), "whitened");
    expect_near(losses::whitened(gae.advantages_BT, mask, /*keep_mean=*/true),
                at(entry, "whitened_keeping_the_mean"),
                "whitened, with the mean");
  }
}

void check_advantages(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    SCOPED_TRACE(entry.dump());
    const at::Tensor rewards = doubles(at(entry, "rewards_per_function")),
                     weights = doubles(at(entry, "reward_weights"));
    const std::int64_t group = *at(entry, "num_generations").as_integer();
    const std::string trainer = at(entry, "trainer").as_string();
    if (trainer == "grpo") {
      std::string scale = "group", sum = "sum_then_normalize";
      golden::read_keys(at(entry, "settings"),
                        {{"scale_rewards", into(scale)}, {"aggregation", into(sum)}});

      expect_near(losses::group_advantages(rewards,
                                           weights,
                                           {.group_size = group,
                                            .scale = losses::reward_scale(scale),
                                            .sum = losses::reward_sum(sum)}),
                  at(entry, "advantages"),
                  "advantages");
      continue;
    }
    ASSERT_EQ(trainer, "rloo");
    losses::LeaveOneOutOptions options{.group_size = group};
    golden::read_keys(at(entry, "settings"),
                      {{"normalize_advantages", into(options.normalize)},
                       {"beta", into(options.kl_coefficient)},
                       {"reward_clip_range", [&](const json::Value& value) {
                          const std::vector<double> range = golden::numbers(value);
                          options.clip = {range.at(0), range.at(1)};
                        }}});
    const at::Tensor kl = losses::masked_sums(
        doubles(at(record, "rloo_logps")) - doubles(at(record, "rloo_ref_logps")),
        doubles(at(record, "completion_mask")));

    expect_near(losses::leave_one_out_advantages(rewards, weights, kl, options),
                at(entry, "advantages"),
                "advantages");
  }
}

/// A case of trl_grpo.json.
struct GrpoCase {
  losses::PolicyOptions options;
  bool tool_mask = false, on_policy = false;
  double accumulation = 1.0, steps_per_generation = 1.0, entropy_coefficient = 0.0;

  explicit GrpoCase(const json::Value& settings) {
    golden::read_keys(
        settings,
        {{"epsilon_low", into(options.epsilon_low)},
         {"epsilon_high", into(options.epsilon_high)},
         {"beta", into(options.kl_coefficient)},
         {"use_bias_correction_kl", into(options.corrected_kl)},
         {"importance_sampling_level",
          [this](const json::Value& value) {
            options.sequence_level = value.as_string() == "sequence";
          }},
         {"delta", [this](const json::Value& value) { options.delta = value.as_double(); }},
         {"off_policy_mask_threshold",
          [this](const json::Value& value) { options.off_policy_threshold = value.as_double(); }},
         {"top_entropy_quantile", into(options.top_entropy_quantile)},
         {"entropy_coef", into(entropy_coefficient)},
         {"gradient_accumulation_steps", into(accumulation)},
         {"steps_per_generation", into(steps_per_generation)},
         {"tool_mask", into(tool_mask)},
         {"on_policy", into(on_policy)}});
  }
};

void check_sequences(const json::Value& record, const json::Value& entry) {
  const GrpoCase of(at(entry, "settings"));
  const at::Tensor policy = leaf(doubles(at(record, "logps"))),
                   mask = doubles(at(record, "completion_mask"));

  const at::Tensor loss =
      losses::sequence_surrogate(losses::masked_sums(policy, mask),
                                 losses::masked_sums(doubles(at(record, "old_logps")), mask),
                                 doubles(at(record, "advantages")),
                                 of.options.epsilon_low,
                                 of.options.epsilon_high)
          .mean();

  expect_near(loss, at(entry, "loss"), "loss");
  expect_near(gradient(loss, policy), at(entry, "d_loss_d_logps"), "gradient");
}

void check_policy(const json::Value& record, const json::Value& entry) {
  const GrpoCase of(at(entry, "settings"));
  const std::string type = at(entry, "loss_type").as_string();
  const losses::PolicyLoss& kind = losses::policy_losses().get(type);
  const at::Tensor policy = leaf(doubles(at(record, "logps"))),
                   completions = doubles(at(record, "completion_mask"));
  const at::Tensor mask =
      of.tool_mask ? completions * doubles(at(record, "tool_mask")) : completions;
  losses::PolicySample sample{.log_probabilities_BT = policy,
                              .mask_BT = mask,
                              .advantages = doubles(at(record, "advantages")),
                              .entropies_BT = doubles(at(record, "entropies"))};
  if (!of.on_policy) sample.old_BT = doubles(at(record, "old_logps"));
  if (of.options.kl_coefficient != 0.0) sample.reference_BT = doubles(at(record, "ref_logps"));

  const losses::PolicyOutcome out = losses::policy_loss(kind, sample, of.options);
  // Where TRL divides by the tokens of a batch, these are the unmasked ones of all its steps.
  const bool whole_batch = type == "dapo" || type == "cispo" || type == "vespo";
  const double count = losses::aggregated_count(
      kind.aggregation, whole_batch ? completions : mask, /*longest=*/policy.size(1) + 3);
  at::Tensor loss = losses::aggregated_sum(kind.aggregation, out.losses_BT, mask) / count /
                    (of.accumulation / (whole_batch ? of.steps_per_generation : 1.0));
  if (of.entropy_coefficient != 0.0) {
    loss = loss - of.entropy_coefficient * losses::masked_mean(sample.entropies_BT, mask);
  }

  expect_near(loss, at(entry, "loss"), "loss");
  expect_near(gradient(loss, policy), at(entry, "d_loss_d_logps"), "gradient");
  const auto share = [&](const at::Tensor& marked) {
    const at::Tensor shares = marked.to(at::kDouble);
    return shares.size(1) == 1 ? shares.mean() : losses::masked_mean(shares, mask);
  };
  const at::Tensor cispo_clipped = (policy.detach() - doubles(at(record, "old_logps")))
                                       .exp()
                                       .gt(of.options.epsilon_high)
                                       .logical_and(sample.advantages.unsqueeze(1).gt(0));
  golden::read_keys(
      at(entry, "metrics"),
      {{"clip_ratio/low_mean",
        [&](const json::Value& value) { expect_near(share(out.low_BL), value, "low"); }},
       {"clip_ratio/high_mean",
        [&](const json::Value& value) { expect_near(share(out.high_BL), value, "high"); }},
       {"clip_ratio/region_mean",
        [&](const json::Value& value) {
          expect_near(share(out.low_BL.logical_or(out.high_BL)), value, "clipped");
        }},
       {"cispo_clip_ratio",
        [&](const json::Value& value) { expect_near(share(cispo_clipped), value, "cispo"); }},
       {"kl", [&](const json::Value& value) {
          expect_near(losses::masked_mean(out.kl_BT, mask), value, "kl");
        }}});
}

void check_grpo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    SCOPED_TRACE(at(entry, "loss_type").as_string() + at(entry, "settings").dump());
    if (at(entry, "loss_type").as_string() == "rloo") {
      check_sequences(record, entry);
    } else {
      check_policy(record, entry);
    }
  }
}

void check_ppo(const json::Value& record) {
  for (const json::Value& entry : at(record, "cases").items()) {
    losses::PpoOptions options;
    golden::read_keys(at(entry, "hyper"),
                      {{"kl_ctl", into(options.kl_coefficient)},
                       {"clip_reward_value", into(options.clip_reward)},
                       {"cliprange", into(options.clip_range)},
                       {"cliprange_value", into(options.clip_range_value)},
                       {"gamma", into(options.gamma)},
                       {"lam", into(options.lambda)}});
    const at::Tensor ids = golden::integers(at(entry, "input_ids"));
    const std::int64_t T = ids.size(1) - 1, start = *at(entry, "prompt_length").as_integer() - 1,
                       A = T - start;
    const auto log_probabilities = [&](const at::Tensor& logits) {
      return losses::token_log_probabilities(logits.narrow(1, 0, T), ids.narrow(1, 1, T));
    };
    const auto answer = [&](const at::Tensor& x_BT) { return x_BT.narrow(1, start, A); };
    const at::Tensor logits = leaf(doubles(at(entry, "new_logits")));
    const at::Tensor old = log_probabilities(doubles(at(entry, "old_logits"))),
                     reference = log_probabilities(doubles(at(entry, "ref_logits"))),
                     policy = log_probabilities(logits);
    const at::Tensor mask = doubles(at(entry, "attention_mask")).narrow(1, 1, T);
    const at::Tensor values = leaf(doubles(at(entry, "new_values")).narrow(1, 0, T));

    const losses::PpoExperience seen =
        losses::ppo_experience(old,
                               reference,
                               doubles(at(entry, "old_values")).narrow(1, 0, T),
                               doubles(at(entry, "reward_score")),
                               mask,
                               start,
                               options);
    const at::Tensor actor = losses::ppo_actor_loss(
        answer(policy), answer(old), seen.advantages_BA, answer(mask), options.clip_range);
    const at::Tensor critic = losses::ppo_critic_loss(answer(values),
                                                      answer(seen.values_BT),
                                                      seen.returns_BA,
                                                      answer(mask),
                                                      options.clip_range_value);

    EXPECT_EQ(*at(entry, "start").as_integer(), start);
    expect_near(old, at(entry, "old_logprobs"), "old log-probabilities");
    expect_near(reference, at(entry, "ref_logprobs"), "reference");
    expect_near(policy, at(entry, "new_logprobs"), "policy");
    expect_near(seen.ends_B, at(entry, "ends"), "ends");
    expect_near(seen.rewards_BT, at(entry, "rewards_zeroed_after_end"), "rewards");
    expect_near(seen.values_BT, at(entry, "values_zeroed_after_end"), "values");
    expect_near(seen.advantages_BA, at(entry, "advantages"), "advantages");
    expect_near(seen.returns_BA, at(entry, "returns"), "returns");
    expect_near(actor, at(entry, "actor_loss"), "actor");
    expect_near(critic, at(entry, "critic_loss"), "critic");
    expect_near(gradient(actor, policy), at(entry, "d_actor_d_new_logprobs"), "actor");
    expect_near(gradient(actor, logits), at(entry, "d_actor_d_new_logits"), "actor's logits");
    expect_near(gradient(critic, values), at(entry, "d_critic_d_new_values"), "critic");
  }
}

TEST(GoldenPolicy, LossesAndGradientsAreThoseOfTheRecordedTrainers) {
  golden::check_files({{"trl_logps.json", check_log_probabilities},
                       {"kl_estimators.json", check_kl},
                       {"gae.json", check_gae},
                       {"trl_advantages.json", check_advantages},
                       {"trl_grpo.json", check_grpo},
                       {"ppo.json", check_ppo}});
}

}  // namespace
}  // namespace tessera
