// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/schema.h"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/config/json.h"

namespace tessera::config {
namespace {

struct Inner {
  std::optional<std::int64_t> count;
  double rate = 0.5;
  void describe(Fields& f) {
    f.field("count", count, {.text = "A count.", .unit = "steps", .min = 1, .max = 9});
    f.field("rate", rate, {.text = "A rate.", .min = 0, .above_min = true});
  }
};

struct Outer {
  std::string word = "a";
  std::vector<std::string> files;
  json::Value sizes;
  Inner inner;
  void describe(Fields& f) {
    f.field("word", word, {.text = "A word.", .choices = {"a", "b"}});
    f.field("files", files, {.text = "Files.", .required = true});
    f.field("sizes", sizes, {.text = "Sizes.", .type = "integer or list of integers"});
    f.section("inner", inner, "Keys inside.");
  }
};

TEST(Schema, HasTypesLimitsChoicesAndTexts) {
  const json::Value expected = json::parse(R"({
    "type": ["object", "null"],
    "properties": {
      "word": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "description": "A word.", "default": "a"},
      "files": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "Files."},
      "sizes": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
                "description": "Sizes."},
      "inner": {
        "type": ["object", "null"],
        "properties": {
          "count": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}],
                    "description": "A count. Unit: steps."},
          "rate": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}],
                   "description": "A rate.", "default": 0.5}
        },
        "additionalProperties": false,
        "description": "Keys inside."
      }
    },
    "additionalProperties": false
  })",
                                           "expected");

  EXPECT_EQ(schema(Outer()), expected) << schema(Outer()).dump(2);
}

TEST(Schema, OfATypeItDoesNotKnowAllowsAnything) {
  EXPECT_EQ(schema_of_type("number or something else"), json::Value::object());
}

TEST(Schema, KeepsTextsOutsideOfAlternatives) {
  json::Value one = json::parse(R"({"type": "integer", "description": "A count."})", "one");

  allow_also(one, json::parse(R"({"const": "auto"})", "other"));

  EXPECT_EQ(one,
            json::parse(
                R"({"description": "A count.", "anyOf": [{"type": "integer"}, {"const": "auto"}]})",
                "expected"));
}

}  // namespace
}  // namespace tessera::config
