// SPDX-License-Identifier: Apache-2.0
// Objectives of preferences over a trunk that looks tokens up: losses and gradients against ATen's
// autograd in float64.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/losses/reward.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/models/objective.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

using test::ModelRunner;
using ::testing::HasSubstr;

// Legend: B samples, T tokens, C embed.
constexpr std::int64_t kB = 3, kT = 9, kC = 16, kVocab = 23;
// Sums of some hundreds of float32 products.
constexpr double kTolerance = 5e-6;

class Lookup final : public nn::Block {
 public:
  explicit Lookup(TrunkOutput trunk) : trunk_(std::move(trunk)) {}
  void declare(nn::Params& params) override { table_ = declare_table(params, trunk_); }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  TrunkOutput trunk_;
  Param* table_ = nullptr;
};

nn::Model model_with(const std::string& objective, const std::string& options = "{}") {
  Trunk trunk{.output = {.hidden_size = kC,
                         .norm = {NormKind::RmsNorm, 1e-5},
                         .norm_name = "final",
                         .vocabulary = {"table", kVocab, /*tied=*/false},
                         .init_std = 0.5}};
  trunk.blocks.push_back(
      {"table", [output = trunk.output] { return std::make_unique<Lookup>(output); }});
  return with_objective(std::move(trunk), objective, json::parse(options, "options.json"));
}

/// Two texts per row, of different lengths in each row, with prompts of two tokens.
struct Batch {
  const std::vector<std::int64_t> first = {5, 4, 3}, second = {4, 5, 4};
  at::Tensor ids, labels = at::full({kB, kT}, -100, at::kLong),
                  completion = at::zeros({kB, kT}, at::kLong),
                  mask = at::zeros({kB, kT}, at::kLong);
  at::Tensor reference = -at::rand({kB, 2}, at::kDouble) - 3;
  nn::Batch batch;

  Batch() {
    ids = at::randint(
        kVocab, {kB, kT}, at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{5}), at::kLong);
    for (std::int64_t b = 0; b < kB; ++b) {
      std::int64_t begin = 0;
      for (const std::int64_t length : {first[std::size_t(b)], second[std::size_t(b)]}) {
        for (std::int64_t t = begin; t + 1 < begin + length; ++t) {
          labels[b][t] = ids[b][t + 1];
          completion[b][t] = t - begin >= 1 ? 1 : 0;
        }
        mask[b].narrow(0, begin, length).fill_(1);
        begin += length;
      }
    }
    batch = test::make_batch(ids, labels);
    batch.set("completion", completion);
    batch.set("attention_mask", mask);
    batch.set("second_text", at::tensor(first, at::kLong));
    batch.set("reference", reference);
    batch.set("margin", at::tensor(std::vector<float>{0.5F, 0.0F, 1.0F}));
    batch.set("wanted", at::tensor(std::vector<std::int64_t>{1, 0, 1}, at::kLong));
  }
};

/// The same model in float64.
struct Reference {
  std::map<std::string, at::Tensor> weights;
  at::Tensor x_BTC, chosen, rejected, chosen_count, rejected_count, chosen_text, chosen_text_count;
  at::Tensor chosen_tail, rejected_tail;  ///< behind the length of the other completion

  Reference(const ModelRunner& runner, const Batch& of, bool vocabulary_head = true) {
    for (const auto& [name, weight] : runner.weights)
      weights[name] = weight.to(at::kDouble).set_requires_grad(true);
    const at::Tensor x = weights.at("table").index_select(0, of.ids.flatten()).view({kB, kT, kC});
    x_BTC = x * (x.square().mean(2, true) + 1e-5).rsqrt() * weights.at("final.weight");
    if (!vocabulary_head) return;
    const at::Tensor log_p = at::log_softmax(at::matmul(x_BTC, weights.at("lm_head.weight").t()), 2)
                                 .gather(2, of.labels.clamp_min(0).unsqueeze(2))
                                 .squeeze(2);
    const auto places = at::arange(kT, at::kLong);
    const at::Tensor in_second = places.ge(of.batch.tensor("second_text").unsqueeze(1));
    const at::Tensor there = of.labels.ne(-100);
    const at::Tensor c = there.logical_and(of.completion.ne(0)).logical_and(~in_second),
                     r = there.logical_and(of.completion.ne(0)).logical_and(in_second),
                     text = there.logical_and(~in_second);
    const at::Tensor shared = at::minimum(c.sum(1), r.sum(1)).unsqueeze(1);
    chosen_tail = (log_p * c.logical_and(c.cumsum(1).gt(shared))).sum(1);
    rejected_tail = (log_p * r.logical_and(r.cumsum(1).gt(shared))).sum(1);
    chosen = (log_p * c).sum(1);
    rejected = (log_p * r).sum(1);
    chosen_count = c.sum(1).to(at::kDouble);
    rejected_count = r.sum(1).to(at::kDouble);
    chosen_text = (log_p * text).sum();
    chosen_text_count = text.sum().to(at::kDouble);
  }
};

