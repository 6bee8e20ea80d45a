// SPDX-License-Identifier: Apache-2.0
// The plots of reinforcement learning, from hand-written lines of metrics.jsonl.
#include "tessera/engine/plots.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLines =
    R"({"step": 1, "loss": -0.5, "terms": {"loss": -0.5, "reward": -1, "reward/a<b": 0.25,)"
    R"( "kl_reference": 0.5, "entropy": 2, "length": 7, "clip_share": 0.1, "truncated": 1}})"
    "\n"
    R"({"step": 3, "loss": 0.5, "terms": {"loss": 0.5, "reward": 2, "reward/a<b": 0.75,)"
    R"( "kl_reference": 1, "entropy": null, "length": 9, "clip_share": 0.3, "truncated": 0}})"
    "\n"
    R"({"step": 3, "eval_loss": -1.5, "eval_terms": {"reward": 1.5}})"
    "\n{\"step\": 4, \"te";

class Plots : public testing::Test {
 protected:
  void SetUp() override { files::write_atomic(folder_.path() / "metrics.jsonl", kLines); }
  files::TempDir folder_;
};

TEST_F(Plots, HaveAPanelForEachUnitOfWhatARunReports) {
  std::vector<std::string> titles, rewards;
  const std::vector<report::CurvePanel> panels = rollout_panels(folder_.path() / "metrics.jsonl");
  for (const report::CurvePanel& panel : panels)
    titles.push_back(panel.title);
  for (const report::Curve& curve : panels.front().curves)
    rewards.push_back(curve.name);

  EXPECT_THAT(titles,
              ElementsAre("reward of a completion",
                          "divergence from the reference (nats a token)",
                          "entropy (nats a token)",
                          "length of a completion (tokens)",
                          "shares"));
  EXPECT_THAT(rewards, ElementsAre("reward", "held out", "a<b"));
  EXPECT_EQ(panels[0].curves[0].points.at(1).step, 3);
  EXPECT_EQ(panels[0].curves[0].points.at(1).value, 2.0);
  EXPECT_EQ(panels[2].curves[0].points.size(), 1U) << "null is not a point";
}

TEST_F(Plots, AreDrawnWithTheirLastValues) {
  const std::string svg = report::panels_plot(rollout_panels(folder_.path() / "metrics.jsonl"));

  EXPECT_THAT(svg, HasSubstr(">reward 2</text>"));
  EXPECT_THAT(svg, HasSubstr(">held out 1.5</text>"));
  EXPECT_THAT(svg, HasSubstr(">a&lt;b 0.75</text>"));
  EXPECT_THAT(svg, HasSubstr(">clip_share 0.3</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  // Five panels of 560 x 300 pixels, two in a row.
  EXPECT_THAT(svg, HasSubstr("viewBox=\"0 0 1120 900\""));
  // The first panel: rewards from -1 to 2 with margins of 0.15 over steps up to 3.
  EXPECT_THAT(svg, HasSubstr("points=\"222.7,241.6 540.0,34.4 \""));
}

TEST_F(Plots, AreWrittenForReinforcementLearningAlone) {
  const auto plan_of = [](const char* task, const char* params) {
    planner::PlanParts parts;
    config::Problems problems;
    parts.data.task = tasks::make_task({task, json::parse(params, "params")}, problems);
    problems.raise();
    return planner::Plan(std::move(parts));
  };
  write_plots(plan_of("sft", "{}"), folder_.path());
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "loss.svg"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "rollouts.svg"));

  write_plots(plan_of("rl", R"({"rewards": [{"type": "number"}]})"), folder_.path());
  EXPECT_THAT(files::read(folder_.path() / "rollouts.svg"), HasSubstr("reward of a completion"));
}

}  // namespace
}  // namespace tessera::engine
