// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prediction_lines.h"

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

TEST(PredictionLines, AreATableByTheEndingOfTheFile) {
  EXPECT_EQ(PredictionTable::separator_of("out.csv"), ',');
  EXPECT_EQ(PredictionTable::separator_of("OUT.TSV"), '\t');
  EXPECT_EQ(PredictionTable::separator_of("out.jsonl"), std::nullopt);
  EXPECT_EQ(PredictionTable::separator_of(""), std::nullopt);
}

}  // namespace
}  // namespace tessera::cli
