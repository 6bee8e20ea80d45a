// SPDX-License-Identifier: Apache-2.0
// The page of two models' answers shows texts as they are.
#include "tessera/rlhf/compared_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::rlhf {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ComparedAnswers, AreTextsAndNotMarkup) {
  const Answers a{.texts = {"1 < 2 & <script>"}, .scores = {0.25}}, b{.texts = {"none"}};

  const std::string page = comparison_page({"run <a>", "run b"}, {"is 1 < 2?"}, {a, b});

  EXPECT_THAT(page, HasSubstr("1 &lt; 2 &amp; &lt;script&gt;\n<small>score 0.2500</small>"));
  EXPECT_THAT(page, HasSubstr("<th>run &lt;a&gt;</th><th>run b</th>"));
  EXPECT_THAT(page, HasSubstr("<td>is 1 &lt; 2?</td>"));
  EXPECT_THAT(page, HasSubstr("<td>none</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
}

}  // namespace
}  // namespace tessera::rlhf
