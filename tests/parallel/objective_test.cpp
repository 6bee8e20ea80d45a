// SPDX-License-Identifier: Apache-2.0
// labels: fast
// When the executor runs a model's objective, and for which samples.
#include <cstdint>
#include <memory>
#include <vector>

#include "support/model_runner.h"
#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::parallel {
namespace {

using enum LogicalAxis;

using test::ModelRunner;

constexpr std::int64_t kSamples = 5, kTokens = 6, kChannels = 8, kVocab = 12;

/// The samples of each run of the objective.
using Runs = std::vector<std::vector<std::int64_t>>;

class Table final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.add("weight", {kVocab, kChannels}, {Vocab, Embed}, Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  Param* table_ = nullptr;
};

class Loss final : public nn::Objective {
 public:
  Loss(std::int64_t at_once, Runs& runs) : at_once_(at_once), runs_(runs) {}
  void declare(nn::Params& params) override {
    head_ = params.add("weight", {kVocab, kChannels}, {Vocab, Embed}, Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    runs_.push_back(batch.sample_ids);
    EXPECT_EQ(context.batch, &batch);
    // Like dropout: the bits depend on the samples.
    const at::Tensor x = nn::dropout(in.diff.at(0), context.dropout("input", 0.5));
    return {
        .terms = {{.name = "loss",
                   .sum = nn::vocab_loss(x, *head_, batch.tensor("labels"), 0.0, context).sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").numel())};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& /*batch*/) const override {
    return at_once_;
  }

 private:
  std::int64_t at_once_;
  Runs& runs_;
  Param* head_ = nullptr;
};

struct Trained {
  Runs runs;
  double loss = 0.0;
  ModelRunner::Tensors grads;

  explicit Trained(std::int64_t at_once) {
    nn::Model model;
    model.blocks.push_back({"table", [] { return std::make_unique<Table>(); }});
    model.blocks.push_back(
        {"loss", [this, at_once] { return std::make_unique<Loss>(at_once, runs); }});
    ModelRunner runner(model);
    runner.initialize(3);
    const at::Tensor ids = at::arange(kSamples * kTokens, at::kLong).view({kSamples, kTokens});
    runs.clear();  // entries from the run that determined the shapes
    loss = runner.train(test::make_batch(ids.remainder(kVocab), (ids * 7).remainder(kVocab), 10));
    grads = runner.grads;
  }
};

TEST(Objectives, TakeAllSamplesUnlessTheySayOtherwise) {
  EXPECT_EQ(Trained(0).runs, (Runs{{10, 11, 12, 13, 14}}));
  EXPECT_EQ(Trained(9).runs, (Runs{{10, 11, 12, 13, 14}}));
}

TEST(Objectives, TakeSomeSamplesAfterTheOthers) {
  EXPECT_EQ(Trained(2).runs, (Runs{{10, 11}, {12, 13}, {14}}));
}

TEST(Objectives, GiveTheSameLossAndGradientsHoweverManySamplesTheyTake) {
  const Trained all(0);
  for (const std::int64_t at_once : {1, 2, 3}) {
    SCOPED_TRACE(at_once);
    const Trained some(at_once);

    // Products of other numbers of rows.
    EXPECT_NEAR(some.loss, all.loss, 1e-6 * all.loss);
    // A row of the table gets the gradients of its own samples, in their order.
    EXPECT_LT(test::relative_error(some.grads.at("table.weight"), all.grads.at("table.weight")),
              1e-6);
    EXPECT_LT(test::relative_error(some.grads.at("loss.weight"), all.grads.at("loss.weight")),
              1e-6);
    EXPECT_GT(all.grads.at("loss.weight").abs().max().item<float>(), 1e-3F);
  }
}

}  // namespace
}  // namespace tessera::parallel
