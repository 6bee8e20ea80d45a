// SPDX-License-Identifier: Apache-2.0
// What hosts tell of the facts in which they differ.
#include "tessera/hosts/fact.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::hosts {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Kind = Fact::Kind;

/// The texts of differences, with their fixes.
std::vector<std::string> told(const std::vector<Fact>& facts, const std::vector<Fact>& of_first) {
  std::vector<std::string> out;
  for (const FactDifference& one : differences("node-1", facts, "node-0", of_first))
    out.push_back(one.what + " / " + one.fix);
  return out;
}

const std::vector<Fact> kFacts = {{Kind::Setting, "optimizer.params.lr", "", "0.001"},
                                  {Kind::Samples, "data.train", "a.txt", "10 samples 0123"},
                                  {Kind::Contents, "model.from", "base/model.safetensors", "4567"},
                                  {Kind::Derived, "the number of steps", "", "40"},
                                  {Kind::Progress, "the newest checkpoint", "", "step 4"}};

TEST(Facts, ThatAreEqualAreNotADifference) {
  EXPECT_THAT(told(kFacts, kFacts), IsEmpty());
  EXPECT_THAT(told({}, {}), IsEmpty());
}

// Whichever fact differs, the message says which one, on which hosts, and what to do.
TEST(Facts, EveryOneThatDiffersIsNamedWithBothHosts) {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    SCOPED_TRACE(kFacts[i].what);
    std::vector<Fact> other = kFacts;
    other[i].value = "another";

    const std::vector<std::string> texts = told(other, kFacts);

    ASSERT_THAT(texts, SizeIs(1));
    EXPECT_THAT(
        texts.front(),
        AllOf(HasSubstr(kFacts[i].what), HasSubstr("host node-1"), HasSubstr("host node-0")));
    if (kFacts[i].kind == Kind::Contents || kFacts[i].kind == Kind::Samples) {
      EXPECT_THAT(texts.front(),
                  AllOf(HasSubstr(kFacts[i].where), HasSubstr("copy the same files")));
    } else {
      EXPECT_THAT(texts.front(), AllOf(HasSubstr(kFacts[i].value), HasSubstr("another")));
    }
  }
}

TEST(Facts, ThatFollowFromOthersAreNotReported) {
  std::vector<Fact> other = kFacts;
  other[1].value = "12 samples 89ab";
  other[3].value = "48";

  EXPECT_THAT(told(other, kFacts), ElementsAre(HasSubstr("data.train differs: a.txt has other")));
}

// Another length of samples, or another tokenizer, makes other samples of equal files.
TEST(Facts, OfSamplesAreNotReportedIfTheirSourcesDiffer) {
  std::vector<Fact> facts = kFacts, other;
  facts.push_back({Kind::Contents, kTokenizer, "tokenizer.json", "1"});
  for (const std::size_t changed : {std::size_t{0}, facts.size() - 1}) {
    other = facts;
    other[1].value = "12 samples 89ab";
    other[changed].value = "another";

    EXPECT_THAT(told(other, facts), ElementsAre(HasSubstr(facts[changed].what + " differs")));
  }
  other = facts;
  other[1].value = other[2].value = "another";
  EXPECT_THAT(told(other, facts), SizeIs(2)) << "weights make no samples";
}

TEST(Facts, ThatOneHostAloneHasAreNamed) {
  std::vector<Fact> more = kFacts;
  more.push_back({Kind::Contents, "reward program", "score.py", "cdef"});

  EXPECT_THAT(
      told(more, kFacts),
      ElementsAre(HasSubstr("reward program score.py: host node-1 has it and host node-0 has "
                            "not")));
  EXPECT_THAT(
      told(kFacts, more),
      ElementsAre(HasSubstr("reward program score.py: host node-0 has it and host node-1 has "
                            "not")));
}

TEST(Facts, ThatDifferInLargeNumbersAreCounted) {
  std::vector<Fact> one, other;
  for (int i = 0; i < 100; ++i) {
    one.push_back({Kind::Setting, "key" + std::to_string(i), "", "1"});
    other.push_back({Kind::Setting, "key" + std::to_string(i), "", "2"});
  }

  const std::vector<std::string> texts = told(one, other);

  ASSERT_THAT(texts, SizeIs(9));
  EXPECT_THAT(texts.back(), HasSubstr("host node-1: 92 more differences"));
}

}  // namespace
}  // namespace tessera::hosts
