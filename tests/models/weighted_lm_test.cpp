// SPDX-License-Identifier: Apache-2.0
// The objective that weighs the cross-entropy of each token: loss and gradient.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/models/objective.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

using test::ModelRunner;

constexpr std::int64_t kVocabulary = 23, kChannels = 16;
// Sums of some tens of float32 products.
constexpr double kLossTolerance = 2e-6, kGradientTolerance = 1e-5;

/// A trunk of one block, which looks tokens up in the table that is also the head.
class LookUp final : public nn::Block {
 public:
  explicit LookUp(TrunkOutput trunk) : trunk_(std::move(trunk)) {}
  void declare(nn::Params& params) override { table_ = declare_table(params, trunk_); }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  TrunkOutput trunk_;
  Param* table_ = nullptr;
};

Trunk look_up_trunk() {
  Trunk trunk{.output = {.hidden_size = kChannels,
                         .norm = {NormKind::RmsNorm, 1e-5},
                         .norm_name = "final",
                         .vocabulary = {"table", kVocabulary, /*tied=*/true},
                         .init_std = 1.0}};
  trunk.output.causal = true;
  trunk.blocks.push_back(
      {"table", [output = trunk.output] { return std::make_unique<LookUp>(output); }});
  return trunk;
}

double difference(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor wanted = expected.detach().to(at::kDouble);
  return (ours.to(at::kDouble) - wanted).norm().item<double>() / wanted.norm().item<double>();
}

// The formulas of LLaMA-Factory's dft_loss_func() and eaft_loss_func(), whose weights have no
// gradient, with ATen in float64.
TEST(WeightedLm, WeighsTokensByTheirProbabilityOrTheEntropyOfTheLikeliest) {
  const Trunk trunk = look_up_trunk();
  const at::Tensor ids_BT = (at::arange(35, at::kLong) * 7).remainder(kVocabulary).view({5, 7});
  at::Tensor labels_BT = ids_BT.roll(1, 1).clone();
  labels_BT.select(1, 2).fill_(-100);
  const nn::Batch batch = test::make_batch(ids_BT, labels_BT);
  for (const std::string text : {R"({"weights": "probability"})",
                                 R"({"weights": "entropy"})",
                                 R"({"weights": "entropy", "alpha": 2, "top_k": 5, "scale": 1})"}) {
    SCOPED_TRACE(text);
    const json::Value how = json::parse(text, "options.json");
    ModelRunner runner(with_objective(trunk, "weighted_lm", how));
    runner.initialize(1);

    const double loss = runner.train(batch);

    std::map<std::string, at::Tensor> weights;
    for (const auto& [name, weight] : runner.weights)
      weights[name] = weight.to(at::kDouble).set_requires_grad(true);
    const at::Tensor rows_N = labels_BT.view({-1}).ne(-100).nonzero().squeeze(1);
    const at::Tensor x_NC =
        weights.at("table").index_select(0, ids_BT.view({-1}).index_select(0, rows_N));
    const at::Tensor normed_NC =
        x_NC * (x_NC.square().mean(1, true) + 1e-5).rsqrt() * weights.at("final.weight");
    const at::Tensor logits_NV = at::matmul(normed_NC, weights.at("table").t());
    const at::Tensor losses_N = at::cross_entropy_loss(
        logits_NV, labels_BT.view({-1}).index_select(0, rows_N), {}, at::Reduction::None);
    at::Tensor weights_N = (-losses_N).exp();
    if (how.find("weights")->as_string() == "entropy") {
      const bool plain = how.find("alpha") == nullptr;
      const at::Tensor top_NK = std::get<0>(logits_NV.topk(plain ? 20 : 5, -1));
      const at::Tensor logs_NK = top_NK - top_NK.logsumexp(-1, true);
      weights_N = (-(logs_NK.exp() * logs_NK).sum(-1) / (plain ? 3.0 : 1.0)).pow(plain ? 1.0 : 2.0);
    }
    const at::Tensor expected = (losses_N * weights_N.detach()).mean();
    EXPECT_NEAR(loss, expected.item<double>(), kLossTolerance * loss);
    for (const auto& [name, grad] : runner.grads)
      EXPECT_LT(
          difference(grad, torch::autograd::grad({expected}, {weights.at(name)}, {}, true).front()),
          kGradientTolerance)  // of the table through both of its uses
          << name;
  }
}

TEST(WeightedLm, ReportsThePlainCrossEntropyInAnEvaluation) {
  const Trunk trunk = look_up_trunk();
  const at::Tensor ids_BT = (at::arange(35, at::kLong) * 7).remainder(kVocabulary).view({5, 7});
  const nn::Batch batch = test::make_batch(ids_BT, ids_BT.roll(1, 1));
  const auto losses = [&](const char* objective, const char* options) {
    ModelRunner runner(with_objective(trunk, objective, json::parse(options, "options.json")));
    runner.initialize(1);
    nn::StepContext context(nn::Mode::Eval, 1);
    const double evaluated = runner.infer(batch, context).terms.at(0).sum.item<double>();
    return std::pair(evaluated, runner.train(batch));
  };
  const auto [plain, plain_trained] = losses("causal_lm", "{}");
  for (const char* options : {R"({"weights": "probability"})", R"({"weights": "entropy"})"}) {
    const auto [evaluated, trained] = losses("weighted_lm", options);
    EXPECT_NEAR(evaluated, plain, kLossTolerance * plain) << options;
    EXPECT_GT(std::abs(trained - plain_trained), 0.01 * plain_trained) << options;
  }
}

}  // namespace
}  // namespace tessera::models
