// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/link_speed.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

constexpr std::size_t kMessage = std::size_t{1} << 20;

/// Feeds messages of one MiB that arrive one after the other at this speed, for `seconds`. Returns
/// the report.
std::vector<std::string> run(LinkSpeed& link, double& now, double mib_per_s, double seconds) {
  std::vector<std::string> told;
  for (const double until = now + seconds; now < until;) {
    now += 1.0 / mib_per_s;
    if (const auto text = link.add(kMessage, 1.0 / mib_per_s, now)) told.push_back(*text);
  }
  return told;
}

TEST(LinkSpeed, ReportsALinkThatBecomesSlowOnce) {
  LinkSpeed link;
  double now = 100.0;
  EXPECT_THAT(run(link, now, 200.0, 10.0), testing::IsEmpty());

  const auto told = run(link, now, 2.0, 30.0);

  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], testing::AllOf(testing::HasSubstr("2.0 MiB/s"), testing::HasSubstr("200")));
}

TEST(LinkSpeed, ReportsWithinTenSeconds) {
  LinkSpeed link;
  double now = 100.0;
  run(link, now, 200.0, 10.0);

  EXPECT_EQ(run(link, now, 2.0, 10.0).size(), 1U);
}

TEST(LinkSpeed, TakesNoNoticeOfSingleMessagesAndOfSmallOnes) {
  LinkSpeed link;
  double now = 100.0;
  run(link, now, 200.0, 10.0);
  for (int i = 0; i < 20; ++i) {
    now += 0.5;
    EXPECT_FALSE(link.add(kMessage, 0.5, now));
    EXPECT_FALSE(link.add(100, 1.0, now));
    EXPECT_THAT(run(link, now, 190.0, 0.5), testing::IsEmpty());
  }
}

TEST(LinkSpeed, ReportsAgainAfterTheLinkHasRecovered) {
  LinkSpeed link;
  double now = 100.0;
  run(link, now, 200.0, 10.0);
  EXPECT_EQ(run(link, now, 10.0, 20.0).size(), 1U);
  EXPECT_THAT(run(link, now, 150.0, 20.0), testing::IsEmpty());

  EXPECT_EQ(run(link, now, 10.0, 20.0).size(), 1U);
}

}  // namespace
}  // namespace tessera::comm
