// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/labelled_texts.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kMoods =
    "{\"text\": \"ab\", \"label\": \"sad\"}\n"
    "{\"text\": \"cdefgh\", \"label\": \"glad\"}\n"
    "\n"
    "{\"text\": \"ijkl\", \"label\": \"sad\"}\n";

class Classification : public test::RecordTest {
 protected:
  Error refusal(std::string_view records, const std::string& params = "{}") {
    return refusal_of("classify", records, 4, params);
  }
};

TEST_F(Classification, CutsAndPadsTextsToOneLength) {
  const data::Datasets opened = open(*task_of("classify"), options(kMoods), 4);
  const data::Dataset& train = *opened.train;

  ASSERT_EQ(train.size(), 3);
  EXPECT_EQ(values(train, 0, "input_ids"), (Ids{'a', 'b', 0, 0}));
  EXPECT_EQ(values(train, 0, "attention_mask"), (Ids{1, 1, 0, 0}));
  EXPECT_EQ(values(train, 1, "input_ids"), (Ids{'c', 'd', 'e', 'f'}));
  EXPECT_TRUE(data::Sample(train, 0).has("attention_mask"));
  EXPECT_FALSE(data::Sample(train, 1).has("attention_mask"));
  EXPECT_EQ(train.sequence_length(), 4);
  EXPECT_EQ(opened.train_tokens, 2 + 4 + 4);
  EXPECT_EQ(opened.train_stats.skipped_empty, 1);
}

TEST_F(Classification, NumbersTheLabelsInTheOrderOfTheirNames) {
  const data::DataOptions data = options(kMoods);
  const auto task = task_of("classify");

  const data::Datasets opened = open(*task, data, 4);

  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{1});
  EXPECT_EQ(values(*opened.train, 1, "label"), Ids{0});
  EXPECT_EQ(task->objective_options(data).find("num_labels")->as_integer(), 2);
}

TEST_F(Classification, HasNoClassForALabelThatIsMissing) {
  for (const char* label : {"\"\"", "\" \"", "null"}) {
    const std::string records = std::string(R"({"text": "a", "label": )") + label +
                                "}\n{\"text\": \"b\", \"label\": \"x\"}\n";
    const Error error = refusal(records);
    EXPECT_THAT(error.what(), HasSubstr("train.jsonl:1: the label \"label\" is missing"));
    EXPECT_THAT(error.fix(), HasSubstr("data.on_bad_record \"skip\""));
  }
}

TEST_F(Classification, HasTheSameFlagsInTablesAndLines) {
  const auto task = task_of("classify");
  const std::string wanted = R"(["false","true"])";
  for (const char* spelled : {"True\nb,False", "TRUE\nb,FALSE", "true\nb,false"}) {
    const data::DataOptions data =
        options("text,label\na," + std::string(spelled) + "\n", "flags.csv");
    EXPECT_EQ(task->objective_options(data).find("labels")->dump(), wanted) << spelled;
    EXPECT_EQ(values(*open(*task, data, 4).train, 0, "label"), Ids{1}) << spelled;
    const auto named = task_of("classify", R"({"labels": ["False", "True"]})");
    EXPECT_EQ(values(*open(*named, data, 4).train, 0, "label"), Ids{1}) << spelled;
  }
}

TEST_F(Classification, ReadsSeveralLabelsOfATablesCell) {
  data::DataOptions data = options("text,label\na,sad|angry\nb,\nc, glad \n", "several.csv");
  const auto task = task_of("classify", R"({"multi_label": true})");

  EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["angry","glad","sad"])");
}

TEST_F(Classification, ReadsTheFieldsAndLabelsThatAreNamed) {
  const data::DataOptions data =
      options("{\"review\": \"a\", \"mood\": \"sad\"}\n{\"review\": \"b\", \"mood\": 2}\n");

  const data::Datasets opened = open(*task_of("classify",
                                              R"({"text_field": "review", "label_field": "mood",
                        "labels": ["sad", "calm", "glad"]})"),
                                     data,
                                     4);

  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{0});
  EXPECT_EQ(values(*opened.train, 1, "label"), Ids{2});
}

