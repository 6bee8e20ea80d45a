// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/place.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;
constexpr std::int64_t kBeside = std::int64_t{3} << 30;

/// Plans with this seed are of the kind that the rule below is about.
constexpr std::int64_t kOfTheRule = 77, kRefused = 78;

void place_seed(const PlanWithData& plan,
                const Hosts& hosts,
                Needs& needs,
                std::vector<std::string>& notes) {
  if (plan.recipe().seed == kRefused) throw Error(Error::Kind::Config, "the rule refuses it", "");
  if (plan.recipe().seed != kOfTheRule) return;
  needs.beside += kBeside;
  notes.push_back("placed on hosts of " + std::to_string(hosts.ranks_of_each));
}

TESSERA_PLAN_RULE("seed of a test", {place_seed});

PlanWithData plan_of(std::int64_t seed) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 128},
          "train_batch_size": 8, "trainer": {"seed": )" +
      std::to_string(seed) + "}}";
  return {make_plan(json::parse(text, "c.json"), 4, "c.json"), {.max_steps = 9}};
}

TEST(Place, AddsTheNeedsAndNotesOfARuleToANewPlan) {
  const PlanWithData plan = plan_of(kOfTheRule);

  const PlacedPlan placed = place(plan, {.ranks_of_each = 2, .available = [] { return kMuch; }});

  EXPECT_EQ(placed.needs().beside, kBeside);
  EXPECT_GT(placed.needs().traveling, 0) << "two hosts";
  EXPECT_EQ(placed.memory().other,
            estimate_memory(plan).other + kBeside + placed.needs().traveling);
  EXPECT_THAT(placed.notes(), Contains("placed on hosts of 2"));
  EXPECT_EQ(placed.course().max_steps, 9);
  // The plan from which it was made has not changed.
  EXPECT_EQ(plan.needs().beside, 0);
  EXPECT_THAT(plan.notes(), Not(Contains(HasSubstr("placed on hosts"))));
}

TEST(Place, RefusesWhatARuleRefusesBeforeItAsksForMemory) {
  const auto place_on = [](std::int64_t seed, std::uint64_t available) -> Error::Kind {
    try {
      static_cast<void>(place(plan_of(seed), available));
      return Error::Kind::Bug;
    } catch (const Error& error) {
      return error.kind();
    }
  };

  EXPECT_EQ(place_on(kRefused, 1), Error::Kind::Config);
  EXPECT_EQ(place_on(1, 1), Error::Kind::Memory);
}

TEST(Place, ChecksNoMemoryWithoutANumber) {
  const PlacedPlan placed = place(plan_of(1));

  EXPECT_EQ(placed.needs().beside, 0);
  EXPECT_EQ(placed.needs().traveling, 0);
  EXPECT_FALSE(placed.memory().unknown.empty());
}

TEST(Plans, AreVariedWithoutAChangeOfTheOriginal) {
  const PlanWithData plan = plan_of(1);
  parallel::Layout layout = plan.layout();
  layout.micro_batch = 1;
  layout.accumulation = 2;
  Recipe recipe = plan.recipe();
  recipe.seed = 5;

  const PlanWithData varied = with(with(plan, layout), recipe);

  EXPECT_EQ(varied.layout(), layout);
  EXPECT_EQ(varied.recipe().seed, 5);
  EXPECT_EQ(varied.course().max_steps, 9);
  EXPECT_EQ(&varied.model(), &plan.model()) << "parts that do not differ are shared";
  EXPECT_EQ(plan.layout().micro_batch, 2);
  EXPECT_EQ(plan.recipe().seed, 1);
}

// The cache of measured blocks belongs to one model: a copy is made in order to change it.
TEST(Plans, GiveACopyOfTheirModelACacheOfItsOwn) {
  const PlanWithData plan = plan_of(1);
  const ModelPlan copy = plan.model();
  const PlanWithData other = plan;

  EXPECT_NE(&copy.probes.cache(), &plan.model().probes.cache());
  EXPECT_EQ(&other.model().probes.cache(), &plan.model().probes.cache());
}

}  // namespace
}  // namespace tessera::planner