double error_of(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  return (ours.to(at::kDouble) - wanted).norm().item<double>() /
         std::max(1e-12, wanted.norm().item<double>());
}

using LossOf = std::function<at::Tensor(const Reference&, const Batch&)>;

void expect_loss(const std::string& objective,
                 const std::string& options,
                 const LossOf& expected,
                 bool vocabulary_head = true) {
  SCOPED_TRACE(objective + " " + options);
  ModelRunner runner(model_with(objective, options));
  runner.initialize(1);
  const Batch of;

  // The runner divides by the first denominator of each term's own.
  const double loss = runner.train(of.batch);

  const Reference reference(runner, of, vocabulary_head);
  const at::Tensor wanted = expected(reference, of);
  EXPECT_NEAR(loss, wanted.item<double>(), kTolerance * std::abs(loss));
  for (const auto& [name, grad] : runner.grads) {
    const at::Tensor dw =
        torch::autograd::grad({wanted}, {reference.weights.at(name)}, {}, /*retain_graph=*/true)
            .front();
    EXPECT_LT(error_of(grad, dw), kTolerance) << name;
  }
}

TEST(Preference, IsTheLossOfTheRatiosOfItsCompletions) {
  const auto margin = [](const Reference& r, const Batch& of) {
    return r.chosen - of.reference.select(1, 0) - r.rejected + of.reference.select(1, 1);
  };
  expect_loss("preference", "{}", [&](const Reference& r, const Batch& of) {
    return -at::log_sigmoid(0.1 * margin(r, of)).mean();
  });
  expect_loss("preference",
              R"({"type": ["hinge", "sft"], "weights": [0.5, 2], "beta": 0.3})",
              [&](const Reference& r, const Batch& of) {
                return 0.5 * at::relu(1 - 0.3 * margin(r, of)).mean() -
                       2 * r.chosen.sum() / r.chosen_count.sum();
              });
  expect_loss("preference", R"({"reference_free": true})", [&](const Reference& r, const Batch&) {
    return -at::log_sigmoid(0.1 * (r.chosen - r.rejected)).mean();
  });
}

// The tokens of a completion behind the length of the other one count less in the ratios. The
// cross entropy has all of them with the same weight, as in TRL's DPO trainer.
TEST(Preference, WeightsTheTailOfTheLongerCompletion) {
  expect_loss("preference",
              R"({"type": ["sigmoid", "sft"], "tail_alpha": 0.25, "reference_free": true})",
              [&](const Reference& r, const Batch&) {
                EXPECT_NE(r.chosen_tail.abs().sum().item<double>(), 0.0);
                EXPECT_NE(r.rejected_tail.abs().sum().item<double>(), 0.0);
                const at::Tensor margin =
                    r.chosen - 0.75 * r.chosen_tail - r.rejected + 0.75 * r.rejected_tail;
                return -at::log_sigmoid(0.1 * margin).mean() -
                       r.chosen.sum() / r.chosen_count.sum();
              });
}

TEST(Cpo, AddsTheCrossEntropyOfTheChosenCompletion) {
  expect_loss("cpo", "{}", [](const Reference& r, const Batch&) {
    return -at::log_sigmoid(0.1 * (r.chosen - r.rejected)).mean() -
           r.chosen.sum() / r.chosen_count.sum();
  });
  expect_loss(
      "cpo", R"({"type": "simpo", "beta": 2, "gamma": 0.7})", [](const Reference& r, const Batch&) {
        return -at::log_sigmoid(2 * (r.chosen / r.chosen_count - r.rejected / r.rejected_count) -
                                0.7)
                    .mean();
      });
}

TEST(Orpo, AddsTheCrossEntropyOfTheChosenTextWithItsPrompt) {
  expect_loss("orpo", R"({"beta": 0.2})", [](const Reference& r, const Batch&) {
    const at::Tensor c = r.chosen / r.chosen_count, q = r.rejected / r.rejected_count;
    const at::Tensor odds = c - q - (at::log1p(-c.exp()) - at::log1p(-q.exp()));
    return -0.2 * at::log_sigmoid(odds).mean() - r.chosen_text / r.chosen_text_count;
  });
}

