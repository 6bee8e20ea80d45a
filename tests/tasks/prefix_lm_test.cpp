// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;

class PrefixLanguageModel : public test::RecordTest {
 protected:
  data::DataOptions text(std::int64_t tokens) {
    std::string out;
    for (std::int64_t i = 0; i < tokens; ++i)
      out += static_cast<char>('a' + i % 26);
    return options(out, "text.txt");
  }
};

TEST_F(PrefixLanguageModel, LearnsTheTokensAfterThePrefix) {
  const data::Datasets opened = open(*task_of("prefix_lm"), text(16 * 200 + 1), 16);
  std::set<std::int64_t> lengths;

  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const Ids ids = values(*opened.train, i, "input_ids"),
              labels = values(*opened.train, i, "labels");
    const std::int64_t prefix = values(*opened.train, i, "prefix_lengths").front();
    lengths.insert(prefix);
    for (std::int64_t t = 0; t < 15; ++t) {
      const auto at = static_cast<std::size_t>(t);
      EXPECT_EQ(labels[at], t + 1 < prefix ? -100 : ids[at + 1]);
    }
  }

  // Of 200 samples each of the 15 lengths has 13 on average.
  EXPECT_EQ(lengths.size(), 15U);
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_EQ(*lengths.rbegin(), 15);
}

TEST_F(PrefixLanguageModel, KeepsThePrefixWithinTheShares) {
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"min_prefix": 0.25, "max_prefix": 0.5})"), text(3201), 16);

  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const std::int64_t prefix = values(*opened.train, i, "prefix_lengths").front();
    EXPECT_GE(prefix, 4);
    EXPECT_LE(prefix, 8);
  }
}

TEST_F(PrefixLanguageModel, CountsOnlyTheTokensOfADocument) {
  data::DataOptions data = options("{\"text\": \"abcd\"}\n{\"text\": \"e\"}\n");
  data.pack = false;
  const data::Datasets opened =
      open(*task_of("prefix_lm", R"({"min_prefix": 1, "max_prefix": 1})"), data, 8);

  ASSERT_EQ(opened.train->size(), 2);
  const Ids mask = values(*opened.train, 0, "attention_mask");
  EXPECT_EQ(values(*opened.train, 0, "prefix_lengths").front(), std::ranges::count(mask, 1) - 1);
  EXPECT_EQ(values(*opened.train, 1, "prefix_lengths").front(), 1);
}

TEST_F(PrefixLanguageModel, RefusesWhatHasNoOnePrefix) {
  data::DataOptions data = text(100);
  data.separate_documents = true;

  EXPECT_THAT(error_of([&] { open(*task_of("prefix_lm"), data, 16); }).what(),
              HasSubstr("one prefix"));
  EXPECT_THAT(
      error_of([] { task_of("prefix_lm", R"({"min_prefix": 0.7, "max_prefix": 0.3})"); }).what(),
      HasSubstr("min_prefix"));
}

}  // namespace
}  // namespace tessera::tasks
