// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Optimizers that exchange signs: the bits are the same in all stages that they support, in a
// second run and after a resume, for the same number of ranks. Also tests what they move.
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/resume.h"
#include "tessera/parallel/compressed/compressed_reduce.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 6;

/// Signs from the fourth update on. A larger eps than usual: rare bytes have tiny mean squares
/// after so short a warm-up.
TinyRun run_of(const std::string& optimizer, const std::string& more = "") {
  TinyRun run;
  const std::string freeze = optimizer == "ZeroOneAdam"
                                 ? R"("var_freeze_step": 3, "var_update_scaler": 1,
                                      "local_step_scaler": 2, "local_step_clipper": 4)"
                                 : R"("freeze_step": 3)";
  run.set("optimizer",
          R"({"type": ")" + optimizer + R"(", "params": {"lr": 1e-3, "eps": 1e-4,
             "weight_decay": 0.1, )" +
              freeze + more + "}}");
  return run;
}

class Compressed : public ::testing::TestWithParam<std::string> {};

TEST_P(Compressed, GivesTheSameBitsInStages0And1AndAgain) {
  const TinyRun run = run_of(GetParam());
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Trace zero = run.train({.ranks = ranks, .accumulation = 2, .stage = 0}, kSteps);

    ASSERT_EQ(zero.losses.size(), static_cast<std::size_t>(kSteps));
    expect_same_bits(zero, run.train({.ranks = ranks, .accumulation = 2, .stage = 1}, kSteps));
    if (ranks == 2)
      expect_same_bits(zero, run.train({.ranks = ranks, .accumulation = 2, .stage = 0}, kSteps));
  }
}

TEST_P(Compressed, GivesTheSameBitsInStages0And1InBf16) {
  TinyRun run = run_of(GetParam());
  run.set("bf16.enabled", "true").set("data_types.grad_accum_dtype", "\"bf16\"");

  expect_same_bits(run.train({.ranks = 2, .accumulation = 2, .stage = 0}, kSteps),
                   run.train({.ranks = 2, .accumulation = 2, .stage = 1}, kSteps));
}

/// Ranks exchange within a stage; a tied table is on two stages and is saved by the first.
TEST(CompressedInAPipeline, GivesTheSameBitsAsWithoutOne) {
  for (const char* optimizer : {"OneBitAdam", "ZeroOneAdam"}) {
    for (const char* tied : {"true", "false"}) {
      TinyRun run = run_of(optimizer);
      run.set("model.tie_embeddings", tied);
      const Trace plain = run.train({.ranks = 2, .accumulation = 2, .stage = 0}, kSteps);
      ASSERT_EQ(plain.losses.size(), static_cast<std::size_t>(kSteps));
      for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
        for (const int stage : {0, 1}) {
          SCOPED_TRACE(fmt::format("{}, tied {}, {}, stage {}", optimizer, tied, schedule, stage));
          const std::string pipeline = fmt::format(R"({{"size": 2, "schedule": "{}"}})", schedule);
          expect_same_bits(
              plain,
              run.train({.ranks = 4, .accumulation = 2, .stage = stage, .pipeline = pipeline},
                        kSteps));
        }
      }
    }
  }
}

TEST(CompressedInAPipeline, OfOneReplicaGivesTheBitsOfOneRank) {
  for (const char* optimizer : {"OneBitAdam", "ZeroOneAdam"}) {
    SCOPED_TRACE(optimizer);
    const TinyRun run = run_of(optimizer);

    expect_same_bits(
        run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps),
        run.train({.ranks = 2, .accumulation = 4, .stage = 0, .pipeline = "2"}, kSteps));
  }
}

TEST(CompressedInAPipeline, ContinuesWithoutItAndBackWithTheSameBits) {
  for (const char* optimizer : {"OneBitAdam", "ZeroOneAdam"}) {
    SCOPED_TRACE(optimizer);
    const TinyRun run = run_of(optimizer);
    const Layout plain{.ranks = 2, .accumulation = 2, .stage = 0},
        pipeline{.ranks = 4, .accumulation = 2, .stage = 1, .pipeline = "2"};
    const Trace whole = run.train(plain, 2 * kSteps);

    // After the freeze; ranks of 0/1 Adam are between two exchanges.
    for (const auto& [first, second] : {std::pair(plain, pipeline), std::pair(pipeline, plain)}) {
      const files::TempDir folder;
      (void)run.train(first, 9, folder.path());
      const Trace rest = run.train(second, 2 * kSteps, {}, *checkpoint::newest(folder.path()));
      EXPECT_EQ(rest.digest, whole.digest);
      EXPECT_EQ(rest.eval_losses, whole.eval_losses);
    }
  }
}

