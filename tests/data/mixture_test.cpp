// SPDX-License-Identifier: Apache-2.0
// The order of the samples of several sources.
#include "tessera/data/mixture.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"

namespace tessera::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> sources_in(const Mixture& mixture) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < mixture.size(); ++i)
    out.push_back(mixture.at(i).source);
  return out;
}

TEST(Mixture, InterleavesByWeightsAsEvenlyAsCanBe) {
  // Three samples of the first source are due at 1/6, 3/6 and 5/6 of a round, the one of the second
  // at 1/2.
  const Mixture mixture = Mixture::interleaved({6, 2}, {3.0, 1.0}, MixUntil::Last);
  EXPECT_THAT(sources_in(mixture), ElementsAre(0, 0, 1, 0, 0, 0, 1, 0));
  EXPECT_EQ(mixture.at(5), (Mixture::Place{0, 4}));
  EXPECT_EQ(mixture.at(6), (Mixture::Place{1, 1}));
}

TEST(Mixture, EndsWithTheFirstSourceOrTheLast) {
  const Mixture first = Mixture::interleaved({100, 2}, {1.0, 1.0}, MixUntil::First);
  // a b a b a; a third sample of the second there is not.
  EXPECT_THAT(sources_in(first), ElementsAre(0, 1, 0, 1, 0));
  const Mixture last = Mixture::interleaved({3, 2}, {1.0, 1.0}, MixUntil::Last);
  EXPECT_THAT(sources_in(last), ElementsAre(0, 1, 0, 1, 0));
  const Mixture again = Mixture::interleaved({5, 2}, {1.0, 1.0}, MixUntil::Last);
  EXPECT_EQ(again.size(), 9);
  EXPECT_EQ(again.at(5), (Mixture::Place{1, 0, 1})) << "the second one begins anew";
  EXPECT_EQ(again.count(0), 5);
  EXPECT_EQ(again.count(1), 4);
}

TEST(Mixture, ReadsEverySampleWithTheSharesThatAreAskedFor) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Mixture mixture = Mixture::interleaved({350, 90, 50}, weights, MixUntil::Last);
  EXPECT_EQ(mixture.size(), 500);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::vector<std::int64_t> counts(3);
  for (std::int64_t i = 0; i < mixture.size(); ++i) {
    const Mixture::Place place = mixture.at(i);
    seen.insert({place.source, place.index});
    ++counts[static_cast<std::size_t>(place.source)];
    // No source is ever ahead or behind by more than a sample.
    for (std::size_t s = 0; s < 3; ++s)
      EXPECT_NEAR(static_cast<double>(counts[s]), weights[s] * static_cast<double>(i + 1), 1.0);
  }
  EXPECT_EQ(seen.size(), 350U + 90U + 50U);
  EXPECT_THAT(counts, ElementsAre(350, 100, 50));
  EXPECT_EQ(mixture.count(1), 100);
}

TEST(Mixture, TakesWeightsThatAreNotWholeNumbers) {
  const double third = 1.0 / 3.0;
  const Mixture mixture =
      Mixture::interleaved({200'000, 100'000}, {2.0 * third, third}, MixUntil::Last);
  EXPECT_NEAR(static_cast<double>(mixture.count(0)) / static_cast<double>(mixture.size()),
              2.0 * third,
              1e-4);
  const Mixture rare = Mixture::interleaved({10, 10}, {1e9, 1e-3}, MixUntil::First);
  EXPECT_EQ(rare.size(), 10);
}

TEST(Mixture, JoinsSources) {
  const Mixture mixture = Mixture::joined({2, 3});
  EXPECT_THAT(sources_in(mixture), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(mixture.at(4), (Mixture::Place{1, 2}));
  EXPECT_EQ(mixture.count(1), 3);
}

std::string refusal_of(const std::string& sources) {
  try {
    (void)sources_of(json::parse(sources, "my.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.what();
  }
  return "nothing";
}

TEST(Sources, AreReadWithTheirWeights) {
  const auto sources =
      sources_of(json::parse(R"([{"path": "a", "weight": 0.5}, {"path": ["b", "c"]}])", "my.json"));
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0].weight, 0.5);
  EXPECT_THAT(sources[1].paths, ElementsAre("b", "c"));
  EXPECT_EQ(sources[1].weight, 1.0);

  EXPECT_THAT(refusal_of("{}"), HasSubstr("my.json:1:1: data.sources: expected a list"));
  EXPECT_THAT(refusal_of("[]"), HasSubstr("expected a list"));
  EXPECT_THAT(refusal_of("[3]"), HasSubstr("an entry is a number"));
  EXPECT_THAT(refusal_of("[{}]"), HasSubstr("no \"path\""));
  EXPECT_THAT(refusal_of(R"([{"path": 3}])"), HasSubstr("neither a path nor a list"));
  EXPECT_THAT(refusal_of(R"([{"path": "a", "weight": 0}])"), HasSubstr("not a number above 0"));
  EXPECT_THAT(refusal_of(R"([{"path": "a", "wieght": 1}])"), HasSubstr("unknown key \"wieght\""));
}

TEST(Sources, StandForTheTrainingData) {
  json::Value config =
      json::parse(R"({"data": {"sources": [{"path": "a"}, {"path": ["b", "c"]}]}})", "my.json");
  spell_out_sources(config);
  EXPECT_EQ(config.find("data")->find("train")->dump(), R"(["a","b","c"])");
  const json::Value again = config;
  spell_out_sources(config);  // as a resolved configuration is read
  EXPECT_EQ(config, again);

  (*config.find("data"))["train"] = json::Value::string("d");
  EXPECT_THROW(spell_out_sources(config), Error);
}

}  // namespace
}  // namespace tessera::data
