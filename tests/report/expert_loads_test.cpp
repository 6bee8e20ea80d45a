// SPDX-License-Identifier: Apache-2.0
// labels: fast
#include "tessera/report/expert_loads.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

ExpertLoads loads_of(std::vector<std::int64_t> chosen, std::int64_t dropped = 0) {
  return {.step = 20, .steps = 10, .layers = {{"h.0", std::move(chosen), dropped}}};
}

TEST(ExpertLoads, MeasureUnevennessAndEntropy) {
  const LayerLoads even = {"h.0", {5, 5, 5, 5}, 0}, one = {"h.0", {20, 0, 0, 0}, 5},
                   none = {"h.0", {0, 0}, 0};
  EXPECT_EQ(even.unevenness(), 1.0);
  EXPECT_NEAR(even.relative_entropy(), 1.0, 1e-12);
  EXPECT_EQ(one.unevenness(), 4.0);
  EXPECT_EQ(one.relative_entropy(), 0.0);
  EXPECT_EQ(one.dropped_share(), 0.25);
  EXPECT_EQ(none.unevenness(), 0.0);
  EXPECT_EQ(none.relative_entropy(), 1.0);
  // Half and a quarter twice: (1/2 + 2/4 + 2/4) of log2, over log2(3).
  const LayerLoads mixed = {"h.0", {2, 1, 1}, 0};
  EXPECT_NEAR(mixed.relative_entropy(), 1.5 / std::log2(3.0), 1e-12);
}

TEST(ExpertLoads, AreReadAsTheyWereWritten) {
  const files::TempDir folder;
  ExpertLoads written;
  written.add(4, {{"h.0", {1, 2}, 0}, {"h.1", {3, 0}, 1}});
  written.add(5, {{"h.0", {10, 20}, 0}, {"h.1", {30, 0}, 2}});
  files::write_atomic(folder.path() / "experts.json", json_of(written).dump());

  const ExpertLoads read = read_expert_loads(folder.path());

  EXPECT_EQ(read.step, 5);
  EXPECT_EQ(read.steps, 2);
  ASSERT_EQ(read.layers.size(), 2U);
  EXPECT_EQ(read.layers[1].layer, "h.1");
  EXPECT_THAT(read.layers[0].chosen, ElementsAre(11, 22));
  EXPECT_THAT(read.layers[1].chosen, ElementsAre(33, 0));
  EXPECT_EQ(read.layers[1].dropped, 3);
  EXPECT_TRUE(read_expert_loads(folder.path() / "elsewhere").layers.empty());
}

TEST(ExpertLoads, OfAnotherFormAreRefused) {
  for (const char* text : {"[]",
                           "{}",
                           R"({"step": 1, "steps": 1, "layers": {}})",
                           R"({"step": -1, "steps": 1, "layers": []})",
                           R"({"step": 9223372036854775807, "steps": 0, "layers": []})",
                           R"({"step": 1, "steps": 1, "layers": [{"name": 3}]})",
                           R"({"step": 1, "steps": 1, "layers": [{"name": "h", "chosen": [],
                               "dropped": 0}]})",
                           R"({"step": 1, "steps": 1, "layers": [{"name": "h", "chosen": [1.5],
                               "dropped": 0}]})",
                           R"({"step": 1, "steps": 1, "layers": [{"name": "h", "dropped": 0,
                               "chosen": [9000000000000000000, 9000000000000000000]}]})"}) {
    EXPECT_THROW((void)expert_loads_of(json::parse_strict(text, "x"), "x"), Error) << text;
  }
}

TEST(ExpertLoads, TellDeadAndOverloadedExpertsAndWhatIsDropped) {
  EXPECT_TRUE(expert_findings(loads_of({40, 45, 50, 38})).empty());
  EXPECT_TRUE(expert_findings(loads_of({0, 3, 9, 0})).empty()) << "too few to tell";
  EXPECT_TRUE(expert_findings({}).empty());
  EXPECT_THAT(expert_findings(loads_of({0, 100, 100, 0})),
              ElementsAre(HasSubstr("h.0: experts 0, 3 of 4 got no token in steps 11 to 20")));
  EXPECT_THAT(expert_findings(loads_of({50, 100, 0})),
              ElementsAre(HasSubstr("h.0: expert 2 of 3 got no token")));
  EXPECT_THAT(expert_findings(loads_of({1000, 10, 10, 10, 10})),
              ElementsAre(HasSubstr("expert 0 of 5 got more than 3 times the mean")));
  EXPECT_THAT(expert_findings(loads_of({50, 50}, 20)),
              ElementsAre(HasSubstr("20% of the choices were dropped")));
}

TEST(ExpertLoads, AreDrawnWithACellForEachExpert) {
  ExpertLoads loads = loads_of({90, 5, 5});
  loads.layers[0].layer = "h<0>";

  const std::string picture = experts_plot(loads);

  std::size_t cells = 0;
  for (std::size_t at = picture.find("<title>"); at != std::string::npos;
       at = picture.find("<title>", at + 1))
    ++cells;
  EXPECT_EQ(cells, 3U);
  EXPECT_THAT(picture, HasSubstr("expert 0: 90 choices, 2.70 of the mean"));
  EXPECT_THAT(picture, HasSubstr("#c0392b")) << "more than twice the mean";
  EXPECT_THAT(picture, Not(HasSubstr("h<0>")));
}

}  // namespace
}  // namespace tessera::report