TEST_F(Classification, FindsTheFieldsOfPublishedData) {
  data::DataOptions data;
  data.train = {folder_.write("train.tsv",
                              "index\tquestion\tpassage\tlabel\n"
                              "0\tab\tc\ttrue\n"
                              "1\tde\tfgh\tfalse\n")};
  const auto task = task_of("classify");

  const data::Datasets opened = open(*task, data, 4);

  EXPECT_EQ(values(*opened.train, 0, "input_ids"), (Ids{'a', 'b', 'c', 0}));
  EXPECT_EQ(values(*opened.train, 0, "token_type_ids"), (Ids{0, 0, 1, 0}));
  // The longer text is truncated.
  EXPECT_EQ(values(*opened.train, 1, "input_ids"), (Ids{'d', 'e', 'f', 'g'}));
  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{1});
  EXPECT_EQ(values(*opened.train, 1, "label"), Ids{0});
  EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["false","true"])");
}

TEST_F(Classification, ReadsAnyNumberOfLabels) {
  const data::DataOptions data = options(
      "{\"text\": \"a\", \"label\": [\"x\", \"z\"]}\n{\"text\": \"b\", \"label\": []}\n"
      "{\"text\": \"c\", \"label\": [\"y\"]}\n");
  const auto task = task_of("classify", R"({"multi_label": true})");

  const data::Datasets opened = open(*task, data, 4);

  data::Sample first(*opened.train, 0), second(*opened.train, 1);
  EXPECT_THAT(first.values<float>("label"), ::testing::ElementsAre(1.0F, 0.0F, 1.0F));
  EXPECT_THAT(second.values<float>("label"), ::testing::Each(0.0F));
  EXPECT_EQ(task->objective_options(data).find("problem_type")->as_string(),
            "multi_label_classification");
}

TEST_F(Classification, LeavesOutBadRecordsOnRequest) {
  data::DataOptions data = options(
      "{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"\", \"label\": \"x\"}\nnothing\n"
      "{\"text\": \"b\", \"label\": \"y\"}\n");
  EXPECT_THAT(error_of([&] { open(*task_of("classify"), data, 4); }).what(),
              HasSubstr("train.jsonl:3"));  // labels are looked for first
  data.on_bad_record = "skip";

  const data::Datasets opened = open(*task_of("classify"), data, 4);

  EXPECT_EQ(opened.train->size(), 2);
  EXPECT_EQ(opened.train_stats.bad_records, 2);
  EXPECT_THAT(record_numbers(*opened.train), ::testing::ElementsAre(0, 3));
}

TEST_F(Classification, ReadsFieldsUnderTheNamesOfAMap) {
  data::DataOptions data = options(
      "{\"q\": {\"body\": \"ab\"}, \"id\": \"x\"}\n{\"q\": {\"body\": \"c\"}, \"id\": \"y\"}\n");
  data.map = json::parse(R"({"text": "q.body", "label": "id"})", "test");

  EXPECT_EQ(values(*open(*task_of("classify"), data, 4).train, 0, "input_ids"),
            (Ids{'a', 'b', 0, 0}));
  data.map = json::parse(R"({"text": "question"})", "test");
  EXPECT_THAT(error_of([&] { open(*task_of("classify"), data, 4); }).what(),
              HasSubstr("the record has no \"question\""));
}

TEST_F(Classification, WeighsTheLossByHowOftenLabelsOccur) {
  const data::DataOptions data = options(kMoods);  // glad once, sad twice
  const auto weights = [&](const char* params) {
    std::vector<double> out;
    const json::Value chosen = task_of("classify", params)->objective_options(data);
    for (const json::Value& weight : chosen.find("class_weights")->items())
      out.push_back(weight.as_double());
    return out;
  };

  // 1 and 1/2, scaled to a sum of 2.
  EXPECT_THAT(weights(R"({"class_balance": "inverse"})"),
              ::testing::ElementsAre(::testing::DoubleNear(4.0 / 3, 1e-15),
                                     ::testing::DoubleNear(2.0 / 3, 1e-15)));
  // (1 - 0.9) / (1 - 0.9) and (1 - 0.9) / (1 - 0.81), scaled to a sum of 2.
  const double second = 0.1 / 0.19;
  EXPECT_THAT(weights(R"({"class_balance": "class_balanced", "beta": 0.9})"),
              ::testing::ElementsAre(::testing::DoubleNear(2 / (1 + second), 1e-12),
                                     ::testing::DoubleNear(2 * second / (1 + second), 1e-12)));
  EXPECT_THAT(weights(R"({"class_balance": "inverse", "labels": ["sad", "calm", "glad"]})"),
              ::testing::ElementsAre(::testing::DoubleNear(0.6, 1e-12),
                                     ::testing::DoubleNear(1.2, 1e-12),
                                     ::testing::DoubleNear(1.2, 1e-12)));
  EXPECT_THAT(weights(R"({"class_weights": [3, 4]})"), ::testing::ElementsAre(3, 4));
  EXPECT_THAT(error_of([&] {
                task_of("classify", R"({"class_balance": "inverse", "class_weights": [1, 2]})");
              }).what(),
              HasSubstr("both given"));
}

