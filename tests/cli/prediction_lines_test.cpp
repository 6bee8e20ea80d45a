// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prediction_lines.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

json::Value line(std::int64_t row, const char* record, const char* prediction) {
  return prediction_line(row, json::parse(record, "test"), json::parse(prediction, "test"));
}

TEST(PredictionLines, HaveTheColumnsOfTheirRecord) {
  EXPECT_EQ(line(3, R"({"id": "a7", "label": "sad", "n": 2})", R"({"label": "glad"})").dump(),
            R"({"row":3,"label":"glad","id":"a7","given_label":"sad","n":2})");
  EXPECT_EQ(line(0, "null", R"({"value": 1.5})").dump(), R"({"row":0,"value":1.5})");
  EXPECT_EQ(line(0, R"({"label": 1, "given_label": 2})", R"({"label": 3})").dump(),
            R"({"row":0,"label":3,"given_label":1,"given_given_label":2})");
}

std::vector<json::Value> records(const char* list) {
  return json::parse(list, "test").items();
}
json::Value prediction(const char* text) {
  return json::parse(text, "test");
}

// Line i is that of record i, also where a record could not be read.
TEST(PredictionLines, HaveNullsWhereARecordHasNoPrediction) {
  const auto all = records(R"([null, {"id": 1}, {"id": 2}, {"id": 3}])");
  std::vector<std::string> lines;
  const auto write = [&](const json::Value& line) { lines.push_back(line.dump()); };

  PredictionsByRecord whole(all, 0, write);
  whole.add(2, prediction(R"({"label": "a", "scores": {"a": 1, "b": 0}})"));
  whole.finish();

  const std::vector<std::string> expected = {
      R"({"row":0,"label":null,"scores":{"a":null,"b":null}})",
      R"({"row":1,"label":null,"scores":{"a":null,"b":null},"id":1})",
      R"({"row":2,"label":"a","scores":{"a":1,"b":0},"id":2})",
      R"({"row":3,"label":null,"scores":{"a":null,"b":null},"id":3})"};
  EXPECT_EQ(lines, expected);

  // The same behind any number of lines that are there.
  for (std::int64_t made = 0; made <= 4; ++made) {
    lines.clear();
    PredictionsByRecord rest(all, made, write);
    rest.add(2, prediction(R"({"label": "a", "scores": {"a": 1, "b": 0}})"));
    rest.finish();
    EXPECT_EQ(lines, std::vector<std::string>(expected.begin() + made, expected.end())) << made;
  }
}

TEST(PredictionLines, AreThoseOfPredictionsWhereRecordsAreUnknown) {
  std::vector<std::string> lines;
  const std::vector<json::Value> unknown;
  PredictionsByRecord some(
      unknown, 1, [&](const json::Value& line) { lines.push_back(line.dump()); });

  some.add(1, prediction(R"({"value": 2})"));
  some.add(4, prediction(R"({"value": 3})"));
  some.finish();

  EXPECT_EQ(lines, (std::vector<std::string>{R"({"row":1,"value":2})", R"({"row":4,"value":3})"}));
}

TEST(PredictionLines, AreRowsOfATableWhoseFirstRowNamesThem) {
  PredictionTable table(',');

  EXPECT_EQ(table.rows_of(line(0,
                               R"({"text": "a, \"b\"\nc", "none": null})",
                               R"({"label": "x", "scores": {"x": 0.75, "y": 0.25}})")),
            "row,label,scores.x,scores.y,text,none\n"
            "0,x,0.75,0.25,\"a, \"\"b\"\"\nc\",\n");
  EXPECT_EQ(table.rows_of(line(1, R"({"other": 1})", R"({"label": ["p", "q"]})")),
            "1,\"[\"\"p\"\",\"\"q\"\"]\",,,,\n");
  EXPECT_EQ(PredictionTable('\t').rows_of(line(0, R"({"a": "x\ty,z"})", R"({"b": 1})")),
            "row\tb\ta\n0\t1\t\"x\ty,z\"\n");
}

TEST(PredictionLines, WithoutAPredictionAreRowsOfEmptyCells) {
  const auto all = records(R"([{"id": 7}, {"id": 8}])");
  PredictionTable table(',');
  std::string text;
  PredictionsByRecord rows(all, 0, [&](const json::Value& line) { text += table.rows_of(line); });

  rows.add(1, prediction(R"({"label": "a", "scores": {"a": 1, "b": 0}})"));
  rows.finish();

  EXPECT_EQ(text, "row,label,scores.a,scores.b,id\n0,,,,7\n1,a,1,0,8\n");
}

TEST(PredictionLines, AreATableByTheEndingOfTheFile) {
  EXPECT_EQ(PredictionTable::separator_of("out.csv"), ',');
  EXPECT_EQ(PredictionTable::separator_of("OUT.TSV"), '\t');
  EXPECT_EQ(PredictionTable::separator_of("out.jsonl"), std::nullopt);
  EXPECT_EQ(PredictionTable::separator_of(""), std::nullopt);
}

}  // namespace
}  // namespace tessera::cli
