// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/parallel_options.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string problems_of(const std::string& parallel, int ranks) {
  try {
    make_plan(json::parse(R"({"data": {"train": "a.txt"}, "train_batch_size": 8, "parallel": )" +
                              parallel + "}",
                          "c.json"),
              ranks,
              "c.json");
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(ParallelOptions, ANumberIsShortForItsSize) {
  const json::Value source = spell_out_parallel(
      json::parse(R"({"parallel": {"pipeline": 2, "tensor": {"size": 3}, "context": 1}})", "c"));

  EXPECT_EQ(source,
            json::parse(R"({"parallel": {"pipeline": {"size": 2}, "tensor": {"size": 3},
                            "context": {"size": 1}}})",
                        "c"));
  EXPECT_EQ(ranks_per_model(source), 6);
}

TEST(ParallelOptions, OfSizeOneChangesNothing) {
  EXPECT_EQ(problems_of(R"({"pipeline": 1, "tensor": {"size": 1, "mode": "1d"}, "context": 1})", 2),
            "");
  EXPECT_EQ(problems_of(R"({"tensor": {"size": 1, "mode": null}})", 2), "");
}

TEST(ParallelOptions, SizesThatDoNotDivideTheRanksAreToldWithTheWholeProduct) {
  EXPECT_THAT(problems_of(R"({"pipeline": 2, "tensor": {"size": 2}})", 6),
              AllOf(HasSubstr("6 ranks"),
                    HasSubstr("pipeline 2 x tensor 2 x context 1 = 4"),
                    HasSubstr("-n 4 or -n 8")));
}

TEST(ParallelOptions, AnUnknownScheduleOrModeIsToldWithTheNearestName) {
  EXPECT_THAT(problems_of(R"({"pipeline": {"size": 2, "schedule": "1f1"}})", 2),
              AllOf(HasSubstr("parallel.pipeline.schedule"), HasSubstr("1f1b")));
  EXPECT_THAT(problems_of(R"({"tensor": {"size": 2, "mode": "1dd"}})", 2),
              AllOf(HasSubstr("parallel.tensor.mode"), HasSubstr("1d")));
}

}  // namespace
}  // namespace tessera::planner
