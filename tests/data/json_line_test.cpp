// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/json_line.h"

#include "support/text_files.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"

namespace tessera::data {
namespace {

using nlohmann::json;
using test::contains;
using test::random_text;

struct Read {
  std::optional<LineProblem> problem;
  std::string text;
  std::int64_t replaced = 0;
};
Read read(std::string_view line, bool replace = false) {
  Read out;
  out.problem = read_text_field(line, "text", replace, out.text, out.replaced);
  return out;
}

TEST(JsonLine, TakesTheFieldOutOfItsLine) {
  EXPECT_EQ(read(R"({"text": "hello"})").text, "hello");
  EXPECT_EQ(read("  {\"id\":[1,{\"text\":\"no\"}],\"text\" :\"yes\" , \"z\":{\"a\":[]}}\r").text,
            "yes");
  EXPECT_EQ(read(R"({"t\u0065xt": ""})").text, "");
  EXPECT_FALSE(read(R"({"a":-0.5e+10,"b":[[],{}],"c":null,"d":true,"text":"x"})").problem);
}

TEST(JsonLine, ReadsEscapesAndSurrogatePairs) {
  EXPECT_EQ(read(R"({"text":"\"\\\/\b\f\n\r\t"})").text, "\"\\/\b\f\n\r\t");
  EXPECT_EQ(read(R"({"text":"\u00e9\u4f60\ud83d\ude00"})").text, "é你😀");
  EXPECT_EQ(read(R"({"text":"\u0000"})").text, std::string(1, '\0'));
}

TEST(JsonLine, RefusesLoneSurrogatesOrReplacesThem) {
  const Read refused = read(R"({"text":"a\ud800b"})"),
             replaced = read(R"({"text":"a\ud800\u0041\udc00"})", true);

  ASSERT_TRUE(refused.problem);
  EXPECT_EQ(refused.problem->offset, 10U);
  EXPECT_TRUE(contains(refused.problem->fix, "replace"));
  EXPECT_FALSE(replaced.problem);
  EXPECT_EQ(replaced.text, "a\uFFFDA\uFFFD");
  EXPECT_EQ(replaced.replaced, 2);
}

TEST(JsonLine, SaysWhatIsWrongAndWhere) {
  const auto wrong = [](std::string_view line, std::size_t offset, const std::string& part) {
    const Read result = read(line);
    ASSERT_TRUE(result.problem) << line;
    EXPECT_EQ(result.problem->offset, offset) << line;
    EXPECT_TRUE(contains(result.problem->what, part)) << line;
  };

  wrong(R"({"body": "x", "id": 1})", 0, "no field \"text\"; it has: body, id");
  wrong(R"({"text": 5})", 9, "is a number");
  wrong(R"({"text": null})", 9, "is null");
  wrong(R"({"text": {"a": 1}})", 9, "is an object");
  wrong(R"({"text": "a", "text": "b"})", 14, "twice");
  wrong(R"(["text"])", 0, "expected an object");
  wrong(R"({"text": "a"} x)", 14, "end of the line");
  wrong(R"({"text": "a)", 11, "end of a string");
  wrong(R"({"text": "a",})", 13, "key in double quotes");
  wrong(R"({'text': 'a'})", 1, "key in double quotes");
  wrong(R"({"text" "a"})", 8, "\":\"");
  wrong("{\"text\": \"a\tb\"}", 11, "control character 0x09");
  wrong(R"({"a": 01, "text": ""})", 7, "\",\" or");
  wrong(R"({"a": NaN, "text": ""})", 6, "a value");
  wrong(R"({"text": "\x"})", 10, "unknown escape");
  wrong(R"({"text": "\u12g4"})", 14, "hexadecimal");
}

TEST(JsonLine, RefusesDeepNestingWithoutUsingTheStack) {
  const std::string deep(500'000, '[');

  const Read result = read("{\"a\": " + deep);

  ASSERT_TRUE(result.problem);
  EXPECT_TRUE(contains(result.problem->what, "deeper"));
}

json random_json(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int>(random());
    case 3:
      return static_cast<double>(random()) * 1e-3;
    case 4:
      return random_text(random, 5);
    case 5: {
      json array = json::array();
      for (unsigned n = random() % 4; n > 0; --n)
        array.push_back(random_json(random, depth - 1));
      return array;
    }
    default: {
      json object = json::object();
      for (unsigned n = random() % 4; n > 0; --n)
        object[random_text(random, 2)] = random_json(random, depth - 1);
      return object;
    }
  }
}

TEST(JsonLine, AgreesWithAnotherParserOnGoodLinesAndBrokenOnes) {
  std::mt19937 random(5);
  int broken = 0;
  for (int i = 0; i < 4000; ++i) {
    json object = {{"text", random_text(random, 10)}, {"meta", random_json(random, 3)}};
    std::string line = object.dump(-1, ' ', random() % 2 == 0);
    const Read good = read(line);
    ASSERT_FALSE(good.problem) << line << ": " << good.problem->what;
    ASSERT_EQ(good.text, object["text"].get<std::string>());

    line[random() % line.size()] = "{}[]\",:x0-\\ "[random() % 12];
    const json parsed = json::parse(line, nullptr, false);
    if (text::find_invalid_utf8(line)) continue;
    if (parsed.is_discarded()) {
      ASSERT_TRUE(read(line).problem) << line;
      ++broken;
    } else if (parsed.is_object() && parsed.contains("text") && parsed["text"].is_string()) {
      const Read changed = read(line);
      ASSERT_FALSE(changed.problem) << line << ": " << changed.problem->what;
      ASSERT_EQ(changed.text, parsed["text"].get<std::string>()) << line;
    }
  }

  EXPECT_GT(broken, 500);
}

}  // namespace
}  // namespace tessera::data
