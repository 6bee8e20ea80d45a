// SPDX-License-Identifier: Apache-2.0
// labels: fast
// A training with experts on several ranks, compared with the same training on one rank and with
// all experts on every rank.
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel/toy_experts.h"
#include <gtest/gtest.h>

namespace tessera::parallel {
namespace {

using toy::Result;
using toy::train;
using toy::Training;

/// The layouts of four ranks, and one of eight, whose experts are divided.
std::vector<Training> divided() {
  return {
      {.ranks = 4, .ep = 2}, {.ranks = 4, .ep = 4}, {.ranks = 2, .ep = 2}, {.ranks = 8, .ep = 4}};
}

std::string text(const Training& how) {
  return std::to_string(how.ranks) + " ranks, experts divided among " + std::to_string(how.ep) +
         ", stage " + std::to_string(how.reduction.stage);
}

TEST(ExpertTraining, GivesTheBitsOfOneRankInEveryStage) {
  const Result one = train({});
  ASSERT_GT(one.norms.back(), 0.0);
  for (const int stage : {0, 1, 2, 3}) {
    for (Training how : divided()) {
      how.reduction.stage = stage;
      EXPECT_EQ(train(how), one) << text(how);
    }
  }
}

// One rank and four differ where each rank adds its own gradients first, or rounds sums after every
// accumulation step; layouts of the same four ranks do not.
TEST(ExpertTraining, GivesTheBitsOfUndividedExpertsForEveryReduction) {
  const std::vector<ReductionOptions> reductions = {
      {.mode = Reduction::Once},
      {.accumulate = DType::BF16},
      {.mode = Reduction::Once, .accumulate = DType::BF16},
      {.comm_dtype = DType::BF16},
      {.mode = Reduction::Once, .comm_dtype = DType::BF16},
      {.comm_dtype = DType::U8},
  };
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    for (const int stage : {0, 1, 2, 3}) {
      Training how{.ranks = 4, .reduction = reductions[i]};
      how.reduction.stage = stage;
      const Result undivided = train(how);
      how.ep = (i + static_cast<std::size_t>(stage)) % 2 == 0 ? 2 : 4;
      EXPECT_EQ(train(how), undivided) << text(how) << ", reduction " << i;
    }
  }
}

TEST(ExpertTraining, GivesTheSameBitsInGroupsThatHoldAllWeights) {
  const Result one = train({});
  for (const int ep : {1, 2}) {
    Training how{.ranks = 4, .ep = ep, .shards = 2, .reduction = {.stage = 3}};
    EXPECT_EQ(train(how), one) << text(how);
  }
}

// Each matrix of an expert is a parameter of its own for these rules.
TEST(ExpertTraining, GivesTheSameBitsForRulesOfWholeMatrices) {
  for (const std::string optimizer : {"LAMB", "LARS", "Muon", "Adafactor"}) {
    const Result one = train({.optimizer = optimizer});
    for (const int stage : {0, 2, 3}) {
      for (const int ep : {2, 4}) {
        const Training how{
            .ranks = 4, .ep = ep, .reduction = {.stage = stage}, .optimizer = optimizer};
        EXPECT_EQ(train(how), one) << optimizer << ", " << text(how);
      }
    }
  }
}

// The last micro-batch has no samples: one of the ranks takes part in exchanges alone.
TEST(ExpertTraining, TakesPartWithoutSamplesAlsoWhereBlocksRunAgainOrWeightsComeLater) {
  const Result one = train({});
  for (const bool recompute : {false, true}) {
    for (const bool splits : {false, true}) {
      const Training how{.ranks = 4,
                         .ep = 4,
                         .reduction = {.stage = 3},
                         .recompute = recompute,
                         .splits_backward = splits};
      EXPECT_EQ(train(how), one) << "again " << recompute << ", weights later " << splits;
    }
  }
}

TEST(ExpertTraining, GoesOnFromASaveOfAnyDivision) {
  for (const std::string optimizer : {"AdamW", "Adafactor"}) {
    const Result whole = train({.optimizer = optimizer}, 0, 4);
    const Result half =
        train({.ranks = 4, .ep = 2, .reduction = {.stage = 1}, .optimizer = optimizer}, 0, 2);
    const checkpoint::Checkpoint saved = toy::Saved::of(half, 2);
    for (const int ep : {1, 4}) {
      const Training how{.ranks = 4,
                         .ep = ep,
                         .reduction = {.stage = ep == 1 ? 2 : 3},
                         .optimizer = optimizer,
                         .from = &saved};
      EXPECT_EQ(train(how, 2, 2).tensors, whole.tensors) << optimizer << ", " << text(how);
    }
  }
}

/// Matrices with known gradients, as one stacked parameter or as a parameter each.
class Matrices final : public nn::Objective {
 public:
  static constexpr std::int64_t kRows = 30, kColumns = 50, kNumel = kRows * kColumns;
  explicit Matrices(bool stacked) : stacked_(stacked) {}
  void declare(nn::Params& params) override {
    using enum LogicalAxis;
    if (stacked_) {
      params_ = {params.add(
          "matrices", {toy::kE, kRows, kColumns}, {Expert, Ffn, Embed}, Init::normal(1.0))};
      return;
    }
    for (std::int64_t e = 0; e < toy::kE; ++e) {
      params_.push_back(params.add(
          "matrix" + std::to_string(e), {kRows, kColumns}, {Ffn, Embed}, Init::normal(1.0)));
    }
  }
  nn::Outcome forward(nn::Flow, const nn::Batch& batch, nn::StepContext&) override {
    const auto sample = static_cast<double>(batch.sample_ids.front());
    const at::Tensor places = at::arange(toy::kE * kNumel, at::kDouble) * (0.3 + sample);
    const at::Tensor wanted = at::sin(places).to(at::kFloat).view({toy::kE, kRows, kColumns});
    at::Tensor sum = at::zeros({}, at::kFloat);
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const at::Tensor gradient = stacked_ ? wanted : wanted[static_cast<std::int64_t>(i)];
      sum = sum + (params_[i]->tensor() * gradient).sum();
    }
    return {.terms = {{.name = "loss", .sum = sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch&) const override { return {1.0}; }

 private:
  bool stacked_;
  std::vector<Param*> params_;
};

/// The matrices and their states after two updates, matrix after matrix, by the name of the state.
std::map<std::string, std::vector<float>> updated(bool stacked,
                                                  const std::string& optimizer,
                                                  int ranks) {
  Result result;
  std::map<std::string, std::vector<int>> writers;
  std::mutex mutex;
  comm::run_threads(ranks, [&](comm::World& world) {
    config::Problems problems;
    config::Origins origins;
    const auto rule = optim::rule_factory(optimizer)(json::Value(), problems, origins);
    nn::Model blocks;
    blocks.blocks.push_back({"all", [=] { return std::make_unique<Matrices>(stacked); }});
    const int stage = ranks > 1 ? 2 : 0;
    ModelInstance model(
        blocks, {.residency = stage > 0 ? Residency::Whole : Residency::Replicated}, world);
    ShardedOptimizer updates(world, model, *rule, stage, {});
    updates.fill([&](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
      const std::int64_t matrix = stacked ? 0 : info.name.back() - '0';
      for (std::int64_t i = begin + matrix * Matrices::kNumel; i < end + matrix * Matrices::kNumel;
           ++i)
        *out++ = static_cast<float>(std::cos(0.1 * static_cast<double>(i)));
    });
    GradientReduction gradients(world, model, {.stage = stage});
    Executor executor(model, {&gradients});
    for (std::int64_t step = 0; step < 2; ++step) {
      StepInput input{.step = step, .seed = 1};
      input.load = [&](int) {
        nn::Batch batch;
        batch.sample_ids = {step};
        return batch;
      };
      input.global_denominators = [](const auto&) { return std::vector<double>{1.0}; };
      updates.wait_weights();
      executor.train(accumulation_schedule(1), input);
      gradients.finish();
      updates.update(gradients, {.lr = 0.01, .step = step + 1});
    }
    updates.wait_weights();
    {
      const auto pieces = updates.pieces(/*for_save=*/true);
      const std::scoped_lock lock(mutex);
      for (const checkpoint::PieceBytes& piece : pieces)
        toy::keep(piece, result, writers);
    }
    updates.release_pieces();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  std::map<std::string, std::vector<float>> out;
  for (const auto& [name, values] : result.tensors) {
    std::vector<float>& all = out[name.substr(0, name.find("all."))];
    all.insert(all.end(), values.begin(), values.end());
  }
  return out;
}

TEST(StackedParameters, AreUpdatedLikeAParameterForEachMatrix) {
  for (const std::string optimizer : {"AdamW", "LAMB", "LARS", "Muon", "Adafactor"}) {
    for (const int ranks : {1, 3})
      EXPECT_EQ(updated(true, optimizer, ranks), updated(false, optimizer, ranks))
          << optimizer << " on " << ranks << " ranks";
  }
}

}  // namespace
}  // namespace tessera::parallel
