// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/class_plots.h"

#include <string>

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
  const std::string plot = roc_plot({{0, 0}, {0.5, 1}, {1, 1}}, 0.75);

  EXPECT_THAT(plot, HasSubstr("area 0.7500"));
  EXPECT_THAT(plot, HasSubstr("points=\"56.0,436.0 256.0,36.0 456.0,36.0 \""));
}

}  // namespace
}  // namespace tessera::report
