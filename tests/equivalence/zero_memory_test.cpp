// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 600
// Bytes that a rank keeps on one rank and on four; the slow suite looks at two.
#include "equivalence/zero_cost.h"

namespace tessera::test {
namespace {

TEST(ZeroMemoryElsewhere, OnOneRankEveryStageIsTheSame) {
  expect_stages_keep_what_they_promise(1);
}

TEST(ZeroMemoryElsewhere, OnFourRanksIsWhatTheStagePromises) {
  expect_stages_keep_what_they_promise(4);
}

}  // namespace
}  // namespace tessera::test
