// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Quantization-aware training: the same bits on any number of ranks, no rounding before its first
// step, and learning afterwards.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

TinyRun rounded(const std::string& weights, const std::string& activations) {
  TinyRun run;
  run.set("qat.weights", "\"" + weights + "\"").set("qat.activations", "\"" + activations + "\"");
  return run;
}

TEST(QuantizationAware, RanksTimesAccumulationAndStagesGiveTheSameBits) {
  for (const auto& [weights, activations] :
       {std::pair("int4", "int8"), std::pair("nvfp4", "nvfp4")}) {
    const TinyRun run = rounded(weights, activations);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
    for (const Layout& layout :
         std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                             {.ranks = 4, .accumulation = 1, .stage = 3},
                             {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"}}) {
      SCOPED_TRACE(text_of(layout));
      expect_same_bits(one, run.train(layout, 4));
    }
  }
}

TEST(QuantizationAware, BeginsAfterItsNumberOfSteps) {
  const Layout layout = {.ranks = 1, .accumulation = 2};
  const Trace plain = TinyRun().train(layout, 6);
  TinyRun later = rounded("fp8", "fp8");
  later.set("qat.after_steps", "3");

  const Trace trace = later.train(layout, 6);

  for (std::size_t step = 0; step < 6; ++step)
    EXPECT_EQ(trace.losses[step] == plain.losses[step], step < 3) << step;
}

TEST(QuantizationAware, LearnsNearlyAsWithoutIt) {
  const Layout layout = {.ranks = 1, .accumulation = 2};
  const Trace plain = TinyRun().train(layout, 30);
  for (const auto& [weights, activations] :
       {std::pair("int4", "int8"), std::pair("fp8", "fp8"), std::pair("mxfp4", "mxfp4")}) {
    SCOPED_TRACE(weights);
    const Trace trace = rounded(weights, activations).train(layout, 30);
    EXPECT_NE(trace.losses, plain.losses);
    EXPECT_NEAR(trace.losses.back(), plain.losses.back(), 0.1 * plain.losses.back());
  }
}

// The file that a run keeps gives the same plan again.
TEST(QuantizationAware, IsInTheResolvedConfigurationOnlyIfItIsOn) {
  const auto resolved = [](TinyRun run) { return run.plan({}).resolved(); };

  EXPECT_EQ(resolved(TinyRun()).find("qat"), nullptr);
  const json::Value fp8 = resolved(rounded("fp8", "none")),
                    int4 = resolved(rounded("int4", "int8"));
  EXPECT_EQ(fp8.find("qat")->find("group_size"), nullptr);
  EXPECT_EQ(int4.find("qat")->find("group_size")->dump(), "32");
  for (const json::Value& config : {fp8, int4})
    EXPECT_EQ(planner::make_plan(config, 1, "config.json").resolved().find("qat")->dump(),
              config.find("qat")->dump());
}

TEST(QuantizationAware, HasItsMemoryInThePlan) {
  // Weights that are larger than what passes between the layers.
  const auto activations = [](TinyRun run) {
    run.set("model.hidden_size", "256").set("model.num_heads", "4");
    return planner::estimate_memory(run.plan({})).activations;
  };
  const std::int64_t plain = activations(TinyRun());
  for (const auto& [weights, inputs] : {std::pair("int4", "int8"),
                                        std::pair("fp8", "fp8"),
                                        std::pair("mxfp4", "mxfp4"),
                                        std::pair("nvfp4", "nvfp4")}) {
    SCOPED_TRACE(weights);
    EXPECT_GT(activations(rounded(weights, inputs)), plain);
    EXPECT_EQ(activations(rounded(weights, inputs).set("qat.after_steps", "5")),
              activations(rounded(weights, inputs)));
  }
}

TEST(QuantizationAware, RefusesWhatItDoesNotGoTogetherWith) {
  const auto refusal = [](TinyRun run) {
    try {
      (void)run.plan({});
    } catch (const Error& error) {
      return error.text();
    }
    return std::string();
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal(TinyRun().set("qat.after_steps", "3")), HasSubstr("without qat.weights"));
  TinyRun adapted = rounded("int4", "none");
  adapted.set("adapter", R"({"type": "lora", "r": 2})");
  EXPECT_THAT(refusal(adapted), HasSubstr("an adapter's base is not trained"));
  TinyRun groups = rounded("int4", "none");
  groups.set("qat.group_size", "48");
  EXPECT_THAT(refusal(groups), HasSubstr("no multiple of the 48 numbers"));
}

}  // namespace
}  // namespace tessera::test
