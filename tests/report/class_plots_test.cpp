// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/class_plots.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ClassPlots, ShowEachCountAndEscapeNames) {
  const std::string plot = confusion_plot({"a<b", "c"}, {3, 1, 0, 4});

  EXPECT_THAT(plot, HasSubstr("a&lt;b said of a&lt;b: 3</title>"));
  EXPECT_THAT(plot, HasSubstr("c said of a&lt;b: 1</title>"));
  EXPECT_THAT(plot, HasSubstr("fill-opacity=\"0.750\""));
  EXPECT_THAT(plot, HasSubstr("fill-opacity=\"1.000\""));
  EXPECT_THAT(plot, Not(HasSubstr("a<b")));
}

TEST(ClassPlots, DrawTheCurveFromCornerToCorner) {
  const std::string plot = roc_plot({{"b", {{0, 0}, {0.5, 1}, {1, 1}}, 0.75}});

  EXPECT_THAT(plot, HasSubstr("area 0.7500"));
  EXPECT_THAT(plot, HasSubstr("points=\"56.0,436.0 256.0,36.0 456.0,36.0 \""));
}

TEST(ClassPlots, NameEachOfSeveralCurvesAndDropThoseOfTheGreatestArea) {
  std::vector<RocCurve> curves;
  for (int i = 0; i < 12; ++i)
    curves.push_back({"c" + std::to_string(i), {{0, 0}, {1, 1}}, 0.5 + 0.01 * i});

  const std::string plot = roc_plot(curves);

  EXPECT_THAT(plot, HasSubstr("c0, area 0.5000"));
  EXPECT_THAT(plot, HasSubstr("c9, area 0.5900"));
  EXPECT_THAT(plot, Not(HasSubstr("c10, ")));
}

TEST(ClassPlots, CountEachLabelThatAppliesOrNot) {
  const std::string plot = flags_plot({"a", "b"}, {{6, 2, 1, 3}, {12, 0, 0, 0}});

  EXPECT_THAT(plot, HasSubstr("<title>a rightly absent: 6</title>"));
  EXPECT_THAT(plot, HasSubstr("<title>a wrongly found: 2</title>"));
  EXPECT_THAT(plot, HasSubstr("<title>a missed: 1</title>"));
  EXPECT_THAT(plot, HasSubstr("<title>a rightly found: 3</title>"));
  EXPECT_THAT(plot, HasSubstr("fill-opacity=\"0.750\"")) << "three quarters of those without a";
}

}  // namespace
}  // namespace tessera::report
