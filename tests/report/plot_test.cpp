// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/plot.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"

namespace tessera::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// The labels of two axes with at most 16 ticks each, their names, and those of the curves.
constexpr std::size_t kMostLabels = 2 * 16 + 8;

double next(double value) {
  return std::nextafter(value, kInfinite);
}

/// Curves whose range is nothing, rounding, or near the ends of the numbers.
std::vector<std::vector<double>> odd_curves() {
  return {{5.5, 5.5, 5.5},
          {5.5, next(5.5), 5.5},
          {5.523443501543292, 5.5234435015432926},
          {0, 0},
          {0, std::numeric_limits<double>::denorm_min()},
          {-1e-310, 1e-310},
          {-0.25, next(-0.25)},
          {1e15, 1e15 + 0.125},
          {1e16, 1e16 + 2},
          {-1e300, 1e300},
          {1e308, -1e308, 3},
          {kNaN, kInfinite, -kInfinite},
          {kNaN, 2, 2},
          {7}};
}

std::vector<CurvePoint> points_of(const std::vector<double>& values) {
  std::vector<CurvePoint> out;
  for (const double value : values)
    out.push_back({static_cast<std::int64_t>(out.size()) + 1, value});
  return out;
}

std::size_t labels_in(const std::string& svg) {
  return text::split(svg, '\n').size();
}

TEST(Plots, AreBoundedAndFiniteForEveryCurve) {
  for (const std::vector<double>& values : odd_curves()) {
    SCOPED_TRACE(testing::PrintToString(values));
    const std::vector<CurvePoint> points = points_of(values);

    for (const std::string& svg :
         {loss_plot({.train = points, .eval = points}),
          panels_plot({{.title = "panel", .curves = {{"curve", points}}}})}) {
      EXPECT_LE(labels_in(svg), kMostLabels);
      for (const char* const word :
           {"\"nan", "\"-nan", "\"inf", "\"-inf", ",nan", ",-nan", ",inf", ",-inf"})
        EXPECT_THAT(svg, Not(HasSubstr(word)));
    }
  }
}

TEST(Plots, OfStepsUpToTheLastNumberAreBounded) {
  const std::vector<CurvePoint> points = {{1, 2.0},
                                          {std::numeric_limits<std::int64_t>::max(), 1.0}};

  EXPECT_LE(labels_in(loss_plot({.train = points})), kMostLabels);
}

TEST(Plots, OfRoundingAreAFlatLine) {
  const std::string svg = loss_plot({.train = points_of({5.5, next(5.5)})});

  // The middle of the 348 pixels between the margins of 24 and 48.
  EXPECT_THAT(svg, HasSubstr(",198.0 740.0,198.0 "));
}

TEST(Plots, GiveNeighbouringTicksDifferentLabels) {
  const std::string svg = loss_plot({.train = points_of({5.50001, 5.50002})});

  EXPECT_THAT(svg, HasSubstr(">5.50001</text>"));
  EXPECT_THAT(svg, HasSubstr(">5.50002</text>"));
}

}  // namespace
}  // namespace tessera::report
