// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// A pipeline against one rank with the same micro-batches: the same bits, whatever the schedule.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/own_model.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/nn/functional.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

using enum LogicalAxis;

constexpr std::int64_t kSteps = 3;

constexpr std::array kSchedules = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

std::string pipeline(int size, const std::string& schedule) {
  return "{\"size\": " + std::to_string(size) + ", \"schedule\": \"" + schedule + "\"}";
}

/// Six blocks or more, which four stages hold unevenly; nothing is small enough to stay whole in
/// stage 3.
TinyRun deep_run(int layers = 4) {
  TinyRun run;
  run.set("model.num_layers", std::to_string(layers))
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  return run;
}

/// Two stages of every schedule against one rank.
void expect_schedules_equal(const TinyRun& run) {
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(kSteps));
  for (const char* schedule : kSchedules) {
    SCOPED_TRACE(schedule);
    expect_same_bits(
        reference,
        run.train({.ranks = 2, .accumulation = 4, .stage = 0, .pipeline = pipeline(2, schedule)},
                  kSteps));
  }
}

TEST(Pipeline, OfTwoStagesGivesTheBitsOfOneRankInEverySchedule) {
  expect_schedules_equal(deep_run());
}

TEST(Pipeline, InterleavesAnyNumberOfMicroBatchesFromThatOfItsStagesOn) {
  const TinyRun run = deep_run();
  for (const int micros : {3, 5}) {
    SCOPED_TRACE(micros);
    expect_same_bits(run.train({.ranks = 1, .accumulation = micros, .stage = 0}, 2),
                     run.train({.ranks = 2,
                                .accumulation = micros,
                                .stage = 0,
                                .pipeline = pipeline(2, "interleaved")},
                               2));
  }
}

TEST(Pipeline, TheSameWithAnUntiedHeadInBf16) {
  TinyRun run = deep_run();
  run.set("bf16.enabled", "true").set("model.tie_embeddings", "false");

  expect_schedules_equal(run);
}

TEST(Pipeline, TheSameInFp16) {
  TinyRun run = deep_run();
  run.set("fp16.enabled", "true");

  expect_schedules_equal(run);
}

TEST(Pipeline, TheSameWithRecomputedBlocks) {
  for (const char* kind : {"\"full\"", "\"selective\""}) {
    SCOPED_TRACE(kind);
    TinyRun run = deep_run();
    run.set("activation_checkpointing.granularity", kind);
    expect_schedules_equal(run);
  }
}

// The table has 256 x 8 elements, and the two norms are padded to as many: the last stage writes
// both at once.
TEST(Pipeline, TheSameWithATiedTableAsLargeAsTheNormOfItsBlock) {
  for (const char* sums : {"fp32", "bf16"}) {
    SCOPED_TRACE(sums);
    TinyRun run = deep_run();
    run.set("model.hidden_size", "8")
        .set("model.num_heads", "2")
        .set("bf16.enabled", "true")
        .set("data_types.grad_accum_dtype", std::string("\"") + sums + "\"");
    expect_schedules_equal(run);
  }
}

TEST(Pipeline, OfFourStagesOverUnevenLayersGivesTheBitsOfOneRank) {
  const TinyRun run = deep_run(7);
  const Trace reference = run.train({.ranks = 1, .accumulation = 8, .stage = 0}, kSteps);

  for (const char* schedule : kSchedules) {
    SCOPED_TRACE(schedule);
    expect_same_bits(
        reference,
        run.train({.ranks = 4, .accumulation = 8, .stage = 0, .pipeline = pipeline(4, schedule)},
                  kSteps));
  }
}

/// Every ZeRO stage over two data-parallel ranks in every schedule; tied and untied heads take
/// turns, so that each stage and each schedule has both.
TEST(Pipeline, TimesDataParallelGivesTheBitsOfOneRankInEveryStageOfZero) {
  for (const std::size_t untied : {0U, 1U}) {
    TinyRun run = deep_run();
    run.set("model.tie_embeddings", untied == 0 ? "true" : "false");
    const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
    for (std::size_t s = 0; s < kSchedules.size(); ++s) {
      for (const int stage : {0, 1, 2, 3}) {
        if ((s + static_cast<std::size_t>(stage)) % 2 != untied) continue;
        SCOPED_TRACE(std::string(kSchedules[s]) + ", stage " + std::to_string(stage));
        expect_same_bits(reference,
                         run.train({.ranks = 4,
                                    .accumulation = 2,
                                    .stage = stage,
                                    .pipeline = pipeline(2, kSchedules[s])},
                                   kSteps));
      }
    }
  }
}

