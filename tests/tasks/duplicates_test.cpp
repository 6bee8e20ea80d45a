// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/duplicates.h"

#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera::tasks {
namespace {

TEST(DuplicatesOfRecords, AreCountedExactlyWhileTheyFit) {
  Duplicates seen;

  for (const std::uint64_t hash : {7U, 8U, 7U, 7U, 9U, 8U})
    seen.add(hash);

  EXPECT_EQ(seen.count(), 3);
  EXPECT_TRUE(seen.exact());
  EXPECT_EQ(seen.weight_of(9), 1);
  EXPECT_EQ(seen.weight_of(10), 0);
}

TEST(DuplicatesOfRecords, AreEstimatedInBoundedMemory) {
  // Of 40,000 different hashes every fourth occurs three times: 20,000 duplicates.
  Duplicates seen(/*most=*/2500);
  double found = 0;
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    for (int times = i % 4 == 0 ? 3 : 1; times > 0; --times)
      seen.add(mix64(i));
  }
  for (std::uint64_t i = 0; i < 40'000; ++i)
    found += static_cast<double>(seen.weight_of(mix64(i)));

  EXPECT_FALSE(seen.exact());
  // At least 1250 hashes are kept of 40,000, and about a quarter of them have duplicates: the
  // relative standard deviations are 1 / sqrt(1250) and 1 / sqrt(312) at most.
  EXPECT_NEAR(found, 40'000, 4 * 40'000 / 35.0);
  EXPECT_NEAR(static_cast<double>(seen.count()), 20'000, 4 * 20'000 / 17.0);
}

}  // namespace
}  // namespace tessera::tasks
