// SPDX-License-Identifier: Apache-2.0
// The files of GLUE and SuperGLUE, with the names and columns with which they are downloaded.
#include <algorithm>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/superglue.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::open;
using test::task_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Rows of a table, whose cells are separated by "|" here.
std::string table(const std::vector<std::string>& rows) {
  std::string out;
  for (std::string row : rows) {
    std::ranges::replace(row, '|', '\t');
    out += row + "\n";
  }
  return out;
}

class Glue : public test::RecordTest {
 protected:
  /// The text of a sample, with the byte tokenizer: a second text follows the first one.
  static std::string text(const data::Dataset& dataset, std::int64_t index) {
    std::string out;
    for (const std::int64_t id : values(dataset, index, "input_ids")) {
      if (id != 0) out += static_cast<char>(id);
    }
    return out;
  }
  /// The texts of a file with their labels: "text=label".
  std::vector<std::string> samples(const std::string& file,
                                   const std::string& content,
                                   const std::string& type = "classify") {
    const auto task = task_of(type);
    const data::DataOptions data = options(content, file.c_str());
    const data::Datasets opened = open(*task, data, 200);
    std::vector<std::string> names;
    if (type == "classify") {
      const json::Value objective = task->objective_options(data);
      if (const json::Value* const labels = objective.find("labels")) {
        for (const json::Value& label : labels->items())
          names.push_back(label.as_string());
      }
    }
    std::vector<std::string> out;
    for (std::int64_t i = 0; i < opened.train->size(); ++i) {
      std::string label;
      if (type == "regression") {
        data::Sample sample(*opened.train, i);
        label = fmt::format("{}", sample.values<float>("label").front());
      } else {
        const std::int64_t id = values(*opened.train, i, "label").front();
        label = names.empty() ? std::to_string(id) : names.at(static_cast<std::size_t>(id));
      }
      out.push_back(text(*opened.train, i) + "=" + label);
    }
    return out;
  }
};

TEST_F(Glue, TablesAreReadByTheNamesOfTheirColumns) {
  EXPECT_THAT(samples("train.tsv", table({"gj04|1||A cat.", "bc01|0|*|Cat a."})),
              ElementsAre("A cat.=1", "Cat a.=0"))
      << "CoLA";
  EXPECT_THAT(samples("train.tsv", table({"sentence|label", "so good |1", "bad |0"})),
              ElementsAre("so good =1", "bad =0"))
      << "SST-2";
  EXPECT_THAT(samples("msr_paraphrase_train.txt.tsv",
                      "\xEF\xBB\xBF" + table({"Quality|#1 ID|#2 ID|#1 String|#2 String",
                                              "1|702876|702977|He said \"no\".|He refused.",
                                              "0|21|33|A.|B."})),
              ElementsAre("He said \"no\".He refused.=1", "A.B.=0"))
      << "MRPC";
  EXPECT_THAT(samples("train.tsv",
                      table({"id|qid1|qid2|question1|question2|is_duplicate",
                             "133273|213221|213222|Why?|How?|0",
                             "402555|536040|536041|Who?|Which?|1"})),
              ElementsAre("Why?How?=0", "Who?Which?=1"))
      << "QQP";
  EXPECT_THAT(samples("train.tsv",
                      table({"index|genre|filename|year|old_index|source1|source2|sentence1|"
                             "sentence2|score",
                             "0|main|MSRvid|2012|0001|none|none|A plane.|An aeroplane.|5.000",
                             "1|main|MSRvid|2012|0004|none|none|A man.|A dog.|0.50"}),
                      "regression"),
              ElementsAre("A plane.An aeroplane.=5", "A man.A dog.=0.5"))
      << "STS-B";
  EXPECT_THAT(samples("train.tsv",
                      table({"index|promptID|pairID|genre|sentence1_binary_parse|"
                             "sentence2_binary_parse|sentence1_parse|sentence2_parse|sentence1|"
                             "sentence2|label1|gold_label",
                             "0|31193|31193n|government|( a )|( b )|(R a)|(R b)|One.|Two.|neutral|"
                             "neutral",
                             "1|1|1e|telephone|( a )|( b )|(R a)|(R b)|Three.|Four.|entailment|"
                             "entailment"})),
              ElementsAre("One.Two.=neutral", "Three.Four.=entailment"))
      << "MNLI";
  EXPECT_THAT(samples("train.tsv",
                      table({"index|question|sentence|label",
                             "0|When?|Then.|entailment",
                             "1|Where?|Then.|not_entailment"})),
              ElementsAre("When?Then.=entailment", "Where?Then.=not_entailment"))
      << "QNLI";
  EXPECT_THAT(samples("train.tsv",
                      table({"index|sentence1|sentence2|label",
                             "0|One.|Two.|not_entailment",
                             "1|Three.|Four.|entailment"})),
              ElementsAre("One.Two.=not_entailment", "Three.Four.=entailment"))
      << "RTE";
  EXPECT_THAT(samples("train.tsv",
                      table({"index|sentence1|sentence2|label", "0|One.|Two.|1", "1|A.|B.|0"})),
              ElementsAre("One.Two.=1", "A.B.=0"))
      << "WNLI";
}