TEST_F(Classification, ReadsTextsAloneToPredict) {
  const data::DataOptions data = options(kMoods);
  const std::string file = folder_.write("new.csv", "text\nab\ncd\n");
  const auto dataset = task_of("classify")
                           ->open_to_predict({.options = {},
                                              .tokenizer = test::byte(),
                                              .vocab_size = 256,
                                              .sequence_length = 4,
                                              .how = {},
                                              .predict = true},
                                             {file});

  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(values(*dataset, 1, "input_ids"), (Ids{'c', 'd', 0, 0}));
  for (const data::TensorSpec& spec : dataset->tensors())
    EXPECT_NE(spec.name, "label");
}

const char* const kTopics =
    "{\"text\": \"ab\", \"topic\": \"arts\", \"mood\": \"sad\"}\n"
    "{\"text\": \"cd\", \"topic\": 0, \"mood\": null}\n"
    "{\"text\": \"ef\", \"topic\": \"law\", \"mood\": \"glad\"}\n";
const char* const kHeads =
    R"({"heads": {"topic": ["sport", "arts", "law"], "mood": ["glad", "sad"]},
                               "head_weights": {"mood": 0.5}})";

TEST_F(Classification, ReadsALabelForEachOfSeveralHeads) {
  const data::DataOptions data = options(kTopics);
  const auto task = task_of("classify", kHeads);

  const data::Datasets opened = open(*task, data, 4);

  EXPECT_EQ(values(*opened.train, 0, "label"), (Ids{1, 1}));
  EXPECT_EQ(values(*opened.train, 1, "label"), (Ids{0, -100}));
  EXPECT_EQ(values(*opened.train, 2, "label"), (Ids{2, 0}));
  EXPECT_EQ(task->tensors(4).back().shape, Ids{2});
  const json::Value said = task->objective_options(data);
  EXPECT_EQ(said.find("num_labels")->as_integer(), 5);
  EXPECT_EQ(said.find("labels")->dump(),
            R"(["topic/sport","topic/arts","topic/law","mood/glad","mood/sad"])");
  EXPECT_EQ(said.find("heads")->items().at(1).find("weight")->as_double(), 0.5);
}

TEST_F(Classification, ReportsMetricsAndPredictionsOfEachHead) {
  const auto task = task_of("classify", kHeads);
  // Rows of logits: topic, mood. The second has no mood.
  const Predictions rows = {.width = 5,
                            .label_width = 2,
                            .values = {0, 2, 1, 3, 0, 5, 1, 1, 0, 2, 0, 0, 1, 0, 4},
                            .labels = {1, 1, 0, -100, 1, 1}};

  const std::vector<NamedValue> told = task->metrics(rows);

  const auto value = [&](const std::string& name) {
    const auto found = std::ranges::find(told, name, &NamedValue::name);
    return found == told.end() ? -1.0 : found->value;
  };
  // Topics are predicted as 1, 0, 2 where they are 1, 0, 1: F1 1, 2/3 and 0. Moods as 0 and 1 where
  // both are 1: recall 1/2, precision 1.
  EXPECT_NEAR(value("topic_f1"), (1 + 2.0 / 3 + 0) / 3, 1e-12);
  EXPECT_NEAR(value("mood_recall"), 0.5, 1e-12);
  EXPECT_NEAR(value("mood_precision"), 1.0, 1e-12);
  const json::Value said =
      task->prediction({.width = 5, .label_width = 0, .values = {0, 2, 1, 3, 0}, .labels = {}}, {});
  EXPECT_EQ(said.find("topic")->find("label")->as_string(), "arts");
  EXPECT_EQ(said.find("mood")->find("label")->as_string(), "glad");
  EXPECT_NEAR(said.find("mood")->find("score")->as_double(), 1 / (1 + std::exp(-3.0)), 1e-6);
}

