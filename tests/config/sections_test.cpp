// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/sections.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/document.h"

namespace tessera::config {
namespace {

struct Later {
  bool enabled = false;
  void describe(Fields& f) { f.field("enabled", enabled, {.text = "Whether it is on."}); }
};
struct Sooner {
  std::int64_t size = 3;
  void describe(Fields& f) { f.field("size", size, {.text = "A size.", .min = 1}); }
  void check(Problems& problems, const Origins& origins) const {
    if (size % 2 == 0) problems.add(origins.place("sooner.size"), "sooner.size", "is even");
  }
};
struct Unregistered {
  void describe(Fields& /*fields*/) {}
};
const bool kLater = add_section<Later>("a_later_one", 20, "The second section.");
const bool kSooner = add_section<Sooner>("sooner", 10, "The first section.");

Sections read_sections(const std::string& text, Problems& problems, Origins& origins) {
  Sections out;
  read(json::parse(text, "c.json"), out, problems, origins);
  return out;
}

TEST(Sections, HaveTheOrderOfTheirRegistrationAndNotOfTheirKeys) {
  std::vector<std::string> paths;
  for (const KeyDoc& key : document(Sections()))
    paths.push_back(key.path);

  EXPECT_THAT(paths, testing::IsSupersetOf({"sooner.size", "a_later_one.enabled"}));
  EXPECT_LT(std::ranges::find(paths, "sooner.size"),
            std::ranges::find(paths, "a_later_one.enabled"));
}

TEST(Sections, AreReadAndWrittenLikeMembers) {
  Problems problems;
  Origins origins;

  Sections sections = read_sections(R"({"sooner": {"size": 5}})", problems, origins);

  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(sections.get<Sooner>().size, 5);
  EXPECT_FALSE(sections.get<Later>().enabled);
  EXPECT_TRUE(origins.given("sooner.size"));
  EXPECT_EQ(write(sections),
            json::parse(R"({"sooner": {"size": 5}, "a_later_one": {"enabled": false}})", "c"));
}

TEST(Sections, ReportProblemsOfReadingAndOfTheirOwnChecks) {
  Problems wrong, even;
  Origins origins;

  read_sections(R"({"sooner": {"size": 0}, "a_later_one": {"enable": true}})", wrong, origins);
  read_sections(R"({"sooner": {"size": 4}})", even, origins).check(even, origins);

  ASSERT_EQ(wrong.list().size(), 2U);
  EXPECT_EQ(wrong.list()[0].path, "sooner.size");
  EXPECT_EQ(wrong.list()[1].path, "a_later_one.enable");
  ASSERT_EQ(even.list().size(), 1U);
  EXPECT_EQ(even.list()[0].what, "is even");
  EXPECT_THAT(even.list()[0].place.text(), testing::StartsWith("c.json:1:"));
}

TEST(Sections, OfTwoCopiesAreIndependent) {
  Problems problems;
  Origins origins;
  const Sections before;

  Sections changed = before;
  read(json::parse(R"({"sooner": {"size": 7}})", "c"), changed, problems, origins);

  EXPECT_EQ(before.get<Sooner>().size, 3);
  EXPECT_EQ(changed.get<Sooner>().size, 7);
}

TEST(Sections, WithoutRegistrationAreABug) {
  EXPECT_THROW((void)Sections().get<Unregistered>(), Error);
}

}  // namespace
}  // namespace tessera::config