/// No rank knows the sum of all ranks' gradients then, so that a rank's own gradient is named.
TEST(CompressedUpdates, ThatOverflowAreSkippedWithAReason) {
  TinyRun run = run_of("OneBitAdam");
  run.set("fp16.enabled", "true")
      .set("fp16.initial_scale_power", "14")
      .set("fp16.hysteresis", "1")
      .set("fp16.loss_scale_window", "1");

  const Trace trace = run.train({.ranks = 2, .accumulation = 1, .stage = 1}, 24);

  // The scale doubles until something overflows, long after three updates.
  ASSERT_GT(trace.skipped.back(), 0);
  ASSERT_EQ(trace.skipped[3], 0);
  for (std::size_t s = 0; s < trace.skip_reasons.size(); ++s) {
    const bool skipped = trace.skipped[s] > (s == 0 ? 0 : trace.skipped[s - 1]);
    if (skipped) {
      EXPECT_THAT(
          trace.skip_reasons[s],
          AllOf(HasSubstr("the gradient of "), HasSubstr(" on rank "), HasSubstr("is not finite")));
    }
  }
}

TEST_P(Compressed, ContinuesFromAnyStepWithTheSameBits) {
  const TinyRun run = run_of(GetParam());
  const Layout zero{.ranks = 2, .accumulation = 1, .stage = 0},
      one{.ranks = 2, .accumulation = 1, .stage = 1};
  const std::int64_t end = 2 * kSteps;
  const Trace whole = run.train(zero, end);

  // Stops in the warm-up, at its end, and where ranks of 0/1 Adam are between two exchanges.
  for (const std::int64_t stop : {2, 3, 4, 7, 9}) {
    SCOPED_TRACE("stopped after " + std::to_string(stop));
    const files::TempDir folder;
    (void)run.train(stop % 2 == 0 ? one : zero, stop, folder.path());
    const Trace rest =
        run.train(stop % 2 == 0 ? zero : one, end, {}, *checkpoint::newest(folder.path()));
    EXPECT_EQ(rest.digest, whole.digest);
    EXPECT_EQ(rest.eval_losses, whole.eval_losses);
  }
}

TEST_P(Compressed, ContinuesOnAnotherNumberOfRanksFromTheSameWeights) {
  // A step at which ranks of 0/1 Adam exchange.
  constexpr std::int64_t kStop = 8, kEnd = kStop + 4;
  const TinyRun run = run_of(GetParam());
  const files::TempDir folder;
  const Layout two{.ranks = 2, .accumulation = 2, .stage = 0};
  (void)run.train(two, kStop, folder.path());
  const auto saved = *checkpoint::newest(folder.path());
  const Trace same = run.train(two, kEnd, {}, saved);

  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Trace rest =
        run.train({.ranks = ranks, .accumulation = 4 / ranks, .stage = 1}, kEnd, {}, saved);
    ASSERT_EQ(rest.losses.size(), same.losses.size());
    EXPECT_EQ(rest.losses.front(), same.losses.front());
    // Other signs, and still downhill.
    EXPECT_LT(rest.losses.back(), same.losses.front());
  }
}

/// Rows of a tensor of the checkpoint, the first whose name begins so.
std::vector<std::vector<float>> rows_of(const std::filesystem::path& folder,
                                        const std::string& head) {
  const checkpoint::Checkpoint opened(folder);
  for (const auto& tensor : opened.tensors()) {
    if (!tensor.name.starts_with(head)) continue;
    const std::int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    const std::int64_t length = tensor.shape.back();
    std::vector<std::vector<float>> out;
    for (std::int64_t r = 0; r < rows; ++r) {
      out.emplace_back(static_cast<std::size_t>(length));
      const checkpoint::PieceBytes piece{tensor.name,
                                         DType::F32,
                                         tensor.shape,
                                         {mesh::whole(tensor.shape), r * length, (r + 1) * length},
                                         std::as_writable_bytes(std::span<float>(out.back()))};
      opened.load({&piece, 1});
    }
    return out;
  }
  return {};
}

