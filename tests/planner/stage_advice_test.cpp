// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_advice.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/json.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

Plan small_plan(const std::string& zero, int ranks = 4) {
  const std::string text =
      R"({"model": {"preset": "gpt2-small"}, "data": {"train": "a.txt", "sequence_length": 128},
          "train_batch_size": 16, "gradient_accumulation_steps": )" +
      std::string(ranks == 1 ? "16" : "4") + R"(, "zero_optimization": )" + zero + "}";
  return make_plan(json::parse(text, "c.json"), ranks, "my.json");
}

/// Returns the bytes that four ranks need, and a little more.
std::uint64_t just_enough(const std::string& zero) {
  const auto need = estimate_memory(small_plan(zero)).total();
  return static_cast<std::uint64_t>(need) * 4 * 1000 / 949;
}

TEST(StageAdvice, NamesTheLowestStageThatFits) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;
  EXPECT_THAT(stage_advice(small_plan(R"({"stage": 3})"), kMuch).value_or(""),
              HasSubstr("zero_optimization.stage 1 fits as well"));
  EXPECT_THAT(stage_advice(small_plan(R"({"stage": 2})"), kMuch).value_or(""),
              HasSubstr("stage 1 fits as well"));
  EXPECT_FALSE(stage_advice(small_plan(R"({"stage": 3})"), just_enough(R"({"stage": 3})")));
}

TEST(StageAdvice, IsSilentWhereTheStageHasAReason) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;
  for (const char* zero : {R"({"stage": 1})",
                           R"({"stage": 3, "zero_quantized_weights": true})",
                           R"({"stage": 3, "zero_hpz_partition_size": 2})"}) {
    EXPECT_FALSE(stage_advice(small_plan(zero), kMuch)) << zero;
  }
  EXPECT_FALSE(stage_advice(small_plan(R"({"stage": 3})", 1), kMuch));
}

TEST(StageAdvice, IsANoteOfThePlacedPlan) {
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 40;
  const PlanWithData plan(small_plan(R"({"stage": 3})"), {});
  EXPECT_THAT(place(plan, kMuch).notes(), Contains(HasSubstr("stage 1 fits as well")));
  EXPECT_THAT(plan.notes(), Not(Contains(HasSubstr("fits as well"))));
}

}  // namespace
}  // namespace tessera::planner