TEST(Pipeline, ReducesWholeTensorsNormsAndNarrowSumsAlike) {
  for (const char* optimizer : {"Lamb", "Adafactor", "Muon"}) {
    SCOPED_TRACE(optimizer);
    TinyRun run = deep_run();
    run.set("optimizer", std::string("{\"type\": \"") + optimizer + "\", \"params\": {}}");
    expect_same_bits(
        run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps),
        run.train({.ranks = 4, .accumulation = 2, .stage = 2, .pipeline = pipeline(2, "zb-h1")},
                  kSteps));
  }
  for (const auto& [key, value] : {std::pair("gradient_reduction", "\"once\""),
                                   std::pair("data_types.grad_accum_dtype", "\"bf16\""),
                                   std::pair("communication_data_type", "\"bf16\""),
                                   std::pair("sparse_gradients", "true"),
                                   std::pair("gradient_clip_value", "0.01")}) {
    SCOPED_TRACE(key);
    TinyRun run = deep_run();
    run.set("bf16.enabled", "true").set(key, value);
    expect_same_bits(
        run.train({.ranks = 2, .accumulation = 2, .stage = 1}, kSteps),
        run.train({.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = pipeline(2, "1f1b")},
                  kSteps));
  }
}

TEST(Pipeline, TakesPaddedDocumentsAndAShortLastBatch) {
  TinyRun run = deep_run();
  run.use_padded_documents();
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 6);

  for (const char* schedule : kSchedules) {
    SCOPED_TRACE(schedule);
    expect_same_bits(
        reference,
        run.train({.ranks = 4, .accumulation = 2, .stage = 3, .pipeline = pipeline(2, schedule)},
                  6));
  }
}

TEST(Pipeline, PartitionsAgreeToTheBit) {
  const TinyRun run = deep_run();
  const Trace reference = run.train({.ranks = 1, .accumulation = 2, .stage = 0}, kSteps);

  for (const char* partition :
       {"\"uniform\"", "\"parameters\"", "\"balanced\"", "\"type:^h\"", "[0, 1, 6]", "[0, 5, 6]"}) {
    SCOPED_TRACE(partition);
    expect_same_bits(
        reference,
        run.train({.ranks = 2,
                   .accumulation = 2,
                   .stage = 0,
                   .pipeline = std::string("{\"size\": 2, \"partition\": ") + partition + "}"},
                  kSteps));
  }
}

TEST(Pipeline, ContinuesFromAndIntoOtherLayouts) {
  const TinyRun run = deep_run();
  const Layout one{.ranks = 1, .accumulation = 4, .stage = 0};
  const Layout two{.ranks = 4, .accumulation = 2, .stage = 3, .pipeline = pipeline(2, "1f1b")};
  const Layout four{.ranks = 4, .accumulation = 4, .stage = 1, .pipeline = pipeline(4, "zb-h1")};
  const Trace whole = run.train(one, 2 * kSteps);

  for (const auto& [from, to] :
       {std::pair(one, two), std::pair(two, four), std::pair(four, one), std::pair(two, two)}) {
    const files::TempDir folder;
    (void)run.train(from, kSteps, folder.path());
    const Trace rest = run.train(to, 2 * kSteps, {}, *checkpoint::newest(folder.path()));
    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }
}

TEST(Pipeline, MakesTheTextOfOneRank) {
  TinyRun run = deep_run();
  run.set("eval.prompt", "\"the cat\"").set("eval.max_new_tokens", "12");
  const auto text = [&](const Layout& layout) {
    engine::prepare_process(1);
    const planner::Plan made = run.plan(layout);
    const auto data = engine::open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    std::string out;
    comm::run_threads(plan.mesh(), [&](comm::World& world) {
      engine::Engine engine(plan, world, data);
      engine.initialize_weights();
      engine.train_step();
      const std::string made = engine.sample();
      if (world.is_leader()) out = made;
      engine.finish();
      world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
    });
    return out;
  };
  const std::string reference = text({.ranks = 1, .accumulation = 4, .stage = 0});
  ASSERT_GT(reference.size(), std::string("the cat").size());

  for (const char* schedule : {"1f1b", "interleaved", "zb-v"}) {
    for (const int stage : {0, 3}) {
      EXPECT_EQ(
          reference,
          text({.ranks = 4, .accumulation = 2, .stage = stage, .pipeline = pipeline(2, schedule)}));
    }
  }
}

// -- a program's own blocks ----------------------------------------------------------------------

// Legend: B batch, T tokens, C channels, V vocabulary.
constexpr std::int64_t kWidth = 16, kVocab = 256;

class OwnTable final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    table_ = params.tied("table", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.1));
    second_ = params.tied("second", {kWidth}, {Embed}, Init::ones());
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    const at::Tensor x_BTC = nn::embedding(ids_BT, *table_, context) * second_->tensor();
    return {.flow = {.diff = {x_BTC, x_BTC.sum(-1)}, .fixed = {ids_BT + 1}}};
  }

 private:
  Param* table_ = nullptr;
  Param* second_ = nullptr;
};

