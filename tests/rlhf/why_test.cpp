// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Shares of completions in the gradient of an update.
#include "tessera/rlhf/why.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kWhySteps = 4;
/// fp32 sums of one completion and of a micro-batch differ in their order.
constexpr double kOrderOfSums = 1e-4;

class RlWhy : public ::testing::Test {
 protected:
  RlWhy() : run_(reinforcing(prompts(), options())) {
    trace_ = train(run_,
                   {.ranks = 1, .accumulation = 4},
                   {.steps = kWhySteps,
                    .run_dir = folder_.path(),
                    .root = folder_.path() / "checkpoints",
                    .save_at = {2}});
  }
  static std::string prompts() {
    std::string out;
    for (int i = 0; i < 12; ++i)
      out += R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
    return out;
  }
  static std::string options() {
    return R"({"samples": 4, "max_new_tokens": 4, "mini_batches": 2,
               "rewards": [{"type": "regex", "pattern": "[@-~]"}, {"type": "length", "max": 3, "weight": 0.5}]})";
  }
  [[nodiscard]] rlhf::StepShares shares(std::int64_t step, const Layout& layout) const {
    const planner::Plan made = run_.plan(layout);
    const auto data = engine::open_data(made, {});
    const planner::PlanWithData plan = planner::with_data(made, *data);
    rlhf::StepShares out;
    comm::run_threads(plan.mesh(), [&](comm::World& world) {
      at::set_num_threads(1);
      rlhf::StepShares mine = rlhf::shares_of_step(plan, world, data, folder_.path(), step);
      if (world.is_leader()) out = std::move(mine);
    });
    return out;
  }
  /// Sets the advantages of all completions of a version to 0, except those of `number`.
  void keep_only(std::int64_t version, std::int64_t number) const {
    const std::filesystem::path file = folder_.path() / "rollouts.jsonl";
    std::string out;
    std::ifstream in(file);
    for (std::string text; std::getline(in, text);) {
      json::Value line = json::parse(text, "a line of the ledger");
      const auto is = [&](const char* key, std::int64_t value) {
        return line.find(key)->as_integer() == value;
      };
      if (line.find("kind")->as_string() == "worth" && is("version", version) &&
          !is("number", number)) {
        for (json::Value& value : line.find("advantages")->items())
          value = json::Value::number(0.0);
      }
      out += line.dump() + "\n";
    }
    in.close();
    files::write_atomic(file, out);
  }

  TinyRun run_;
  files::TempDir folder_;
  Trace trace_;
};

TEST_F(RlWhy, SharesAddUpToTheUpdate) {
  const rlhf::StepShares whole = shares(kWhySteps, {.ranks = 1, .accumulation = 4});

  ASSERT_EQ(whole.completions.size(), 8U);
  EXPECT_EQ(whole.version, 2);
  EXPECT_NEAR(whole.rest, 0.0, kOrderOfSums);
  double last = INFINITY, squares = 0.0;
  for (const rlhf::CompletionShare& one : whole.completions) {
    EXPECT_GE(one.number, 8);  // the second mini-batch of its rollout
    EXPECT_LE(std::abs(one.contribution.share), last);
    last = std::abs(one.contribution.share);
    squares += one.contribution.share * std::pow(trace_.grad_norms.back(), 2);
    if (!one.learned || one.advantage == 0) {
      EXPECT_EQ(one.contribution.norm, 0.0);
    }
  }
  EXPECT_GT(last + std::abs(whole.completions.front().contribution.share), 0.0);
  EXPECT_NEAR(
      std::sqrt(squares), trace_.grad_norms.back(), kOrderOfSums * trace_.grad_norms.back());

  const rlhf::StepShares two = shares(kWhySteps, {.ranks = 2, .accumulation = 2, .stage = 2});
  for (std::size_t i = 0; i < whole.completions.size(); ++i) {
    EXPECT_NEAR(two.completions[i].contribution.share,
                whole.completions[i].contribution.share,
                kOrderOfSums);
  }
}

// The gradient of one completion is the step's where the others have no advantage.
TEST_F(RlWhy, ACompletionAloneHasTheWholeGradient) {
  const Layout one{.ranks = 1, .accumulation = 4};
  const rlhf::StepShares whole = shares(kWhySteps - 1, one);
  const rlhf::CompletionShare& first = whole.completions.front();
  ASSERT_GT(first.contribution.norm, 0.0);

  keep_only(whole.version, first.number);
  const rlhf::StepShares alone = shares(kWhySteps - 1, one);

  EXPECT_EQ(alone.completions.front().number, first.number);
  EXPECT_NEAR(alone.completions.front().contribution.share, 1.0, kOrderOfSums);
  EXPECT_EQ(alone.completions.front().contribution.norm, first.contribution.norm);
  EXPECT_EQ(alone.completions.front().text, first.text);
  for (std::size_t i = 1; i < alone.completions.size(); ++i)
    EXPECT_EQ(alone.completions[i].contribution.norm, 0.0);
}

TEST_F(RlWhy, RefusesAStepWithoutARollout) {
  std::ofstream(folder_.path() / "rollouts.jsonl") << "";
  EXPECT_THROW(shares(2, {.ranks = 1, .accumulation = 4}), Error);
}

}  // namespace
}  // namespace tessera::test
