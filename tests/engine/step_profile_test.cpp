// SPDX-License-Identifier: Apache-2.0
// Operations of a step: their arithmetic, counted independently, and shares that add up to the
// whole.
#include "tessera/engine/step_profile.h"

#include <numeric>
#include <sstream>
#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 2;

struct Profiled {
  engine::StepProfile profile;
  planner::Plan plan;
};

Profiled profile(const TinyRun& run, const Layout& layout) {
  Profiled out{{}, run.plan(layout)};
  const auto data = engine::open_data(out.plan, {});
  comm::run_threads(out.plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    const auto engine = engine::initialize(out.plan, world, data);
    const engine::StepProfile mine = engine::profile_steps(*engine, 1, kSteps).value();
    engine->finish();
    if (world.is_leader()) out.profile = mine;
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return out;
}

double flops_of(const engine::StepProfile& profile, const std::string& name) {
  double sum = 0;
  for (const ops::OpRow& row : profile.operations)
    sum += row.name == name ? row.flops : 0.0;
  return sum;
}

TEST(StepProfile, CountsTheProductsOfTheModel) {
  const TinyRun run;
  const Profiled p = profile(run, {.ranks = 1, .accumulation = 3, .micro_batch = 2});
  const auto& shape = p.plan.model().options;
  const double C = static_cast<double>(*shape->hidden_size),
               L = static_cast<double>(*shape->num_layers),
               V = static_cast<double>(p.plan.model().resolved.vocab_size);
  const double tokens = static_cast<double>(kSteps * 3 * 2 * p.plan.data().sequence_length);

  // Every matrix of the model, once for each token: 12 C^2 a layer, and the table.
  const double expected = 2 * tokens * (L * 12 * C * C + V * C);

  EXPECT_EQ(flops_of(p.profile, "linear"), expected);
  EXPECT_EQ(flops_of(p.profile, "linear dx"), expected);
  EXPECT_EQ(flops_of(p.profile, "linear dW"), expected);
  EXPECT_EQ(static_cast<double>(p.profile.tokens), tokens);
}

TEST(StepProfile, HasSharesThatMakeUpTheStep) {
  const TinyRun run;
  for (const int ranks : {1, 2}) {
    const Profiled p = profile(run, {.ranks = ranks, .accumulation = 2});

    EXPECT_EQ(p.profile.steps, kSteps);
    EXPECT_GT(p.profile.in_operations(), 0.0);
    EXPECT_LE(p.profile.in_operations() + p.profile.collectives, p.profile.seconds);
    EXPECT_DOUBLE_EQ(p.profile.in_operations() + p.profile.collectives + p.profile.rest(),
                     p.profile.seconds);
    EXPECT_GT(p.profile.least_seconds(), 0.0);
    if (ranks == 2) {
      EXPECT_GT(p.profile.collectives, 0.0);
    }
  }
}

/// A step of 100 ms: a product at half of the machine's speed, an addition at a quarter, and one
/// that takes less than a thousandth of the step.
engine::StepProfile made_up() {
  engine::StepProfile out;
  out.steps = 2;
  out.seconds = 0.2;
  out.collectives = 0.02;
  out.tokens = 400;
  out.peak = {.flops = 1e12, .bytes = 1e10};
  out.operations = {{.name = "linear",
                     .shape = "8 x 4 -> 2",
                     .calls = 6,
                     .seconds = 0.1,
                     .flops = 5e10,
                     .bytes = 1e6,
                     .shape_class = ShapeClass::LargeProduct},
                    {.name = "aten::add", .calls = 2, .seconds = 0.04, .bytes = 1e8},
                    {.name = "aten::mul", .calls = 2, .seconds = 4e-5, .bytes = 1e4}};
  return out;
}

TEST(StepProfile, IsAPage) {
  const planner::Plan plan = TinyRun().plan({.ranks = 1, .accumulation = 2});

  const std::string page = engine::roofline_page(made_up(), plan, /*all=*/false);

  for (const char* line : {
           "machine     1000.0 GFLOP/s in fp32 products, 10.0 GB/s",
           "step        100.0 ms, mean of 2; 2000 tokens/s",
           "at least    30.0 ms",
           "0.30 of the step",
           "products    25.0 ms, if the products of matrices alone ran",
           "0.25 of the step",
       }) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  // Calls and milliseconds of one step, share of the time, and the part of the machine's peak that
  // was reached.
  EXPECT_THAT(page,
              ContainsRegex("\nlinear +8 x 4 -> 2 +3 +50.00 +50.0% +500.0 +0.0 +0.50 of FLOP/s\n"));
  EXPECT_THAT(page, ContainsRegex("\naten::add +1 +20.00 +20.0% +2.5 +0.25 of memory\n"));
  EXPECT_THAT(page, ContainsRegex("\n1 smaller ones +0.02 +0.0%\n"));
  EXPECT_THAT(page, ContainsRegex("\ncollectives +10.00 +10.0%\n"));
  EXPECT_THAT(page, ContainsRegex("\nbetween operations +19.98 +20.0%\n"));
  EXPECT_THAT(page, ContainsRegex("\nthe step +100.00 +100.0%\n"));
  EXPECT_THAT(engine::roofline_page(made_up(), plan, /*all=*/true), HasSubstr("aten::mul"));
}

TEST(StepProfile, FitsOnAPage) {
  const TinyRun run;
  const Profiled p = profile(run, {.ranks = 1, .accumulation = 2});

  const std::string page = engine::roofline_page(p.profile, p.plan, /*all=*/true);

  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 120U) << line;
  for (const char* word : {"linear dW", "layer_norm backward", "adamw", "between operations"})
    EXPECT_THAT(page, HasSubstr(word));
}

TEST(PeakRates, IsTheLowerOfTwoLines) {
  const engine::PeakRates peak{.flops = 100, .bytes = 10};

  EXPECT_EQ(peak.seconds(200, 10), 2.0);
  EXPECT_TRUE(peak.bound_by_flops(200, 10));
  EXPECT_EQ(peak.seconds(200, 40), 4.0);
  EXPECT_FALSE(peak.bound_by_flops(200, 40));
  EXPECT_EQ(peak.seconds(0, 0), 0.0);
}

}  // namespace
}  // namespace tessera::test
