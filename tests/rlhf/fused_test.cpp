// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Rollouts that are written with the adapter merged into the weights (rl.fuse_adapter).
#include <string>
#include <utility>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/course.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/plan.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

TinyRun with_adapter(const std::string& adapter, const std::string& more) {
  TinyRun run = reinforcing(some_prompts(),
                            R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}], "samples": 4,
                                "max_new_tokens": 4, "prompts_at_once": 2)" +
                                more + "}");
  if (!adapter.empty()) run.set("adapter", adapter);
  return run.set("optimizer.params.lr", "1e-2");
}

TEST(RlFused, ChangesRoundingsOfSamplingAlone) {
  for (const char* adapter : {R"({"type": "lora", "r": 4, "alpha": 8, "targets": "all-linear"})",
                              R"({"type": "dora", "r": 4, "alpha": 8, "targets": "all-linear"})"}) {
    SCOPED_TRACE(adapter);
    const TinyRun fused = with_adapter(adapter, R"(, "fuse_adapter": true)");
    const Layout one{.ranks = 1, .accumulation = 4, .stage = 0};
    const Trace apart = train(with_adapter(adapter, ""), one, {.steps = 4}),
                merged = train(fused, one, {.steps = 4});

    EXPECT_NE(merged.metrics, apart.metrics);
    expect_same_bits(merged,
                     train(fused, {.ranks = 2, .accumulation = 2, .stage = 2}, {.steps = 4}));
    // A merged weight is rounded once more in fp32, which moves log-probabilities by some 1e-7.
    // Rollouts that leave the adapter out differ from training by 0.02.
    const Layout shared{.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2};
    for (const Layout& layout : {one, shared}) {
      auto metrics = metrics_of(fused, layout, 4);
      EXPECT_GT(metrics["parity_max"].at(3), 0.0);
      EXPECT_LT(metrics["parity_max"].at(3), 1e-4);
    }
  }
}

TEST(RlFused, IsPlannedOrRefused) {
  const std::string lora = R"({"type": "lora", "r": 4})", fuse = R"(, "fuse_adapter": true)";
  const auto planned = [](const TinyRun& run, const Layout& layout) {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(run.plan(layout), {}));
    return std::pair(plan.notes().back(), plan.needs().beside);
  };
  const auto refusal = [&](const TinyRun& run,
                           const Layout& layout = {.accumulation = 4}) -> std::string {
    try {
      (void)planned(run, layout);
      return "accepted";
    } catch (const Error& error) {
      return error.text();
    }
  };
  const Layout one{.accumulation = 4};
  const auto [text, bytes] = planned(with_adapter(lora, fuse), one);
  EXPECT_THAT(text, HasSubstr("weights with the adapter merged"));
  EXPECT_GT(bytes, planned(with_adapter(lora, ""), one).second);

  EXPECT_THAT(refusal(with_adapter("", fuse)), HasSubstr("the policy has none"));
  EXPECT_THAT(refusal(with_adapter(lora, fuse + R"(, "parity": "exact")")),
              HasSubstr("rl.parity is exact"));
  EXPECT_THAT(refusal(with_adapter(R"({"type": "lora", "r": 4, "quantize_base": "nf4"})", fuse)),
              HasSubstr("quantize_base"));
  const Layout sharded{.ranks = 2, .accumulation = 2, .stage = 3};
  EXPECT_THAT(refusal(with_adapter(lora, fuse), sharded), HasSubstr("ZeRO stage 3"));
  EXPECT_EQ(refusal(with_adapter(lora, fuse + R"(, "overlap": 1)"), sharded), "accepted");
}

}  // namespace
}  // namespace tessera::test