TEST_F(Classification, FindsTheLabelsOfHeadsAndWeightsThem) {
  const std::string records =
      "{\"text\": \"a\", \"topic\": \"sport\", \"mood\": \"sad\"}\n"
      "{\"text\": \"b\", \"topic\": \"arts\", \"mood\": \"\"}\n"
      "{\"text\": \"c\", \"topic\": \"sport\", \"mood\": \"glad\"}\n"
      "{\"text\": \"d\", \"topic\": \"sport\", \"mood\": \"glad\"}\n";
  const data::DataOptions data = options(records);
  const auto task =
      task_of("classify", R"({"heads": {"topic": null, "mood": ["glad", "sad", "bored"]},
                      "class_balance": "inverse"})");

  const json::Value said = task->objective_options(data);
  const data::Datasets opened = open(*task, data, 4);

  EXPECT_EQ(said.find("labels")->dump(),
            R"(["topic/arts","topic/sport","mood/glad","mood/sad","mood/bored"])");
  EXPECT_EQ(values(*opened.train, 0, "label"), (Ids{1, 1}));
  EXPECT_EQ(values(*opened.train, 1, "label"), (Ids{0, -100}));
  // 1 / n, scaled to a sum of the number of classes: n is 1 and 3; and 2, 1 and 1 for none.
  const auto weights = [&](std::size_t head) {
    std::vector<double> out;
    for (const json::Value& weight :
         said.find("heads")->items()[head].find("class_weights")->items())
      out.push_back(weight.as_double());
    return out;
  };
  EXPECT_THAT(weights(0),
              ::testing::ElementsAre(::testing::DoubleEq(2 / (1 + 1.0 / 3)),
                                     ::testing::DoubleEq(2.0 / 3 / (1 + 1.0 / 3))));
  EXPECT_THAT(weights(1),
              ::testing::ElementsAre(::testing::DoubleEq(3 * 0.5 / 2.5),
                                     ::testing::DoubleEq(3 / 2.5),
                                     ::testing::DoubleEq(3 / 2.5)));
  const Predictions rows = {
      .width = 5, .label_width = 2, .values = {0, 2, 1, 3, 0}, .labels = {1, 1}};
  const std::vector<NamedValue> told = task->metrics(rows);
  EXPECT_NE(std::ranges::find(told, "topic_f1", &NamedValue::name), told.end());
  const auto named = task_of(
      "classify", R"({"heads": ["topic", "mood"], "head_class_weights": {"topic": [1, 3]}})");
  const json::Value own = named->objective_options(data);
  EXPECT_EQ(own.find("heads")->items()[0].find("class_weights")->dump(), "[1,3]");
  EXPECT_EQ(own.find("heads")->items()[1].find("class_weights"), nullptr);
  EXPECT_EQ(own.find("num_labels")->as_integer(), 4);
}

TEST_F(Classification, RefusesHeadsThatDoNotFit) {
  const auto refuses = [](const std::string& params) {
    return std::string(error_of([&] { task_of("classify", params); }).what());
  };

  EXPECT_THAT(refuses(R"({"heads": {"topic": "sport"}})"), HasSubstr("heads.topic"));
  EXPECT_THAT(refuses(R"({"heads": {"topic": ["a", "a"]}})"), HasSubstr("named twice"));
  EXPECT_THAT(refuses(R"({"heads": {"topic": ["a", "b"]}, "multi_label": true})"),
              HasSubstr("multi_label"));
  EXPECT_THAT(refuses(R"({"heads": {"topic": ["a", "b"]}, "head_weights": {"mood": 1}})"),
              HasSubstr("head_weights.mood"));
  EXPECT_THAT(refuses(R"({"heads": {"topic": ["a", "b"]}, "head_class_weights": {"topic": [1]}})"),
              HasSubstr("head_class_weights.topic"));
  EXPECT_THAT(refuses(R"({"heads": ["topic", "topic"]})"), HasSubstr("heads"));
  const data::DataOptions one = options("{\"text\": \"a\", \"topic\": \"arts\"}\n");
  EXPECT_THAT(error_of([&] {
                task_of("classify", R"({"heads": ["topic"]})")->objective_options(one);
              }).what(),
              HasSubstr("the field topic"));
  const Error unknown =
      refusal("{\"text\": \"a\", \"topic\": \"art\", \"mood\": \"sad\"}\n", kHeads);
  EXPECT_THAT(unknown.what(), HasSubstr("train.jsonl:1"));
  EXPECT_THAT(unknown.fix(), HasSubstr("arts"));
  EXPECT_THAT(refusal("{\"text\": \"a\", \"topic\": \"arts\"}\n", kHeads).what(),
              HasSubstr("mood"));
}