// MNLI has two validation sets, and dev files have the labels of five people.
TEST_F(Glue, BothValidationSetsOfAFolderAreReadUnlessOneIsNamed) {
  const std::string names =
      "index|promptID|sentence1|sentence2|label1|label2|label3|label4|label5|gold_label";
  data::DataOptions data = options(table({"index|sentence1|sentence2|label1|gold_label",
                                          "0|One.|Two.|neutral|neutral",
                                          "1|A.|B.|entailment|entailment"}),
                                   "train.tsv");
  const std::string matched =
      folder_.write("dev_matched.tsv",
                    table({names, "0|1|M.|N.|neutral|neutral|neutral|neutral|neutral|neutral"}));
  (void)folder_.write(
      "dev_mismatched.tsv",
      table({names, "0|2|X.|Y.|neutral|entailment|entailment|entailment|neutral|entailment"}));
  const std::string folder = data.train.front().substr(0, data.train.front().rfind('/'));
  data.train = data.validation = {folder};
  const auto task = task_of("classify");

  const data::Datasets both = open(*task, data, 16);
  data.validation = {matched};
  const data::Datasets one = open(*task, data, 16);

  ASSERT_EQ(both.validation->size(), 2);
  EXPECT_EQ(text(*both.validation, 1), "X.Y.");
  EXPECT_EQ(values(*both.validation, 1, "label").front(), 0);
  ASSERT_EQ(one.validation->size(), 1);
  EXPECT_EQ(text(*one.validation, 0), "M.N.");
}

class SuperGlue : public Glue {};

TEST_F(SuperGlue, ChoicesAreReadWithTheirQuestion) {
  EXPECT_THAT(
      samples("train.jsonl",
              R"({"premise": "It rained.", "choice1": "Clouds came.", "choice2": "I slept.", )"
              R"("question": "cause", "label": 0, "idx": 0})"
              "\n"
              R"({"premise": "It rained.", "choice1": "I ate.", "choice2": "I was wet.", )"
              R"("question": "effect", "label": 1, "idx": 1})"),
      ElementsAre("It rained. What was the cause of this?choice1: Clouds came. choice2: I slept.=0",
                  "It rained. What happened as a result?choice1: I ate. choice2: I was wet.=1"));
}

TEST_F(SuperGlue, EveryAnswerOfAParagraphIsASample) {
  EXPECT_THAT(
      samples("train.jsonl",
              R"({"idx": 0, "version": 1.1, "passage": {"text": )"
              R"("<b>Sent 1: </b>It rained.<br><b>Sent 2: </b>I slept.<br>", "questions": [)"
              R"({"question": "What fell?", "idx": 0, "answers": [)"
              R"({"text": "Rain", "idx": 0, "label": 1}, {"text": "Snow", "idx": 1, "label": 0}]},)"
              R"({"question": "Who slept?", "idx": 1, "answers": [)"
              R"({"text": "I", "idx": 2, "label": 1}]}]}})"),
      ElementsAre("Sent 1: It rained. Sent 2: I slept. What fell? Rain=1",
                  "Sent 1: It rained. Sent 2: I slept. What fell? Snow=0",
                  "Sent 1: It rained. Sent 2: I slept. Who slept? I=1"));
}

// Positions count characters, and the end of an entity is its last one.
TEST_F(SuperGlue, EveryEntityOfAQueryIsASample) {
  EXPECT_THAT(samples("train.jsonl",
                      R"({"source": "Daily mail", "idx": 0, "passage": {"text": )"
                      R"("Zoë met Bo\n@highlight\nBo left.\n@highlight\nZoë stayed", )"
                      R"("entities": [{"start": 0, "end": 2}, {"start": 8, "end": 9}, )"
                      R"({"start": 22, "end": 23}]}, "qas": [{"query": "@placeholder went home.", )"
                      R"("idx": 0, "answers": [{"start": 8, "end": 9, "text": "Bo"}, )"
                      R"({"start": 22, "end": 23, "text": "Bo"}]}]})"),
              ElementsAre("Zoë met Bo. Bo left. Zoë stayedZoë went home.=false",
                          "Zoë met Bo. Bo left. Zoë stayedBo went home.=true"));
}