TEST_P(Compressed, GivesEveryOneOfOtherRanksTheMeanOfWhatRanksHad) {
  constexpr std::int64_t kStop = 10;
  const TinyRun run = run_of(GetParam());
  const files::TempDir two, four;
  (void)run.train({.ranks = 2, .accumulation = 2, .stage = 0}, kStop, two.path());
  const auto saved = *checkpoint::newest(two.path());

  (void)run.train({.ranks = 4, .accumulation = 1, .stage = 0}, kStop, four.path(), saved);

  const auto again = *checkpoint::newest(four.path());
  const bool own_steps = GetParam() == "ZeroOneAdam";
  for (const std::string state : {"worker_error", "server_error", "momentum_accumulator"}) {
    if (state == "momentum_accumulator" && !own_steps) continue;
    SCOPED_TRACE(state);
    const auto before = rows_of(saved, "optimizer." + state + "."),
               after = rows_of(again, "optimizer." + state + ".");
    ASSERT_EQ(before.size(), state == "server_error" ? 1U : 2U);
    ASSERT_EQ(after.size(), state == "server_error" ? 1U : 4U);
    EXPECT_NE(before[0], std::vector<float>(before[0].size()));
    // Tensors of this model need no padding, so that all elements mean something.
    ASSERT_EQ(before[0].size(), after[0].size());
    for (const std::vector<float>& row : after) {
      for (std::size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(row[i], before.size() == 1 ? before[0][i] : (before[0][i] + before[1][i]) / 2);
    }
  }
}

TEST_P(Compressed, LearnsAfterTheFreeze) {
  TinyRun run = run_of(GetParam());
  run.set("scheduler", R"({"type": "constant"})").set("model.dropout", "0");
  // The trust ratio makes rates smaller.
  if (GetParam() == "OneBitLamb") run.set("optimizer.params.lr", "2e-2");

  const Trace trace = run.train({.ranks = 2, .accumulation = 1, .micro_batch = 8, .stage = 1}, 40);

  const auto mean = [&](std::size_t first) {
    const auto begin = trace.losses.begin() + static_cast<std::ptrdiff_t>(first);
    return std::accumulate(begin, begin + 5, 0.0) / 5;
  };
  EXPECT_LT(mean(35), 0.9 * mean(5));
}

INSTANTIATE_TEST_SUITE_P(Registered,
                         Compressed,
                         ::testing::Values("OneBitAdam", "OneBitLamb", "ZeroOneAdam"),
                         [](const auto& info) { return info.param; });

TEST(OneBitAdam, WarmsUpAsAdamWithoutCorrections) {
  TinyRun adam;
  adam.set("optimizer", R"({"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-4,
                            "weight_decay": 0.1, "betas": [0.9, 0.999],
                            "bias_correction": false}})")
      .set("gradient_reduction", "\"once\"");
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1};

  expect_same_bits(run_of("OneBitAdam").train(layout, 3), adam.train(layout, 3));
}

