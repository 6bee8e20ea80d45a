// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Rollouts in other groups of tensor-parallel ranks than the training (rl.rollout_tensor).
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/planner/course.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/plan.h"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 3;
// All of four ranks have whole layers, or two of them share each.
const Layout kWhole{.ranks = 4, .accumulation = 1, .stage = 1},
    kSharded{.ranks = 4, .accumulation = 1, .stage = 3},
    kSharing{.ranks = 4, .accumulation = 2, .stage = 1, .tensor = 2},
    kShardedSharing{.ranks = 4, .accumulation = 2, .stage = 3, .tensor = 2},
    kOne{.ranks = 1, .accumulation = 4, .stage = 0},
    kTwoSharing{.ranks = 2, .accumulation = 4, .stage = 0, .tensor = 2};

TinyRun writing_with(const std::string& more) {
  return reinforcing(some_prompts(),
                     R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}], "samples": 4,
                         "max_new_tokens": 4, "prompts_at_once": 1)" +
                         more + "}")
      .set("optimizer.params.lr", "1e-2");
}
TinyRun writing(int tensor, const std::string& more = "") {
  return writing_with(", \"rollout_tensor\": " + std::to_string(tensor) + more);
}

/// The completions of the first rollout with their log-probabilities, as the ledger has them.
std::vector<std::string> first_rollout(const TinyRun& run, const Layout& layout) {
  const files::TempDir folder;
  (void)train(run, layout, {.steps = 1, .run_dir = folder.path()});
  std::vector<std::string> out;
  std::ifstream in(folder.path() / "rollouts.jsonl");
  for (std::string text; std::getline(in, text);) {
    const json::Value line = json::parse(text, "ledger");
    if (line.find("kind")->as_string() == "completion") out.push_back(text);
  }
  EXPECT_EQ(out.size(), 8U);
  return out;
}

// Before the first update the weights of all layouts are the same bits.
TEST(RlRolloutTensor, WritesWithTheBitsOfItsSize) {
  const std::vector<std::string> whole = first_rollout(writing_with(""), kOne),
                                 shared = first_rollout(writing_with(""), kTwoSharing);
  EXPECT_NE(whole, shared);  // of sums that are rounded otherwise

  for (const Layout& layout : {kSharing, kShardedSharing, kTwoSharing})
    EXPECT_EQ(first_rollout(writing(1), layout), whole);
  for (const Layout& layout : {kWhole, kSharded})
    EXPECT_EQ(first_rollout(writing(2), layout), shared);
}

TEST(RlRolloutTensor, IsTheSameOnAnyDataParallelRanks) {
  const TinyRun shared = writing(2), whole = writing(1);
  const Trace by_two = train(shared, kWhole, {.steps = kSteps});
  expect_same_bits(by_two, train(shared, kSharded, {.steps = kSteps}));
  expect_same_bits(by_two,
                   train(shared, {.ranks = 2, .accumulation = 2, .stage = 2}, {.steps = kSteps}));

  const Trace by_one = train(whole, kSharing, {.steps = kSteps});
  expect_same_bits(by_one, train(whole, kTwoSharing, {.steps = kSteps}));
  expect_same_bits(by_one, train(whole, kShardedSharing, {.steps = kSteps}));
}

// A copy that keeps the weights of the first rollout is far outside of this bound.
TEST(RlRolloutTensor, FollowsThePolicy) {
  const auto expect_near = [](const TinyRun& run, const Layout& layout) {
    auto metrics = metrics_of(run, layout, kSteps);
    ASSERT_EQ(metrics["parity_max"].size(), static_cast<std::size_t>(kSteps));
    for (const double largest : metrics["parity_max"])
      EXPECT_LT(largest, 1e-4);
  };
  const std::string lora = R"({"type": "lora", "r": 4, "alpha": 8, "targets": "all-linear"})";
  expect_near(writing(2), kWhole);
  expect_near(writing(1), kSharing);
  expect_near(writing(2).set("adapter", lora), kSharded);
  expect_near(writing(1, R"(, "fuse_adapter": true)").set("adapter", lora), kShardedSharing);
}

TEST(RlRolloutTensor, ResumesWithTheSameBits) {
  const TinyRun run = writing(2, R"(, "mini_batches": 2)");
  const files::TempDir folder, root;
  const Trace whole = train(
      run, kWhole, {.steps = 4, .run_dir = folder.path(), .root = root.path(), .save_at = {1, 2}});
  for (const char* step : {"step-00000001", "step-00000002"}) {
    const files::TempDir again;
    std::filesystem::copy(folder.path(), again.path(), std::filesystem::copy_options::recursive);
    const Trace rest =
        train(run, kSharded, {.steps = 4, .run_dir = again.path(), .resume = root.path() / step});
    EXPECT_EQ(rest.digest, whole.digest) << step;
  }
}

TEST(RlRolloutTensor, IsPlannedOrRefused) {
  const auto planned = [](const TinyRun& run, const Layout& layout) {
    const planner::PlanWithData plan = planner::place(planner::PlanWithData(run.plan(layout), {}));
    return std::pair(plan.notes().back(), plan.needs().beside);
  };
  const auto refusal = [&](const TinyRun& run, const Layout& layout = kWhole) -> std::string {
    try {
      (void)planned(run, layout);
      return "accepted";
    } catch (const Error& error) {
      return error.text();
    }
  };
  // The copy has half of the weights of four bytes each.
  const auto [text, bytes] = planned(writing(2), kWhole);
  EXPECT_THAT(text, HasSubstr("the policy's weights for rollouts, in which 2 ranks share each"));
  EXPECT_EQ(bytes - planned(writing(1), kWhole).second,
            2 * writing(2).plan(kWhole).model().resolved.num_parameters);

  EXPECT_EQ(refusal(writing(2), kSharing), "accepted");
  EXPECT_THAT(refusal(writing(3)), HasSubstr("groups of 3"));
  EXPECT_THAT(refusal(writing(8), {.ranks = 8, .accumulation = 1}),
              HasSubstr("do not divide among 8 ranks (rl.rollout_tensor)"));
  EXPECT_THAT(refusal(writing(2, R"(, "parity": "exact")")), HasSubstr("rl.parity is exact"));
  EXPECT_THAT(
      refusal(writing(2).set("adapter", R"({"type": "lora", "r": 4, "quantize_base": "nf4"})")),
      HasSubstr("quantize_base"));
  EXPECT_THAT(refusal(writing(2, R"(, "overlap": 1)")), HasSubstr("1 rank that writes"));
  const auto by_hybrid_engine = [&](const TinyRun& run, const std::string& more) {
    return refusal(TinyRun(run).set("hybrid_engine",
                                    R"({"enabled": true, "max_out_tokens": 512, )" + more + "}"));
  };
  EXPECT_EQ(by_hybrid_engine(writing_with(""), R"("inference_tp_size": 2)"), "accepted");
  EXPECT_THAT(by_hybrid_engine(writing_with(""), R"("inference_tp_size": 3)"),
              HasSubstr("groups of 3"));
  EXPECT_THAT(by_hybrid_engine(writing(4), R"("inference_tp_size": 2)"),
              HasSubstr("rl.rollout_tensor, which means the same, is 4"));
}

}  // namespace
}  // namespace tessera::test
