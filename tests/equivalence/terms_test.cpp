// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Terms of the loss that blocks add, each divided by a count of its own, have the same weight in
// every layout: they count once, however many ranks, stages and micro-batches see them.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "equivalence/own_model.h"
#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"

namespace tessera::test {
namespace {

using enum LogicalAxis;

// Legend: B batch, T tokens, C channels, F features, V vocabulary.
constexpr std::int64_t kWidth = 16, kFeatures = 24, kVocab = 256;

/// The factor of the auxiliary term.
struct Weight {
  double of_term = 0.0;
};

class Table final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.add("table", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.5));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  Param* table_ = nullptr;
};

/// Features that tensor-parallel ranks share, and a term of what all of them have whole.
class Layer final : public nn::Block {
 public:
  explicit Layer(Weight weight) : weight_(weight) {}

  void declare(nn::Params& params) override {
    up_ = params.add("up", {kFeatures, kWidth}, {Ffn, Embed}, Init::normal(0.2));
    down_ = params.add("down", {kWidth, kFeatures}, {Embed, Ffn}, Init::normal(0.2));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor& x_BTC = in.diff.at(0);
    const at::Tensor y_BTC =
        nn::linear(at::tanh(nn::linear(x_BTC, *up_, nullptr, context)), *down_, nullptr, context);
    nn::Outcome out = {.flow = {.diff = {x_BTC + y_BTC}}};
    out.terms.push_back({.name = "size",
                         .sum = y_BTC.to(at::kDouble).square().sum(),
                         .denominator = 1,
                         .weight = weight_.of_term});
    return out;
  }

 private:
  Weight weight_;
  Param* up_ = nullptr;
  Param* down_ = nullptr;
};

class Loss final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    head_ = params.add("head", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    return {
        .terms = {
            {.name = "loss",
             .sum =
                 nn::vocab_loss(in.diff.at(0), *head_, batch.tensor("labels"), 0.0, context).sum}}};
  }
  /// Labels; sequences.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const at::Tensor& labels_BT = batch.tensor("labels");
    return {static_cast<double>(labels_BT.numel()), static_cast<double>(labels_BT.size(0))};
  }

 private:
  Param* head_ = nullptr;
};

nn::Model model_of(Weight weight) {
  nn::Model model;
  model.blocks.push_back({"table", [] { return std::make_unique<Table>(); }});
  for (int layer = 0; layer < 4; ++layer) {
    model.blocks.push_back(
        {"layer." + std::to_string(layer), [weight] { return std::make_unique<Layer>(weight); }});
  }
  model.blocks.push_back({"loss", [] { return std::make_unique<Loss>(); }});
  return model;
}

constexpr Weight kSome{0.05}, kNone{0.0};
constexpr Layout kOne = {.ranks = 1, .accumulation = 4, .stage = 0};

// Counting the term twice would show: it adds a tenth of the loss or more.
TEST(Terms, AreALargePartOfLossAndGradient) {
  const TinyRun run;
  const Trace with = train_own(model_of(kSome), run, kOne),
              without = train_own(model_of(kNone), run, kOne);

  ASSERT_EQ(with.losses.size(), 3U);
  EXPECT_GT(with.losses[0], 1.1 * without.losses[0]);
  EXPECT_GT(with.grad_norms[0], 1.1 * without.grad_norms[0]);
}

TEST(Terms, AreTheSameToTheBitWhateverSharesTheMicroBatches) {
  const TinyRun run;
  const Trace reference = train_own(model_of(kSome), run, kOne);

  for (const Layout& layout :
       std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                           {.ranks = 4, .accumulation = 1, .stage = 3},
                           {.ranks = 2, .accumulation = 4, .stage = 0, .pipeline = "2"},
                           {.ranks = 4, .accumulation = 2, .stage = 2, .pipeline = "2"}}) {
    SCOPED_TRACE(text_of(layout));
    expect_same_bits(reference, train_own(model_of(kSome), run, layout));
  }
}

TEST(Terms, CountOnceWhereRanksShareALayer) {
  const TinyRun run;
  const Trace reference = train_own(model_of(kSome), run, kOne);

  for (const Layout& layout : std::vector<Layout>{
           {.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2},
           {.ranks = 4, .accumulation = 2, .stage = 3, .tensor = 2},
           {.ranks = 4, .accumulation = 4, .stage = 1, .tensor = 4},
           {.ranks = 4, .accumulation = 4, .stage = 0, .pipeline = "2", .tensor = 2}}) {
    SCOPED_TRACE(text_of(layout));
    expect_close(reference, train_own(model_of(kSome), run, layout), kLoss);
  }
}

}  // namespace
}  // namespace tessera::test