TEST_F(Classification, CountsTheSamplesOfEveryLabel) {
  LabelledTexts texts({.length = 4, .labels = Labels::named({"glad", "calm", "sad"})});

  texts.read_files(options(kMoods).train, {}, {}, "text", test::byte(), {});

  EXPECT_EQ(texts.class_counts(),
            (RecordDataset::ClassCounts{{"glad", 1}, {"calm", 0}, {"sad", 2}}));
  EXPECT_EQ(texts.cut(), 1);
}

TEST_F(Classification, HoldsOutEveryClassOrTakesOtherDataForValidation) {
  data::DataOptions tail = options(kMoods), other = tail;
  tail.validation_fraction = 0.4;
  other.validation = {folder_.write("held.jsonl", "{\"text\": \"z\", \"label\": \"sad\"}\n")};
  const auto task = task_of("classify");

  const data::Datasets of_tail = open(*task, tail, 4), of_other = open(*task, other, 4);

  EXPECT_EQ(of_tail.train->size(), 1);
  EXPECT_EQ(values(*of_tail.train, 0, "label"), Ids{1});
  EXPECT_EQ(values(*of_tail.validation, 0, "label").front() +
                values(*of_tail.validation, 1, "label").front(),
            1);
  EXPECT_EQ(of_other.train->size(), 3);
  // Numbered by the labels of data.train.
  EXPECT_EQ(values(*of_other.validation, 0, "label"), Ids{1});
  const data::OpenedDataset held_out = task->open_held_out({.options = other,
                                                            .tokenizer = test::byte(),
                                                            .vocab_size = 256,
                                                            .sequence_length = 4,
                                                            .how = {}},
                                                           other.validation,
                                                           "--data");
  EXPECT_EQ(values(*held_out.dataset, 0, "label"), Ids{1});
  EXPECT_EQ(held_out.fingerprint, of_other.validation_fingerprint);
}

TEST_F(Classification, HoldsEveryRecordOutInOneOfItsFolds) {
  std::string records;
  for (int i = 0; i < 13; ++i)
    records += fmt::format(
        "{{\"text\": \"{}\", \"label\": \"{}\"}}\n", static_cast<char>('a' + i), i < 9 ? "x" : "y");
  data::DataOptions data = options(records);
  data.folds = 3;
  const auto task = task_of("classify");
  std::map<std::int64_t, int> held;
  std::set<std::string> fingerprints;

  for (data.fold = 1; data.fold <= 3; ++data.fold) {
    const data::Datasets opened = open(*task, data, 4);

    EXPECT_EQ(opened.train->size() + opened.validation->size(), 13);
    std::int64_t of_y = 0;
    for (std::int64_t i = 0; i < opened.validation->size(); ++i) {
      ++held[values(*opened.validation, i, "input_ids").front()];
      of_y += values(*opened.validation, i, "label").front();
    }
    EXPECT_GE(of_y, 1);
    fingerprints.insert(opened.fingerprint);
  }

  EXPECT_EQ(held.size(), 13U);
  EXPECT_TRUE(std::ranges::all_of(held, [](const auto& one) { return one.second == 1; }));
  EXPECT_EQ(fingerprints.size(), 3U);
}

