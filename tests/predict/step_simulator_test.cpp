// SPDX-License-Identifier: Apache-2.0
// The simulated time of a step against closed forms and against the simulation of pipelines alone.
#include "tessera/predict/step_simulator.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/parallel/pipeline/simulate.h"

namespace tessera::predict {
namespace {

constexpr double kForward = 1, kInputs = 1.25, kWeights = 0.75;
constexpr double kTolerance = 1e-9;  // sums of a few thousand times

parallel::StageLayout layout_of(const parallel::PipelineSchedule& schedule,
                                int stages,
                                int chunks) {
  parallel::StageLayout out{stages, chunks, schedule.placement, {}};
  for (int part = 0; part <= stages * chunks; ++part)
    out.bounds.push_back(part);
  return out;
}

StepTimes equal_blocks(int count) {
  StepTimes out;
  out.blocks.assign(static_cast<std::size_t>(count),
                    {.forward = kForward, .inputs = kInputs, .weights = kWeights});
  return out;
}

StepSimulation simulate(
    const std::string& name, int stages, int chunks, int micros, const StepTimes& times) {
  const parallel::PipelineSchedule schedule = parallel::pipeline_schedules().get(name);
  return simulate_step(schedule, layout_of(schedule, stages, chunks), micros, times);
}

TEST(StepSimulator, OfAPipelineTakesTheClosedForm) {
  constexpr double kBoth = kForward + kInputs + kWeights;
  for (const int stages : {2, 4, 8}) {
    for (const int micros : {stages, 3 * stages, 40 * stages}) {
      const double m = micros, p = stages;
      EXPECT_NEAR(simulate("1f1b", stages, 1, micros, equal_blocks(stages)).end,
                  (m + p - 1) * kBoth,
                  kTolerance * m);
      EXPECT_NEAR(simulate("interleaved", stages, 2, micros, equal_blocks(2 * stages)).end,
                  (2 * m + p - 1) * kBoth,
                  kTolerance * m)
          << "of a chunk, whose passes are as long as those of a stage before";
    }
  }
}

TEST(StepSimulator, AgreesWithTheSimulationOfPipelinesForEverySchedule) {
  for (const std::string& name : parallel::pipeline_schedules().names()) {
    const parallel::PipelineSchedule schedule = parallel::pipeline_schedules().get(name);
    const int chunks = std::max(1, schedule.least_chunks), stages = 4, micros = 8;
    StepTimes times = equal_blocks(stages * chunks);
    times.message = [](int from, int to, int, bool) { return 0.1 * (1 + from) + 0.01 * to; };
    times.update.assign(stages, 0.5);
    parallel::StepPrices prices;
    prices.passes = [](int, int) { return parallel::PassTimes{kForward, kInputs, kWeights}; };
    prices.message = times.message;
    prices.update = 0.5;
    const parallel::PipelineSize size{stages, chunks, micros};

    const double expected =
        parallel::simulate(all_actions(schedule, size), size, schedule.placement, prices).end;

    EXPECT_NEAR(simulate(name, stages, chunks, micros, times).end, expected, kTolerance) << name;
  }
}

TEST(StepSimulator, PartsOfEveryStageAddUpToTheStep) {
  StepTimes times = equal_blocks(8);
  for (BlockTimes& block : times.blocks)
    block = {1, 1, 1, 0.3, 0.7, 0.2};
  times.message = [](int, int, int, bool) { return 0.4; };
  times.update = {1, 2, 3, 4};
  times.overlap_tax = 0.1;

  for (const int micros : {1, 5, 100}) {
    const StepSimulation all = simulate("1f1b", 4, 1, micros, [&] {
      StepTimes out = times;
      out.blocks.resize(4);
      return out;
    }());
    for (const StageTime& stage : all.stages) {
      EXPECT_NEAR(
          stage.busy + stage.weights + stage.idle + stage.gradients + stage.update + stage.updated,
          all.end,
          kTolerance * micros);
    }
  }
}

TEST(StepSimulator, ExtrapolatesLongStepsExactly) {
  StepTimes times = equal_blocks(4);
  times.blocks[1].forward = 2;  // stages of different length
  times.message = [](int, int, int, bool) { return 0.2; };
  const auto end = [&](int micros) { return simulate("1f1b", 4, 1, micros, times).end; };

  // Up to 24 micro-batches are simulated one by one: their differences go on.
  EXPECT_NEAR(end(400) - end(24), (400 - 24) / 4.0 * (end(24) - end(20)), 1e-6);
  EXPECT_NEAR(end(26), end(22) + end(24) - end(20), 1e-6) << "also if stages do not divide them";
}

/// A model of equal blocks on one stage.
StepSimulation one_stage(double compute, double gather, double reduce, int blocks, int micros) {
  StepTimes times;
  times.blocks.assign(static_cast<std::size_t>(blocks),
                      {.forward = compute,
                       .inputs = compute,
                       .weights = compute,
                       .gather = gather,
                       .reduce = reduce});
  return simulate_step({}, {}, micros, times);
}

TEST(StepSimulator, HidesGathersBehindComputationThatIsLonger) {
  constexpr int kBlocks = 10;

  const StepSimulation hidden = one_stage(1, 0.5, 0, kBlocks, 1);

  // The first gather has nothing to hide behind.
  EXPECT_NEAR(hidden.end, 0.5 + 3.0 * kBlocks, kTolerance);
  EXPECT_NEAR(hidden.stages[0].weights, 0.5, kTolerance);
}

TEST(StepSimulator, IsAsLongAsTheTransfersIfTheseAreLonger) {
  constexpr int kBlocks = 10;
  // Forward and backward gather each block once, except that the last one stays between them.
  const double moved = (2 * kBlocks - 1) * 5.0;

  const double end = one_stage(1, 5, 0, kBlocks, 1).end;

  EXPECT_GE(end, moved);
  EXPECT_LE(end, moved + 3 * 3.0) << "at most a few blocks are computed while nothing is moved";
}

TEST(StepSimulator, QueuesAGatherBehindTheReductionOfTheBlockBefore) {
  constexpr int kBlocks = 10;
  constexpr double kGather = 0.5, kReduce = 0.4;

  const StepSimulation both = one_stage(1, kGather, kReduce, kBlocks, 1);

  // In the backward pass a block but the last one waits for both; the last reduction is left over.
  const double waits = kGather + (kBlocks - 1) * (kGather + kReduce);
  EXPECT_NEAR(both.stages[0].weights, waits, kTolerance);
  EXPECT_NEAR(both.end, 3.0 * kBlocks + waits + kReduce, kTolerance);
}

TEST(StepSimulator, ReducesOnceIfRanksSumTheirOwnGradients) {
  StepTimes times = equal_blocks(4);
  for (BlockTimes& block : times.blocks)
    block.reduce = 100;
  const auto end = [&](bool once) {
    times.reduce_once = once;
    return simulate_step({}, {}, 5, times).end;
  };

  EXPECT_GT(end(false), 5 * 4 * 100.0);
  EXPECT_LT(end(true), 4 * 100.0 + 5 * 4 * 3.0 + 1);
}

}  // namespace
}  // namespace tessera::predict