TEST(Kto, ComparesEachCompletionWithTheDivergence) {
  expect_loss(
      "kto",
      R"({"beta": 0.5, "undesirable_weight": 1.5})",
      [](const Reference& r, const Batch& of) {
        const at::Tensor l = r.chosen - of.reference.select(1, 0);
        const at::Tensor z = (r.rejected.detach() - of.reference.select(1, 1)).mean().clamp_min(0);
        const at::Tensor wanted = of.batch.tensor("wanted").ne(0);
        return at::where(
                   wanted, 1 - at::sigmoid(0.5 * (l - z)), 1.5 * (1 - at::sigmoid(0.5 * (z - l))))
            .mean();
      });
}

TEST(Reward, ComparesTheScoresOfTheLastTokens) {
  expect_loss(
      "reward",
      R"({"centering": 0.1})",
      [](const Reference& r, const Batch& of) {
        const at::Tensor scores = at::matmul(r.x_BTC, r.weights.at("score.weight").t()).squeeze(2);
        const at::Tensor end = at::tensor(of.first, at::kLong);
        const auto at_place = [&](const at::Tensor& place_B) {
          return scores.gather(1, place_B.unsqueeze(1)).squeeze(1);
        };
        const at::Tensor c = at_place(end - 1),
                         q = at_place(end + at::tensor(of.second, at::kLong) - 1);
        return (-at::log_sigmoid(c - q - of.batch.tensor("margin").to(at::kDouble)) +
                0.1 * (c + q).square())
            .mean();
      },
      /*vocabulary_head=*/false);
}

void compare_all_tokens(const std::string& family) {
  SCOPED_TRACE(family);
  // Scores of tokens: rows of 14 tokens, sequences of 5 and 3 tokens that differ from token 1 on.
  const auto resolved_with = [&](const char* objective, const char* options) {
    ModelOptions of(family);
    config::Problems problems;
    json::Value keys = json::parse_strict(
        R"({"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 40, "dropout": 0})",
        "test");
    keys["family"] = json::Value::string(family);
    config::Origins origins;
    config::read(keys, of, problems, origins);
    problems.raise();
    Resolved out = resolve(
        of, 40, std::nullopt, problems, origins, {objective, json::parse(options, "options.json")});
    problems.raise();
    return out;
  };
  ModelRunner reward(resolved_with("reward", R"({"tokens": true})").model),
      value(resolved_with("value", "{}").model);
  reward.initialize(3);
  value.initialize(3);
  constexpr std::int64_t kPad = 0;
  const at::Tensor chosen = at::tensor({7, 9, 30, 2, 11}, at::kLong),
                   rejected = at::tensor({7, 8, 5, 0, 0}, at::kLong);  // padded with kPad
  nn::Batch row =
      test::make_batch(at::cat({chosen, rejected, at::full({4}, kPad, at::kLong)}).unsqueeze(0),
                       at::full({1, 14}, -100, at::kLong));
  row.set("attention_mask",
          at::tensor({1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}, at::kLong).unsqueeze(0));
  row.set("document_starts",
          at::tensor({0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 11, 12, 13}, at::kLong).unsqueeze(0));
  row.set("second_text", at::tensor({5}, at::kLong));
  row.set("ends", at::tensor({5, 3}, at::kLong).unsqueeze(0));
  row.set("compared", at::tensor({1, 5}, at::kLong).unsqueeze(0));

  const double loss = reward.train(row);

  // Each sequence by itself, padded as DeepSpeed-Chat does.
  nn::Batch apart = test::make_batch(at::stack({chosen, rejected}));
  apart.set("attention_mask", at::tensor({1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, at::kLong).view({2, 5}));
  nn::StepContext context(nn::Mode::Eval, 1);
  const at::Tensor scores_2T = value.infer(apart, context).outputs.at("values");
  const losses::ComparedTokens tokens =
      losses::compared_tokens(chosen.unsqueeze(0), rejected.unsqueeze(0), kPad);
  const double expected =
      losses::tokenwise_reward(scores_2T.narrow(0, 0, 1), scores_2T.narrow(0, 1, 1), tokens)
          .item<double>();
  EXPECT_NEAR(loss, expected, 1e-6);
  EXPECT_GT(std::abs(loss - std::log(2.0)), 1e-3) << "the scores differ";
  EXPECT_GT(reward.grads.at("score.weight").norm().item<double>(), 0.0);

  const nn::Outcome told = [&] {
    nn::StepContext eval(nn::Mode::Eval, 1);
    return reward.infer(row, eval);
  }();
  const auto term = [&](const std::string& name) {
    for (const nn::Term& one : told.terms) {
      if (one.name == name) return one.sum.item<double>();
    }
    return std::nan("");
  };
  EXPECT_NEAR(term("rewards/chosen"), scores_2T[0][4].item<double>(), 1e-6);
  EXPECT_NEAR(term("rewards/rejected"), scores_2T[1][2].item<double>(), 1e-6);
  if (family != "opt") return;
  // Transformers' OPT gives padding the row before the first position, whose row is 2.
  const at::Tensor rows = reward.grads.at("embed_positions.weight").norm(2, 1);
  EXPECT_GT(rows[1].item<double>(), 0.0);
  EXPECT_EQ(rows.narrow(0, 7, rows.size(0) - 7).max().item<double>(), 0.0);
}

