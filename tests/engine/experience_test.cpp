// SPDX-License-Identifier: Apache-2.0
// The registry by which engines and runs find the experience of a task.
#include "tessera/engine/experience.h"

#include <memory>
#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

/// A task whose data is of a kind that no file registers.
class Dreams final : public tasks::Task {
 public:
  [[nodiscard]] std::string objective() const override { return "causal_lm"; }
  [[nodiscard]] std::string experience() const override { return "dreams"; }
  [[nodiscard]] data::Datasets open(const tasks::DataRequest& /*request*/) const override {
    return {};
  }
  [[nodiscard]] data::OpenedDataset open_held_out(const tasks::DataRequest& /*request*/,
                                                  const std::vector<std::string>& /*names*/,
                                                  const std::string& /*key*/) const override {
    return {};
  }
};

std::unique_ptr<tasks::Task> task_of(const std::string& type, const std::string& params) {
  config::Problems problems;
  auto task = tasks::make_task({.type = type, .params = json::parse(params, "params")}, problems);
  problems.raise();
  return task;
}

TEST(Experience, IsAbsentForATaskThatLearnsFromItsDataset) {
  EXPECT_EQ(experience_of(nullptr), nullptr);
  EXPECT_EQ(experience_of(task_of("pretrain", "{}").get()), nullptr);
}

TEST(Experience, IsRegisteredForEveryTaskThatNamesOne) {
  const auto rl = task_of("rl", R"({"rewards": [{"type": "length"}], "max_new_tokens": 4})");

  EXPECT_NE(experience_of(rl.get()), nullptr);
}

TEST(Experience, OfAnUnknownKindIsRefusedWithTheKnownOnes) {
  try {
    static_cast<void>(experience_of(std::make_unique<Dreams>().get()));
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.text(), testing::HasSubstr("\"dreams\""));
  }
}

TEST(Experience, WithoutWorkForExtraRanksRefusesThem) {
  class OfOneKind final : public ExperienceKind {
   public:
    [[nodiscard]] std::unique_ptr<Experience> make(const planner::PlanWithData& /*plan*/,
                                                   comm::World& /*world*/,
                                                   TrainState& /*policy*/,
                                                   const data::Dataset& /*train*/,
                                                   ExtraRanks* /*extra_ranks*/) const override {
      return nullptr;
    }
  };
  const OfOneKind kind;
  const planner::Plan plan = test::TinyRun().plan({});

  EXPECT_EQ(kind.memory_beside(plan, 7, 0), 7U);
  EXPECT_THROW(static_cast<void>(kind.memory_beside(plan, 7, 1)), Error);
  EXPECT_TRUE(kind.formula(*task_of("pretrain", "{}")).empty());
}

}  // namespace
}  // namespace tessera::engine
