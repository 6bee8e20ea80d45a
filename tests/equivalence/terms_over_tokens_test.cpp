// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Several terms of the loss, each divided by a count of its own, where ranks share the tokens of a
// sample: loss and gradients are the same as on one rank.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/own_model.h"
#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::test {
namespace {

// The objective's counts: labels that are not ignored, tokens, tokens of even number.
enum Count : int { kLabels, kAllTokens, kEvenTokens };

/// The size of a block's output as an additional term of the loss.
struct Beside {
  Count count = kAllTokens;
  double weight = 0;

  void add(nn::Outcome& out, const at::Tensor& flow, nn::StepContext& context) const {
    out.terms.push_back({.name = "size",
                         .sum = nn::flow_sum(flow.to(at::kDouble).square(), context),
                         .denominator = count,
                         .weight = weight});
  }
};

class Layer final : public nn::Block {
 public:
  Layer(std::unique_ptr<nn::Block> inner, Beside beside)
      : inner_(std::move(inner)), beside_(beside) {}
  void declare(nn::Params& params) override { inner_->declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    nn::Outcome out = inner_->forward(std::move(in), batch, context);
    beside_.add(out, out.flow.diff.at(0), context);
    return out;
  }

 private:
  std::unique_ptr<nn::Block> inner_;
  Beside beside_;
};

class Head final : public nn::Objective {
 public:
  Head(std::unique_ptr<nn::Block> inner, Beside beside)
      : block_(std::move(inner)), inner_(dynamic_cast<nn::Objective&>(*block_)), beside_(beside) {}
  void declare(nn::Params& params) override { inner_.declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor flow = in.diff.at(0);
    nn::Outcome out = inner_.forward(std::move(in), batch, context);
    beside_.add(out, flow, context);
    return out;
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    std::vector<double> out = inner_.denominators(batch);
    out.push_back(static_cast<double>(ids_BT.numel()));
    out.push_back(ids_BT.remainder(2).eq(0).sum().item<double>());
    return out;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return inner_.samples_at_once(batch);
  }

 private:
  std::unique_ptr<nn::Block> block_;
  nn::Objective& inner_;
  Beside beside_;
};

/// Additional terms of each of two layers and of the head.
struct Beside3 {
  Beside first, second, head;
};
constexpr double kWeight = 20;
constexpr Beside3 kOwnCounts = {{kAllTokens, kWeight}, {kEvenTokens, kWeight}, {kLabels, kWeight}};

/// GPT-2 with additional terms of the loss, in a layout whose ranks share tokens.
planner::Plan plan_of(const TinyRun& run, const Layout& layout, const Beside3& beside) {
  const planner::Plan plan = run.plan(layout);
  planner::ModelPlan model = plan.model();
  std::vector<nn::BlockSpec>& blocks = model.resolved.model.blocks;
  TESSERA_ASSERT(blocks.size() == 4);
  const auto wrap = [&](std::size_t block, Beside term) {
    const auto make = blocks[block].make;
    if (block + 1 == blocks.size()) {
      blocks[block].make = [make, term] { return std::make_unique<Head>(make(), term); };
    } else {
      blocks[block].make = [make, term] { return std::make_unique<Layer>(make(), term); };
    }
  };
  wrap(1, beside.first);
  wrap(2, beside.second);
  wrap(3, beside.head);
  return planner::with(plan, std::move(model));
}

/// Padded documents: ranks and micro-batches have different counts.
TinyRun padded_run() {
  TinyRun run;
  run.use_padded_documents().set("gradient_clipping", "0");
  return run;
}

struct Trained {
  Trace trace;
  Gradient gradient;  ///< gradient of the first step

  Trained(const TinyRun& run, const Layout& layout, const Beside3& beside = kOwnCounts) {
    const files::TempDir first, last;
    (void)train_plan(plan_of(run, layout, beside), 1, first.path());
    gradient = first_moments(first.path());
    trace = train_plan(plan_of(run, layout, beside), 3, last.path());
  }
};

constexpr Layout kOne = {.ranks = 1, .accumulation = 2, .stage = 0};

// Dividing a term by another term's count would show: it changes the result by fifty times the
// bound below.
TEST(TermsOverTokens, AreALargePartOfTheLossAndTheirCountsDiffer) {
  const TinyRun run = padded_run();
  const double loss = Trained(run, kOne).trace.losses.at(0);
  const auto loss_with = [&](const Beside3& beside) {
    return Trained(run, kOne, beside).trace.losses.at(0);
  };

  EXPECT_GT(loss, 1.05 * loss_with({}));
  for (const Count count : {kLabels, kAllTokens, kEvenTokens}) {
    const Beside same = {count, kWeight};
    EXPECT_GT(std::abs(loss - loss_with({same, same, same})), 50 * kLoss * loss);
  }
}

TEST(TermsOverTokens, KeepTheirOwnCountsWhenTheyAreShared) {
  const TinyRun run = padded_run();
  for (const Layout& layout : std::vector<Layout>{
           {.ranks = 2, .accumulation = 2, .stage = 0, .context = 2},
           {.ranks = 2, .accumulation = 2, .stage = 0, .context = 2, .context_mode = "ulysses"},
           {.ranks = 4, .accumulation = 1, .stage = 1, .context = 2},
           {.ranks = 2, .accumulation = 2, .stage = 0, .tensor = 2, .sequence = true},
           {.ranks = 4, .accumulation = 1, .stage = 3, .tensor = 2, .sequence = true},
           {.ranks = 4,
           .accumulation = 2,
           .stage = 0,
           .pipeline = "2",
           .tensor = 2,
           .sequence = true},
           {.ranks = 4, .accumulation = 2, .stage = 0, .tensor = 2, .sequence = true, .context = 2},
           {.ranks = 4,
           .accumulation = 2,
           .micro_batch = 2,
           .stage = 0,
           .tensor = 4,
           .mode = "2d"}}) {
    SCOPED_TRACE(text_of(layout));
    const Trained one(run, one_rank(layout)), shared(run, layout);

    expect_close(one.gradient, shared.gradient, kGradient);
    expect_close(one.trace, shared.trace, kLoss);
  }
}

}  // namespace
}  // namespace tessera::test