TEST_F(Classification, RefusesFoldsThatCannotBeHeldOut) {
  const auto problem_of = [&](const std::string& type, const data::DataOptions& data) {
    config::Problems problems;
    const TaskOptions task{.type = type, .params = {}};
    check_data(*task_of(type), task, data, problems, {});
    return error_of([&] { problems.raise(); }).text();
  };
  data::DataOptions data = options(kMoods);
  data.folds = 3;
  EXPECT_THAT(problem_of("pretrain", data), HasSubstr("folds divide records"));
  data.fold = 4;
  EXPECT_THAT(problem_of("classify", data), HasSubstr("from 1 to 3"));
  data.fold = 1;
  data.validation_fraction = 0.5;
  EXPECT_THAT(problem_of("classify", data), HasSubstr("data.folds"));
  data.validation_fraction = 0;
  data.streaming = 2;
  EXPECT_THAT(problem_of("classify", data), HasSubstr("data.streaming"));
}

TEST_F(Classification, HasAFingerprintOfTextsAndLabels) {
  const auto fingerprint = [&](std::string_view records, std::int64_t length) {
    return open(*task_of("classify"), options(records), length).fingerprint;
  };
  const std::string one = "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n",
                    labels = "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 1}\n",
                    text = "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"c\", \"label\": 1}\n";

  EXPECT_EQ(fingerprint(one, 4), fingerprint(one, 4));
  EXPECT_NE(fingerprint(one, 4), fingerprint(one, 8));
  EXPECT_NE(fingerprint(one, 4), fingerprint(labels, 4));
  EXPECT_NE(fingerprint(one, 4), fingerprint(text, 4));
}

TEST_F(Classification, NamesFileAndLineOfABadRecord) {
  const std::string good = "{\"text\": \"a\", \"label\": \"x\"}\n";
  const struct {
    const char* record;
    const char* what;
  } kCases[] = {
      {"{\"text\": \"a\"", "train.jsonl:2"},
      {"[1]", "train.jsonl:2: expected a JSON object, found an array"},
      {"{\"text\": \"a\"}", "train.jsonl:2: the record has no \"label\""},
      {"{\"label\": \"x\"}", "train.jsonl:2: the record has no \"text\""},
      {"{\"text\": 5, \"label\": \"x\"}", "train.jsonl:2: \"text\" is a number"},
      {"{\"text\": \"\", \"label\": \"x\"}", "train.jsonl:2: \"text\" is empty"},
      {"{\"text\": \"a\", \"label\": 1.5}", "train.jsonl:2: the label \"label\" is 1.5"},
      {"{\"text\": \"a\", \"label\": [\"x\"]}", "train.jsonl:2: the label \"label\" is [\"x\"]"},
      {"{\"text\": \"a\", \"label\": -1}",
       "train.jsonl:2: the label is -1, and negative numbers mark missing labels"},
      {"{\"text\": \"a\", \"label\": 1}",
       "train.jsonl:2: the label is an integer, and that of earlier records is a name"}};
  for (const auto& [record, what] : kCases) {
    SCOPED_TRACE(record);
    const Error error = refusal(good + record + "\n");
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_THAT(error.what(), HasSubstr(what));
  }
}

TEST_F(Classification, IntegerLabelsAreClassesByValue) {
  const auto record = [](int label) {
    return "{\"text\": \"a\", \"label\": " + std::to_string(label) + "}\n";
  };
  const auto names_of = [&](std::initializer_list<int> labels, const std::string& params) {
    std::string records;
    for (const int label : labels)
      records += record(label);
    return task_of("classify", params)->objective_options(options(records)).dump();
  };
  EXPECT_EQ(names_of({3, 1, 2, 1}, "{}"), R"({"num_labels":3,"labels":["1","2","3"]})");
  EXPECT_EQ(names_of({4, 0}, "{}"), R"({"num_labels":2,"labels":["0","4"]})");
  EXPECT_EQ(names_of({1, 0, 2}, "{}"), R"({"num_labels":3})");
  EXPECT_EQ(names_of({10, 9}, "{}"), R"({"num_labels":2,"labels":["9","10"]})");
  // Integers in the list of names mean the same, whatever stands in the records.
  for (const char* labels : {"[1, 2, 5]", R"(["1", "2", "5"])"})
    EXPECT_EQ(names_of({1}, std::string("{\"labels\": ") + labels + "}"),
              R"({"num_labels":3,"labels":["1","2","5"]})");

  const data::DataOptions ratings = options(record(5) + record(1) + record(3));
  const data::Datasets opened = open(*task_of("classify"), ratings, 4);
  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{2});
  EXPECT_EQ(values(*opened.train, 1, "label"), Ids{0});
  EXPECT_EQ(values(*opened.train, 2, "label"), Ids{1});
  // An integer is the id where the classes have other names, and never where they are integers.
  const data::Datasets named = open(
      *task_of("classify", R"({"labels": ["bad", "good"]})"), options(record(1) + record(0)), 4);
  EXPECT_EQ(values(*named.train, 0, "label"), Ids{1});
  const Error error = refusal(record(0), R"({"labels": [1, 2]})");
  EXPECT_THAT(error.what(), HasSubstr("the label \"0\" is not one of the 2 labels"));
  EXPECT_THAT(error.fix(), HasSubstr("1, 2"));
}