/// Data that rank 0 moves in step `step`.
comm::Traffic traffic_of(const TinyRun& run, const Layout& layout, std::int64_t step) {
  engine::prepare_process(1);
  const planner::Plan made = run.plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  comm::Traffic out;
  comm::run_threads(layout.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    comm::Traffic before;
    while (engine.step() < step) {
      engine.finish();
      before = world.transport().traffic();
      engine.train_step();
    }
    engine.finish();
    if (world.is_leader()) {
      out.bytes = world.transport().traffic().bytes - before.bytes;
      out.elements = world.transport().traffic().elements - before.elements;
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return out;
}

/// Padded parameters of the model and how many there are.
struct Size {
  double elements = 0, tensors = 0;
};
Size size_of_model(const TinyRun& run, const Layout& layout) {
  const planner::Plan plan = run.plan(layout);
  Size size;
  const auto world = comm::solo_world();
  parallel::ModelInstance model(plan.model().resolved.model, {}, *world);
  for (const auto& [g, s] : model.canonical_order()) {
    const auto& group = model.groups()[static_cast<std::size_t>(g)];
    const auto& segment = group.layout.segments()[static_cast<std::size_t>(s)];
    size.elements +=
        static_cast<double>(parallel::CompressedReduce::padded_length(segment.numel, layout.ranks));
    size.tensors += 1;
  }
  return size;
}

// Counts of tokens, losses, norms and, of LAMB, three numbers for 1024 elements.
constexpr double kSmall = 4096;

TEST(SignTraffic, IsAThirtySecondOfThatOfGradients) {
  TinyRun run = run_of("OneBitAdam");
  run.set("model.hidden_size", "128");
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 0};
  const Size size = size_of_model(run, layout);

  const comm::Traffic exact = traffic_of(run, layout, 3), signs = traffic_of(run, layout, 4);

  // A reduce-scatter and a gather of fp32; two moves of signs, with a scale a tensor and rank.
  EXPECT_GT(static_cast<double>(exact.bytes), 8 * size.elements);
  EXPECT_GE(static_cast<double>(signs.bytes), size.elements / 4);
  EXPECT_LE(static_cast<double>(signs.bytes),
            static_cast<double>(exact.bytes) / 32 + 16 * size.tensors + kSmall);
}

TEST(SignTraffic, HasNoGradientsInStage1Either) {
  TinyRun run = run_of("OneBitAdam");
  run.set("model.hidden_size", "128");
  const Layout layout{.ranks = 2, .accumulation = 2, .stage = 1};
  const Size size = size_of_model(run, layout);

  // Not the step after the freeze, which gathers the momenta.
  const comm::Traffic signs = traffic_of(run, layout, 5);

  // The gather of new weights, padded to chunks of 1024, stays.
  EXPECT_LE(static_cast<double>(signs.bytes),
            (4 + 0.25) * size.elements + 4 * 1024 * 2 * size.tensors);
}

TEST(SignTraffic, OfZeroOneAdamRestsBetweenExchanges) {
  TinyRun run = run_of("ZeroOneAdam");
  run.set("model.hidden_size", "128");
  const Layout layout{.ranks = 2, .accumulation = 1, .stage = 0};

  // Updates 4 and 5 meet; then every second one does.
  EXPECT_GT(static_cast<double>(traffic_of(run, layout, 6).bytes), kSmall);
  EXPECT_LT(static_cast<double>(traffic_of(run, layout, 7).bytes), kSmall);
}

// Small things of the step, and padding.
constexpr double kShareOfRest = 0.02;

TEST(SignMemory, IsWhatIsPromisedAndPlanned) {
  TinyRun run = run_of("OneBitAdam");
  run.set("model.hidden_size", "128");
  for (const int stage : {0, 1}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const Layout layout{.ranks = 2, .accumulation = 1, .stage = stage};
    const double elements = size_of_model(run, layout).elements;
    // Momentum and errors of the rank; the mean square and the owner's errors.
    const double expected = 4 * elements * (2 + (stage == 0 ? 1 : 0.5) + 0.5);

    const auto measured = static_cast<double>(bytes(cost_of(run, layout), memory::Tag::Optimizer));

    EXPECT_NEAR(measured, expected, kShareOfRest * expected);
    // The plan counts messages too, three bits an element, and where momenta are gathered the
    // largest one twice, on its way.
    constexpr double kLargest = 4.0 * 128 * 128;
    const double on_the_way = elements * 3 / 8 + (stage == 0 ? 0 : 8 * kLargest);
    const auto planned = static_cast<double>(planner::estimate_memory(run.plan(layout)).optimizer);
    EXPECT_GE(planned, expected + on_the_way - kShareOfRest * expected);
    // The plan is that of the rank with the most elements, and the end of the last part is padding.
    const double uneven = stage == 0 ? 0 : 0.02;
    EXPECT_LE(planned, expected + on_the_way + (kShareOfRest + uneven) * expected);
  }
}

TEST(SignResume, ReportsAnotherNumberOfRanks) {
  const TinyRun run = run_of("OneBitAdam");
  const files::TempDir folder;
  (void)run.train({.ranks = 2, .accumulation = 2, .stage = 0}, 4, folder.path());
  const checkpoint::Checkpoint opened(*checkpoint::newest(folder.path()));
  const planner::Plan plan = run.plan({.ranks = 4, .accumulation = 1, .stage = 0});
  const auto data = engine::open_data(plan, {});

  const auto changes = engine::accepted_changes(opened.meta(), plan, *data);

  EXPECT_THAT(changes, ::testing::Contains(HasSubstr("2 data-parallel ranks -> 4")));
  const planner::Plan stages =
      run.plan({.ranks = 4, .accumulation = 2, .stage = 0, .pipeline = "2"});
  EXPECT_THAT(engine::accepted_changes(opened.meta(), stages, *data),
              ::testing::Not(::testing::Contains(HasSubstr("data-parallel"))));
}

}  // namespace
}  // namespace tessera::test
