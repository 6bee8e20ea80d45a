// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/toml.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

TEST(Toml, HasItsTypesAndPlaces) {
  if (!reads_toml()) GTEST_SKIP() << "built without toml++";
  const json::Value value =
      parse_toml("a = 1\n[b.c]\nd = [1.5, true, \"x\"]\ne = 2024-05-01\n", "f.toml");
  EXPECT_EQ(value.dump(), R"({"a":1,"b":{"c":{"d":[1.5,true,"x"],"e":"2024-05-01"}}})");
  const json::Value& list = *value.find("b")->find("c")->find("d");
  EXPECT_EQ(list.key_place.text(), "f.toml:3:1");
  EXPECT_EQ(list.items()[1].place.text(), "f.toml:3:11");
}

TEST(Toml, RefusesWhatIsNotTomlWithItsPlace) {
  if (!reads_toml()) GTEST_SKIP() << "built without toml++";
  for (const char* text : {"a = ", "a = 1\na = 2", "[a]\n[a]", "a = inf", "= 1", "a = \"\n"}) {
    try {
      parse_toml(text, "f.toml");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.text(), HasSubstr("f.toml:")) << text;
    }
  }
}

TEST(Toml, RefusesKeysOfAnyDepth) {
  if (!reads_toml()) GTEST_SKIP() << "built without toml++";
  std::string text;
  for (int depth = 0; depth < 100'000; ++depth)
    text += "a.";
  EXPECT_THROW(parse_toml(text + "a = 1", "f.toml"), Error);
}

TEST(Toml, SaysThatItIsMissing) {
  if (reads_toml()) GTEST_SKIP() << "built with toml++";
  EXPECT_THROW(parse_toml("a = 1", "f.toml"), Error);
}

}  // namespace
}  // namespace tessera::interop
