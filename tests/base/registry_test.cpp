// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Registries, FindNamesInAnyCaseAndKeepTheirSpelling) {
  Registry<int> numbers("number");
  numbers.add("Two", 2);
  numbers.add("One", 1);

  EXPECT_EQ(numbers.get("TWO"), 2);
  EXPECT_TRUE(numbers.has("one"));
  EXPECT_THAT(numbers.names(), ElementsAre("One", "Two"));
}

TEST(Registries, AnUnknownNameComesWithTheNearest) {
  Registry<int> numbers("number");
  numbers.add("three", 3);

  try {
    (void)numbers.get("thre");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    EXPECT_THAT(error.text(), HasSubstr("unknown number \"thre\""));
    EXPECT_THAT(error.text(), HasSubstr("\"three\""));
  }
}

TEST(Registries, RefuseANameTwice) {
  Registry<int> numbers("number");
  numbers.add("one", 1);

  EXPECT_THROW(numbers.add("ONE", 1), Error);
}

TEST(Errors, TextIsWhatAndFixWithoutTheSource) {
  const Error error(Error::Kind::Data, "what", "fix it");

  EXPECT_EQ(error.text(), "what\n  fix: fix it");
  EXPECT_EQ(Error(Error::Kind::Data, "what").text(), "what");
  EXPECT_EQ(exit_code(Error::Kind::Data), 3);
  EXPECT_EQ(exit_code(Error::Kind::Bug), 70);
}

// Known answers from Random123's test vectors (kat_vectors, philox4x32 10).
TEST(PhiloxWords, AreThePublishedOnes) {
  const Philox zeros{0}, ones{~0ULL};

  EXPECT_EQ(zeros(0, 0), (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(ones(~0ULL, ~0ULL), (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(PhiloxWords, BecomeNumbersInsideTheirRanges) {
  EXPECT_EQ(uniform_float(0), 0.0F);
  EXPECT_LT(uniform_float(~0U), 1.0F);
  EXPECT_GT(uniform_double(0, 0), 0.0);
  EXPECT_LE(uniform_double(~0U, ~0U), 1.0);
}

}  // namespace
}  // namespace tessera