/// Plain autograd on its parameters, two differentiable tensors, one that is carried along, and a
/// term of the loss.
class OwnLayer final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {kWidth, kWidth}, {Embed, Embed}, Init::normal(0.2));
    scale_ = params.add("scale", {kWidth}, {Embed}, Init::ones());
    second_ = params.tied("second", {kWidth}, {Embed}, Init::ones());
  }
  nn::Outcome forward(nn::Flow in,
                      const nn::Batch& /*batch*/,
                      nn::StepContext& /*context*/) override {
    const at::Tensor &x_BTC = in.diff.at(0), &s_BT = in.diff.at(1), &next_BT = in.fixed.at(0);
    const at::Tensor y_BTC =
        at::tanh(at::matmul(x_BTC, weight_->tensor())) * scale_->tensor() * second_->tensor();
    const at::Tensor even_BT = next_BT.remainder(2).to(at::kFloat);
    nn::Outcome out = {
        .flow = {.diff = {x_BTC + y_BTC, s_BT + y_BTC.sum(-1) * even_BT}, .fixed = {next_BT}}};
    out.terms.push_back(
        {.name = "small", .sum = y_BTC.to(at::kDouble).square().sum(), .weight = 0.01});
    out.terms.push_back(
        {.name = "even", .sum = s_BT.to(at::kDouble).square().sum(), .weight = 0.01});
    return out;
  }

 private:
  Param* weight_ = nullptr;
  Param* scale_ = nullptr;
  Param* second_ = nullptr;
};

class OwnLoss final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    table_ = params.tied("table", {kVocab, kWidth}, {Vocab, Embed}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = in.diff.at(0) + in.diff.at(1).unsqueeze(-1);
    return {.terms = {
                {.name = "loss",
                 .sum = nn::vocab_loss(x_BTC, *table_, batch.tensor("labels"), 0.0, context).sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").numel())};
  }

 private:
  Param* table_ = nullptr;
};

nn::Model own_model() {
  nn::Model model;
  model.blocks.push_back({"table", [] { return std::make_unique<OwnTable>(); }});
  for (int layer = 0; layer < 6; ++layer)
    model.blocks.push_back(
        {"own." + std::to_string(layer), [] { return std::make_unique<OwnLayer>(); }});
  model.blocks.push_back({"loss", [] { return std::make_unique<OwnLoss>(); }});
  return model;
}

/// Several tied groups, one of them on every stage but the last; terms of many blocks.
TEST(Pipeline, TakesAProgramsOwnBlocksAsTheyAre) {
  const TinyRun run;
  const Trace reference = train_own(own_model(), run, {.ranks = 1, .accumulation = 4, .stage = 0});
  ASSERT_EQ(reference.losses.size(), 3U);

  for (const char* schedule : kSchedules) {
    for (const int stage : {0, 3}) {
      SCOPED_TRACE(schedule);
      expect_same_bits(
          reference,
          train_own(
              own_model(),
              run,
              {.ranks = 4, .accumulation = 2, .stage = stage, .pipeline = pipeline(2, schedule)}));
    }
    expect_same_bits(
        reference,
        train_own(own_model(),
                  run,
                  {.ranks = 4, .accumulation = 4, .stage = 0, .pipeline = pipeline(4, schedule)}));
  }
}

/// An overflow is found on any stage, and all stages skip the step.
TEST(Pipeline, SkipsOverflowsAlikeAndNamesTheSamePlace) {
  TinyRun run = deep_run();
  run.set("fp16", R"({"enabled": true, "initial_scale_power": 40, "hysteresis": 1})");
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 5);
  ASSERT_GE(reference.skipped.back(), 4);

  const Trace spread =
      run.train({.ranks = 4, .accumulation = 2, .stage = 2, .pipeline = pipeline(2, "zb-h1")}, 5);

  // Norms are not finite, and compare with nothing.
  EXPECT_EQ(reference.losses, spread.losses);
  EXPECT_EQ(reference.skipped, spread.skipped);
  EXPECT_EQ(reference.digest, spread.digest);
  EXPECT_EQ(reference.loss_scales, spread.loss_scales);
  // Up to the rank and its own count of micro-batches.
  const auto tensor_and_block = [](const std::string& reason) {
    return reason.substr(0, reason.find(" on rank"));
  };
  ASSERT_EQ(reference.skip_reasons.size(), spread.skip_reasons.size());
  for (std::size_t i = 0; i < reference.skip_reasons.size(); ++i)
    EXPECT_EQ(tensor_and_block(reference.skip_reasons[i]),
              tensor_and_block(spread.skip_reasons[i]));
}

}  // namespace
}  // namespace tessera::test