TEST_F(Classification, NegativeIntegersAreClassesIfTheConfigurationNamesThem) {
  const std::string records =
      "{\"text\": \"a\", \"label\": -1}\n{\"text\": \"a\", \"label\": 1}\n"
      "{\"text\": \"a\", \"label\": -1}\n";
  for (const char* more : {"}", R"(, "class_balance": "inverse"})"}) {
    SCOPED_TRACE(more);
    const auto task = task_of("classify", std::string(R"({"labels": [-1, 1])") + more);
    const data::DataOptions data = options(records);

    EXPECT_EQ(task->objective_options(data).find("labels")->dump(), R"(["-1","1"])");
    EXPECT_EQ(values(*open(*task, data, 4).train, 0, "label"), Ids{0});
    EXPECT_EQ(values(*open(*task, data, 4).train, 1, "label"), Ids{1});
  }
  EXPECT_THAT(refusal(records).fix(), HasSubstr(R"(task.params.labels ["-1", "0", ...])"));
  EXPECT_THAT(refusal(records, R"({"labels": [0, 1]})").what(),
              HasSubstr("the label \"-1\" is not one of the 2 labels"));
}

TEST_F(Classification, OfAListOfLabelsSaysHowToLearnThem) {
  const Error error = refusal("{\"text\": \"a\", \"label\": [\"x\", \"y\"]}\n");

  EXPECT_THAT(error.fix(), HasSubstr("task.params.multi_label"));
}

TEST_F(Classification, IntegersAreWeightedByTheirOwnCounts) {
  const std::string records =
      "{\"text\": \"a\", \"label\": 5}\n{\"text\": \"a\", \"label\": 1}\n"
      "{\"text\": \"a\", \"label\": 5}\n{\"text\": \"a\", \"label\": 5}\n";
  const auto weights_of = [&](const std::string& labels) {
    return task_of("classify", R"({"class_balance": "inverse", "labels": )" + labels + "}")
        ->objective_options(options(records))
        .find("class_weights")
        ->dump();
  };
  EXPECT_EQ(weights_of("[1, 5]"), weights_of("null"));
}

TEST_F(Classification, SuggestsTheNearestLabel) {
  const Error error = refusal("{\"text\": \"a\", \"label\": \"positve\"}\n",
                              R"({"labels": ["negative", "positive"]})");

  EXPECT_THAT(error.what(), HasSubstr("train.jsonl:1: the label \"positve\" is not one of"));
  EXPECT_THAT(error.fix(), HasSubstr("positive"));
}

TEST_F(Classification, RefusesLabelsTwiceOtherFilesAndTooLittleData) {
  EXPECT_THAT(error_of([] { task_of("classify", R"({"labels": ["a", "b", "a"]})"); }).what(),
              HasSubstr("the label \"a\" is named twice"));
  data::DataOptions text;
  text.train = {folder_.write("a.txt", "some text")};
  EXPECT_THAT(error_of([&] { open(*task_of("classify"), text, 4); }).what(),
              HasSubstr("a.txt is not a file of records"));
  const data::DataOptions few = options(kMoods);
  EXPECT_THAT(error_of([&] { open(*task_of("classify"), few, 4, 8); }).what(),
              HasSubstr("data.train has 3 texts; at least 8 are needed for a batch"));
  EXPECT_THAT(error_of([&] { open(*task_of("classify"), few, 4, 8); }).fix(),
              AllOf(HasSubstr("smaller train_batch_size"), HasSubstr("data.drop_last false")));
}

}  // namespace
}  // namespace tessera::tasks
