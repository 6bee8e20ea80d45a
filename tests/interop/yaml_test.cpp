// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/yaml.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

std::string read(const std::string& text) {
  return parse_yaml(text, "x.yaml").dump();
}

std::string refusal(const std::string& text) {
  try {
    parse_yaml(text, "x.yaml");
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(Yaml, HasTheTypesOfPyYaml) {
  EXPECT_EQ(read("a: 1\nb: 2.5\nc: true\nd: Off\ne: ~\nf:\ng: text\nh: \"1\"\ni: 'no'\n"),
            R"({"a":1,"b":2.5,"c":true,"d":false,"e":null,"f":null,"g":"text","h":"1","i":"no"})");
  EXPECT_EQ(read("a: 1.0e-4\nb: .5\nc: 1.\nd: -3\ne: 1_000\n"),
            R"({"a":1.0e-4,"b":0.5,"c":1,"d":-3,"e":1000})");
  // PyYAML takes this for a text, and the programs convert it.
  EXPECT_EQ(read("a: 2e-4\n"), R"({"a":2e-4})");
  EXPECT_EQ(read("a: 1.2.3\nb: 7b\nc: 0x\n"), R"({"a":"1.2.3","b":"7b","c":"0x"})");
  EXPECT_EQ(read("a: [1, {b: 2}]\nc:\n  - d\n"), R"({"a":[1,{"b":2}],"c":["d"]})");
  EXPECT_EQ(read(""), "null");
}

TEST(Yaml, HasPlaces) {
  const json::Value value = parse_yaml("a: 1\nb:\n  c: text\n", "x.yaml");
  EXPECT_EQ(value.find("b")->find("c")->place.text(), "x.yaml:3:6");
  EXPECT_EQ(value.find("b")->find("c")->key_place.text(), "x.yaml:3:3");
}

TEST(Yaml, ResolvesAnchorsAndMergeKeys) {
  EXPECT_EQ(read("a: &a {x: 1, y: 2}\nb: *a\nc:\n  <<: *a\n  y: 3\n"),
            R"({"a":{"x":1,"y":2},"b":{"x":1,"y":2},"c":{"y":3,"x":1}})");
}

TEST(Yaml, RefusesWhatIsAmbiguousOrExplodes) {
  EXPECT_THAT(refusal("a: 1\na: 2\n"), HasSubstr("x.yaml:2:1: the key \"a\" occurs twice"));
  EXPECT_THAT(refusal("a:\n\tb: 1\n"), HasSubstr("indent with spaces"));
  EXPECT_THAT(refusal("a: 1\n---\nb: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(refusal("? [a, b]\n: c\n"), HasSubstr("a key is a text"));
  EXPECT_THAT(refusal("a: &a [*a]\n"), HasSubstr("x.yaml:1:"));
  EXPECT_THAT(refusal("a: [1, 2\n"), HasSubstr("not YAML"));
  EXPECT_THAT(refusal("a: \"\xFF\"\n"), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal(std::string(200, '[') + std::string(200, ']')), HasSubstr("nest deeper"));
  std::string aliases = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    aliases += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k)
      aliases += (k == 0 ? "" : ",") + before;
    aliases += "]\n";
  }
  EXPECT_THAT(refusal(aliases), HasSubstr("with its aliases"));
}

}  // namespace
}  // namespace tessera::interop