TEST(Reward, ComparesTheScoresOfAllTokensBehindTheFirstDifference) {
  compare_all_tokens("gpt2");
  compare_all_tokens("opt");
}

TEST(Preference, MakesTheReferenceThatItReads) {
  ModelRunner runner(model_with("preference"));
  runner.initialize(1);
  const Batch of;
  nn::Batch without = test::make_batch(of.ids, of.labels);
  without.set("completion", of.completion);
  without.set("second_text", of.batch.tensor("second_text"));
  nn::StepContext context(nn::Mode::Eval, 1);

  const nn::Outcome out = runner.infer(without, context);

  const Reference reference(runner, of);
  EXPECT_TRUE(out.terms.empty());
  EXPECT_LT(
      error_of(out.outputs.at("reference"), at::stack({reference.chosen, reference.rejected}, 1)),
      kTolerance);
  EXPECT_THROW(runner.train(without), Error);
}

TEST(Preference, GeneratesAsTheModelThatItIsKeptAs) {
  ModelRunner trained(model_with("preference")), kept(model_with("causal_lm"));
  trained.initialize(1);
  kept.initialize(1);
  nn::StepContext one(nn::Mode::Prefill, 1), other(nn::Mode::Prefill, 1);
  const nn::Batch prompt = test::make_batch(Batch().ids);

  EXPECT_TRUE(at::equal(trained.infer(prompt, one).outputs.at("logits"),
                        kept.infer(prompt, other).outputs.at("logits")));
}

TEST(KeptObjectives, AreThoseOfTheHeads) {
  for (const char* name : {"preference", "cpo", "orpo", "kto"})
    EXPECT_FALSE(said_of({name, json::parse(R"({"beta": 2})", "options")}).has_value()) << name;
  const json::Value said = *said_of({"reward", json::Value::object()});
  EXPECT_EQ(said.find("name")->as_string(), "sequence_classification");
  EXPECT_EQ(*said.find("options")->find("num_labels")->as_integer(), 1);
}

std::string refusal(const std::string& objective, const std::string& options) {
  try {
    (void)model_with(objective, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.what();
  }
  return "accepted";
}

TEST(PreferenceOptions, ThatCannotBeAreRefused) {
  EXPECT_THAT(refusal("preference", R"({"type": "sigmod"})"), HasSubstr("sigmod"));
  EXPECT_THAT(refusal("preference", R"({"type": "exo_pair"})"), HasSubstr("label_smoothing"));
  EXPECT_THAT(refusal("preference", R"({"type": "robust", "label_smoothing": 0.5})"),
              HasSubstr("below 0.5"));
  EXPECT_THAT(refusal("preference", R"({"type": "sft"})"), HasSubstr("compares"));
  EXPECT_THAT(refusal("preference", R"({"weights": [1, 2]})"), HasSubstr("2 weights for 1"));
  EXPECT_THAT(refusal("preference", R"({"divergence": "kl"})"), HasSubstr("divergence"));
  EXPECT_THAT(refusal("preference", R"({"betta": 1})"), HasSubstr("betta"));
  EXPECT_THAT(refusal("cpo", R"({"type": "robust"})"), HasSubstr("type"));
  EXPECT_THAT(refusal("kto", R"({"beta": 0})"), HasSubstr("beta"));
}

}  // namespace
}  // namespace tessera::models