TEST_F(SuperGlue, TheWordIsMarkedInBothSentences) {
  EXPECT_THAT(
      samples("train.jsonl",
              R"({"word": "bed", "sentence1": "Trash on the bed of the river.", )"
              R"("sentence2": "In beds", "idx": 0, "label": false, "start1": 13, )"
              R"("start2": 3, "end1": 16, "end2": 7, "version": 1.1})"
              "\n"
              R"({"word": "é", "sentence1": "éé é", "sentence2": "é", "label": true, )"
              R"("start1": 3, "start2": 0, "end1": 4, "end2": 1})"),
      ElementsAre("Trash on the * bed * of the river.In * beds *=false", "éé * é ** é *=true"));
}

TEST_F(SuperGlue, BothSpansAreMarked) {
  EXPECT_THAT(
      samples("train.jsonl",
              R"({"text": "Mark told Pete many lies about himself, which Pete wrote.", "target": )"
              R"({"span2_index": 6, "span1_index": 0, "span1_text": "Mark", )"
              R"("span2_text": "himself"}, "idx": 0, "label": false})"
              "\n"
              R"({"text": "It fit the brown case.", "target": {"span1_index": 2, )"
              R"("span1_text": "the brown case", "span2_index": 0, "span2_text": "It"}, )"
              R"("label": true})"),
      ElementsAre("* Mark * told Pete many lies about # himself #, which Pete wrote.=false",
                  "# It # fit * the brown case *.=true"));
}

TEST_F(SuperGlue, TextsWithNamesAreReadAsTheyAre) {
  EXPECT_THAT(samples("train.jsonl",
                      R"({"question": "is it", "passage": "It is.", "idx": 0, "label": true})"
                      "\n"
                      R"({"question": "is he", "passage": "He -- no.", "idx": 1, "label": false})"),
              ElementsAre("is itIt is.=true", "is heHe -- no.=false"))
      << "BoolQ";
  EXPECT_THAT(samples("train.jsonl",
                      R"({"premise": "A.", "hypothesis": "B.", "label": "contradiction", "idx": 0})"
                      "\n"
                      R"({"premise": "C.", "hypothesis": "D.", "label": "neutral", "idx": 1})"),
              ElementsAre("A.B.=contradiction", "C.D.=neutral"))
      << "CB, RTE and AX-g";
  // A field that is named is read, whatever the record looks like.
  const data::DataOptions data = options(
      R"({"premise": "P", "choice1": "x", "choice2": "y", "question": "cause", "label": 1})");
  EXPECT_EQ(text(*open(*task_of("classify", R"({"text_field": "choice1"})"), data, 8).train, 0),
            "x");
}

TEST_F(SuperGlue, RecordsWithoutLabelsArePredicted) {
  const auto task = task_of("classify");
  const std::string file = folder_.write(
      "test.jsonl",
      R"({"idx": 0, "passage": {"text": "It rained.", "questions": [{"question": "Q?", )"
      R"("answers": [{"text": "a", "idx": 0}, {"text": "b", "idx": 1}]}]}})");
  const data::DataOptions data;
  const data::TokenizeOptions how;

  const auto samples = task->open_to_predict({.options = data,
                                              .tokenizer = test::byte(),
                                              .vocab_size = 256,
                                              .sequence_length = 20,
                                              .how = how,
                                              .predict = true},
                                             {file});

  ASSERT_EQ(samples->size(), 2);
  EXPECT_EQ(text(*samples, 1), "It rained.Q? b");
}

TEST_F(SuperGlue, AFileThatIsChangedIsRefusedWithItsPlace) {
  const auto refused = [&](std::string_view record) {
    return std::string(refusal_of("classify", record, 64).what());
  };
  EXPECT_THAT(refused(R"({"word": "a", "sentence1": "a", "sentence2": "a", "label": true, )"
                      R"("start1": 0, "end1": 5, "start2": 0, "end2": 1})"),
              HasSubstr("train.jsonl:1: a span index is past the end of its text"));
  EXPECT_THAT(refused(R"({"premise": "a", "choice1": "b", "choice2": "c", "question": "why", )"
                      R"("label": 0})"),
              HasSubstr("train.jsonl:1: \"question\" is \"why\""));
  EXPECT_THAT(refused(R"({"text": "a b", "target": {"span1_text": "a", "span1_index": 0, )"
                      R"("span2_text": "b", "span2_index": 2}, "label": true})"),
              HasSubstr("train.jsonl:1: a span begins behind the last word"));
  EXPECT_THAT(refused(R"({"passage": {"text": "a", "questions": 3}})"),
              HasSubstr("train.jsonl:1: \"questions\" is a number"));
}

}  // namespace
}  // namespace tessera::tasks
