// SPDX-License-Identifier: Apache-2.0
// Buckets and limits smaller than a parameter work, and are noted in the plan.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/planner/make_plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The largest parameter of "nano": an MLP's matrix, 128 x 512.
constexpr const char* kLargest = "65,536 elements of ";

std::vector<std::string> notes_of(const std::string& zero, int ranks = 2) {
  const std::string text =
      R"({"model": {"preset": "nano"}, "data": {"train": "a.txt", "sequence_length": 64},
          "train_batch_size": 12, "run": {"threads_per_rank": 1}, "zero_optimization": {)" +
      zero + "}}";
  std::vector<std::string> notes = make_plan(json::parse(text, "c.json"), ranks, "c.json").notes();
  std::erase_if(notes, [](const std::string& note) {
    return note.find(" is below the ") == std::string::npos;
  });
  return notes;
}

TEST(BucketsBelowAParameter, AreReportedWithBothNumbers) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    EXPECT_THAT(notes_of(R"("reduce_bucket_size": 10, "stage": )" + std::string(stage)),
                ElementsAre(AllOf(HasSubstr("zero_optimization.reduce_bucket_size 10 is below"),
                                  HasSubstr(kLargest),
                                  HasSubstr("mlp"),
                                  HasSubstr("one block of a size at a time"))))
        << stage;
  }
}

TEST(BucketsBelowAParameter, OfStageThreeAreReportedThere) {
  EXPECT_THAT(notes_of(R"("stage": 3, "stage3_prefetch_bucket_size": 65535,
      "stage3_max_live_parameters": 1000, "stage3_param_persistence_threshold": 0)"),
              ElementsAre(AllOf(HasSubstr("stage3_prefetch_bucket_size 65,535 is below"),
                                HasSubstr(kLargest),
                                HasSubstr("never ahead")),
                          AllOf(HasSubstr("stage3_max_live_parameters 1,000 is below"),
                                HasSubstr(kLargest))));
  EXPECT_THAT(notes_of(R"("stage": 2, "stage3_prefetch_bucket_size": 10)"), IsEmpty());
}

// Below DeepSpeed's default of 1e5 elements nothing is sharded.
TEST(BucketsBelowAParameter, ThatIsNeverGatheredSayThat) {
  EXPECT_THAT(notes_of(R"("stage": 3, "stage3_prefetch_bucket_size": 10,
                          "stage3_max_live_parameters": 10)"),
              ElementsAre(AllOf(HasSubstr("stage3_prefetch_bucket_size 10"),
                                HasSubstr("every rank keeps it whole")),
                          AllOf(HasSubstr("stage3_max_live_parameters 10"),
                                HasSubstr("every rank keeps it whole"))));
}

TEST(BucketsBelowAParameter, AreNotReportedForLargerBuckets) {
  EXPECT_THAT(notes_of(R"("stage": 3, "reduce_bucket_size": 65536,
      "stage3_prefetch_bucket_size": 65536, "stage3_max_live_parameters": 65536)"),
              IsEmpty());
  EXPECT_THAT(notes_of(R"("stage": 3, "stage3_prefetch_bucket_size": 0)"), IsEmpty());
  EXPECT_THAT(notes_of(R"("stage": 3, "reduce_bucket_size": "auto")"), IsEmpty());
  EXPECT_THAT(notes_of(R"("stage": 2, "reduce_bucket_size": 10)", 1), IsEmpty());
}

}  // namespace
}  // namespace tessera::planner
