// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/json.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"

namespace tessera::json {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns the message and the fix of what parse() rejects; "" if it accepts the text.
std::string refusal(std::string_view text) {
  try {
    parse(text, "c.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

bool strict_accepts(std::string_view text) {
  try {
    parse_strict(text, "m.json");
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    return false;
  }
}

TEST(JsonValues, KeepTheirTypesAndTheOrderOfMembers) {
  const Value v = parse(R"({"b": [1, -2.5, true, null], "a": {"s": "x"}})", "c.json");

  EXPECT_EQ(v.members()[0].first, "b");
  EXPECT_EQ(v.find("b")->items()[0].as_integer(), 1);
  EXPECT_EQ(v.find("b")->items()[1].as_double(), -2.5);
  EXPECT_TRUE(v.find("b")->items()[2].as_bool());
  EXPECT_TRUE(v.find("b")->items()[3].is_null());
  EXPECT_EQ(v.find("a")->find("s")->as_string(), "x");
  EXPECT_EQ(v.find("c"), nullptr);
}

TEST(JsonValues, KnowWhereTheyAndTheirKeysStood) {
  const Value v = parse("{\n  \"lr\":  7,\n  \"é\": [1, 22]\n}", "c.json");

  EXPECT_EQ(v.find("lr")->place.text(), "c.json:2:10");
  EXPECT_EQ(v.find("lr")->key_place.text(), "c.json:2:3");
  EXPECT_EQ(v.find("é")->items()[1].place.text(), "c.json:3:12");
}

TEST(JsonNumbers, WithAnExponentAreIntegersWhereTheyAreIntegral) {
  EXPECT_EQ(parse("5e8", "c").as_integer(), 500'000'000);
  EXPECT_EQ(parse("1.50e1", "c").as_integer(), 15);
  EXPECT_EQ(parse("9223372036854775807", "c").as_integer(), 9223372036854775807);
  EXPECT_EQ(parse("-9223372036854775808", "c").as_integer(), -9223372036854775807 - 1);
}

TEST(JsonNumbers, AreNotIntegersWhenFractionalOrTooLarge) {
  EXPECT_EQ(parse("1.5", "c").as_integer(), std::nullopt);
  EXPECT_EQ(parse("1e-3", "c").as_integer(), std::nullopt);
  EXPECT_EQ(parse("9223372036854775808", "c").as_integer(), std::nullopt);
  EXPECT_EQ(parse("1e300", "c").as_integer(), std::nullopt);
}

TEST(JsonNumbers, AreWrittenAsTheShortestDecimalsThatReadBack) {
  for (const double value :
       {0.1, 1e-3, 1.0 / 3.0, 1e22, -0.0, 123456789.125, 5e-324, 1.7976931348623157e308}) {
    const std::string text = Value::number(value).dump();

    EXPECT_EQ(parse(text, "c").as_double(), value) << text;
  }
  EXPECT_EQ(Value::number(0.1).dump(), "0.1");
  EXPECT_EQ(Value::integer(-42).dump(), "-42");
  EXPECT_EQ(parse("5e8", "c").dump(), "5e8");
}

TEST(JsonNumbers, ThatAreNotFiniteBecomeNull) {
  EXPECT_EQ(Value::number(1.0 / 0.0).dump(), "null");
  EXPECT_EQ(Value::number(0.0 / 0.0).dump(), "null");
}

TEST(JsonStrings, UnderstandEveryEscape) {
  const Value v = parse(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\ude00")", "c");

  EXPECT_EQ(v.as_string(), "\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001F600");
}

TEST(JsonStrings, ReadBackWhatDumpWrote) {
  const std::string text = "tab\t quote\" back\\ line\n bell\x07 \u00e9 \U0001F600";

  EXPECT_EQ(parse(Value::string(text).dump(), "c").as_string(), text);
}

TEST(JsonStrings, ThatAreNotUtf8AreWrittenWithReplacements) {
  EXPECT_EQ(Value::string("a\xFF").dump(), "\"a\uFFFD\"");
}

TEST(JsonDump, IndentsObjectsAndKeepsShortArraysOnALine) {
  const Value v = parse(R"({"a":[1,2],"b":{"c":[{"d":1}]},"e":{},"f":[]})", "c");

  EXPECT_EQ(v.dump(), R"({"a":[1,2],"b":{"c":[{"d":1}]},"e":{},"f":[]})");
  EXPECT_EQ(v.dump(2),
            "{\n  \"a\": [1, 2],\n  \"b\": {\n    \"c\": [\n      {\n        \"d\": 1\n      }\n   "
            " ]\n  },\n"
            "  \"e\": {},\n  \"f\": []\n}");
}

TEST(JsonEquality, LooksAtValuesOnly) {
  EXPECT_EQ(parse(R"({"a": 5e8, "b": [1.0]})", "x"), parse(R"({"b":[1],"a":500000000})", "y"));
  EXPECT_FALSE(parse(R"({"a": 1})", "x") == parse(R"({"a": 1, "b": null})", "x"));
  EXPECT_FALSE(parse("[1, 2]", "x") == parse("[2, 1]", "x"));
}

TEST(JsonRelaxed, AllowsCommentsTrailingCommasAndABom) {
  const Value v = parse(
      "\xEF\xBB\xBF// one\n{ # two\n \"a\": /* \"b\": 3 */ [1, 2,], // three\n}\n# four", "c.json");

  EXPECT_EQ(v.members().size(), 1U);
  EXPECT_EQ(v.find("a")->items().size(), 2U);
}

TEST(JsonRelaxed, LeavesCommentMarksInsideStringsAlone) {
  EXPECT_EQ(parse(R"({"url": "http://x#y/*z*/"})", "c").find("url")->as_string(),
            "http://x#y/*z*/");
}

TEST(JsonRelaxed, TakesTheEndOfALineForAComma) {
  const Value v = parse("{\n  \"a\": 1\n  \"b\": [1\n 2] # two\n  \"c\": {}\n}", "c.json");

  EXPECT_EQ(v, parse(R"({"a": 1, "b": [1, 2], "c": {}})", "x"));
}

TEST(JsonRelaxed, NeedsNoQuotesWhereNothingElseCanBeMeant) {
  const Value v = parse(
      "{type: WarmupLR\n 'single': 'it\\'s', path: /local/nvme\n \"on\": true, n: -1e3}", "c.json");

  EXPECT_EQ(
      v,
      parse(
          R"({"type": "WarmupLR", "single": "it's", "path": "/local/nvme", "on": true, "n": -1000})",
          "x"));
  EXPECT_EQ(v.find("path")->place.text(), "c.json:2:27");
}

TEST(JsonRelaxed, KeepsTheLinesOfTripleQuotedStrings) {
  const Value v =
      parse("{\n  \"prompt\": '''\n            one\n              two\n            '''\n}", "c");

  EXPECT_EQ(v.find("prompt")->as_string(), "one\n  two");
}

TEST(JsonHjson, ReadsStringsToTheEndOfTheLineAndNeedsNoBraces) {
  const Value v = parse(
      "# a comment\ntrain_batch_size: 16 # sixteen\noptimizer: {\n  type: AdamW\n  params: {lr: "
      "1e-3, eps: 1e-8}\n}\nprompt: None of this # is a comment\non: true\n",
      "c.hjson",
      {.hjson = true});

  EXPECT_EQ(v,
            parse(R"({"train_batch_size": 16, "optimizer": {"type": "AdamW",
                      "params": {"lr": 0.001, "eps": 1e-8}},
                      "prompt": "None of this # is a comment", "on": true})",
                  "x"));
  EXPECT_EQ(v.find("prompt")->place.text(), "c.hjson:7:9");
}

TEST(JsonHjson, RefusesPythonsWordsAndTwoValuesOnALine) {
  const auto refused = [](const std::string& text) {
    try {
      parse(text, "c.hjson", {.hjson = true});
    } catch (const Error& error) {
      return error.text();
    }
    return std::string();
  };

  EXPECT_THAT(refused("on: True\n"), AllOf(HasSubstr("c.hjson:1:5"), HasSubstr("write true")));
  EXPECT_THAT(refused("a: \"x\" b: 1\n"), HasSubstr("c.hjson:1:8"));
  EXPECT_THAT(refused("a: 1\na: 2\n"), HasSubstr("twice"));
}

TEST(JsonStrict, RefusesWhatIsNotJson) {
  EXPECT_TRUE(strict_accepts(R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(strict_accepts("{} // x"));
  EXPECT_FALSE(strict_accepts("[1,]"));
  EXPECT_FALSE(strict_accepts("{\"a\": \"\t\"}"));
  EXPECT_FALSE(strict_accepts("{\"a\": 01}"));
  EXPECT_FALSE(strict_accepts("{a: 1}"));
  EXPECT_FALSE(strict_accepts("{\"a\": 'x'}"));
  EXPECT_FALSE(strict_accepts("{\"a\": 1\n\"b\": 2}"));
  EXPECT_FALSE(strict_accepts("{\"a\": word\n}"));
  EXPECT_FALSE(strict_accepts("{\"a\": \"\\'\"}"));
}

TEST(JsonStrict, AccessWithTheWrongTypeIsAFormatError) {
  const Value v = parse_strict("{\"a\": \"x\"}", "m.json");

  try {
    (void)v.find("a")->as_double();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("m.json:1:7"), HasSubstr("expected a number, found a string")));
  }
}

// A malformed text, and what its message must contain.
struct Broken {
  std::string text;
  std::vector<std::string> words;
};

class JsonRefuses : public testing::TestWithParam<Broken> {};

TEST_P(JsonRefuses, WithPlaceAndReason) {
  const std::string message = refusal(GetParam().text);

  for (const std::string& words : GetParam().words)
    EXPECT_THAT(message, HasSubstr(words));
}

INSTANTIATE_TEST_SUITE_P(
    BadTexts,
    JsonRefuses,
    testing::Values(
        Broken{"", {"c.json:1:1", "empty"}},
        Broken{" \n\t // nothing\n", {"empty"}},
        Broken{std::string("PK\x03\x04\0\0", 6), {"c.json", "binary file", "offset 4"}},
        Broken{"{\"a\": \"\xFF\"}", {"c.json:1:8", "0xff", "UTF-8"}},
        Broken{std::string("\xFF\xFE{\0}\0", 6), {"UTF-16", "save the file as UTF-8"}},
        Broken{std::string("\xFE\xFF\0{\0}", 6), {"UTF-16", "save the file as UTF-8"}},
        Broken{"{\"a\": 1",
               {"c.json:1:8", "end of the file", "line 1, column 1", "never closed", "add \"}\""}},
        Broken{"{\n \"model\": {\n  \"x\": 1\n", {"c.json:4:1", "line 2, column 11", "(at model)"}},
        Broken{"{\"a\": {\"b\": [1, 2, }}}",
               {"c.json:1:20", "expected a value", "\"}\"", "a.b[2]"}},
        Broken{"{\"a\" 1}", {"c.json:1:6", "expected \":\"", "\"a\"", "put a colon"}},
        Broken{"{\"a\": 1 \"b\": 2}",
               {"c.json:1:9", "expected \",\" or \"}\"", "a string", "put a comma"}},
        Broken{"{a b: 1}", {"c.json:1:4", "expected \":\"", "\"a\""}},
        Broken{"{[1]: 1}", {"c.json:1:2", "key in double quotes"}},
        Broken{"{\"a\": 'x}", {"c.json:1:7", "never closed", "single quote", "(at a)"}},
        Broken{"{\"a\": '''x}", {"c.json:1:7", "never closed", "add '''", "(at a)"}},
        Broken{"{\"a\": fast, \"b\": 1}", {"c.json:1:7", "\"fast\"", "in double quotes"}},
        Broken{"{\"a\": fast // slow\n}", {"c.json:1:7", "in double quotes"}},
        Broken{"{\"a\": Yes\n}", {"c.json:1:7", "write true"}},
        Broken{"{\"a\": none\n}", {"c.json:1:7", "write null"}},
        Broken{"[1\n}", {"c.json:2:1", "expected \",\" or \"]\"", "close with ]"}},
        Broken{"{\"a\": True}", {"\"True\"", "write true"}},
        Broken{"{\"a\": None}", {"\"None\"", "write null"}},
        Broken{"{\"a\": NaN}", {"c.json:1:7", "NaN", "finite", "(at a)"}},
        Broken{"{\"a\": Infinity}", {"Infinity", "finite"}},
        Broken{"{\"a\": -Infinity}", {"-Infinity", "finite"}},
        Broken{"{\"a\": 1e999}", {"1e999", "too large", "(at a)"}},
        Broken{"{\"a\": 0123}", {"0123", "not a number"}},
        Broken{"{\"a\": 1.}", {"not a number"}},
        Broken{"{\"a\": 12monkeys}", {"12monkeys", "not a number"}},
        Broken{"{\"o\": {\"a\": 1,\n \"a\": 2}}",
               {"c.json:2:2", "\"a\"", "twice", "line 1", "(at o.a)"}},
        Broken{"{\"a\": \"x\n\"}", {"c.json:1:7", "never closed"}},
        Broken{"{\"a\": \"x", {"never closed"}},
        Broken{R"({"a": "\q"})", {"unknown escape \\q"}},
        Broken{R"({"a": "\u12G4"})", {"four hexadecimal digits", "write a backslash as"}},
        Broken{R"({"a": "\ud83d"})", {"surrogate"}},
        Broken{R"({"a": "\ude00"})", {"surrogate"}},
        Broken{"{\"a\": \"\x01\"}", {"0x01", "escape"}},
        Broken{"{} {}", {"c.json:1:4", "expected the end of the file", "remove everything after"}},
        Broken{"{,}", {"c.json:1:2", "remove one comma"}},
        Broken{"/* x", {"c.json:1:1", "comment is never closed"}}));

TEST(JsonDepth, TwoHundredThousandBracketsAreAMessage) {
  EXPECT_THAT(refusal(std::string(200'000, '[')),
              AllOf(HasSubstr("c.json:1:201"), HasSubstr("deeper than 200")));
  std::string objects;
  for (int i = 0; i < 200'000; ++i)
    objects += "{\"a\":";
  EXPECT_THAT(refusal(objects), HasSubstr("deeper than 200"));
}

TEST(JsonDepth, TwoHundredLevelsAreAllowed) {
  EXPECT_EQ(refusal(std::string(200, '[') + std::string(200, ']')), "");
}

TEST(JsonTruncation, OfAnyLengthIsRefusedWithAPlace) {
  const std::string whole =
      R"({"a": [1, -2.5e3, true, null, {"k": "v\u00e9\n"}], "b": {"c": "d"}} )";

  for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
    EXPECT_THAT(refusal(whole.substr(0, length)), HasSubstr("c.json:1:")) << length;
  }
}

TEST(JsonMutations, AreReadOrRefusedAndNothingElse) {
  const std::string whole =
      R"({"a": [1, -2.5e3, true, null, {"k": "v\u00e9\n"}], "b": {"c": "d"}} // x)";
  constexpr std::string_view kAlphabet = "{}[]:,\"\\/*#-+.0e9ntfu \n\xC3\xFF";
  const Philox random{1};

  for (std::uint64_t i = 0; i < 5'000; ++i) {
    std::string text = whole;
    const Philox::Block words = random(i);
    text[words[0] % text.size()] = kAlphabet[words[1] % kAlphabet.size()];
    text.insert(words[2] % text.size(), 1, kAlphabet[words[3] % kAlphabet.size()]);

    for (const bool hjson : {false, true}) {
      try {
        const Value value = parse(text, "c.json", {.hjson = hjson});
        EXPECT_EQ(parse(value.dump(), "again"), value) << text;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("c.json:")) << text;
      }
    }
  }
}

TEST(JsonValueOps, IndexMakesObjectsOutOfNull) {
  Value v;

  v["a"]["b"] = Value::integer(1);
  v["list"].push_back(Value::string("x"));

  EXPECT_EQ(v.dump(), R"({"a":{"b":1},"list":["x"]})");
  EXPECT_THROW(v["list"]["k"], Error);
}

}  // namespace
}  // namespace tessera::json
