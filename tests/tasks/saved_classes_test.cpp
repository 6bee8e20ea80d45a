// SPDX-License-Identifier: Apache-2.0
// A task that continues a saved classifier: whose classes have which numbers.
#include "tessera/tasks/saved_classes.h"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/tasks/model_classes.h"

namespace tessera::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// The task that continues a saved model with records, its parameters and notes.
struct Continued {
  json::Value params, classes;
  std::vector<std::string> notes;
};

class SavedClasses : public testing::Test {
 protected:
  Continued task(const std::string& type,
                 const std::string& objective,
                 const std::string& saved,
                 const std::string& records,
                 const std::string& params = "{}") {
    const std::string file = (folder_.path() / "train.jsonl").string();
    std::ofstream(file, std::ios::binary) << records;
    const SavedObjective source = {objective, json::parse(saved, "saved")};
    data::DataOptions data;
    data.train = {file};
    TaskOptions options;
    options.type = type;
    options.params = json::parse(params, "params");
    config::Problems problems;
    Continued out;
    const auto made = make_task_of(&source, data, options, problems, out.notes);
    problems.raise();
    out.params = options.params;
    out.classes = made->objective_options(data);
    return out;
  }
  Continued classify(const std::string& saved,
                     const std::string& records,
                     const std::string& params = "{}") {
    return task("classify", "sequence_classification", saved, records, params);
  }

 private:
  files::TempDir folder_;
};

std::string with_labels(const std::vector<std::string>& labels) {
  std::string out;
  for (const std::string& label : labels)
    out += R"({"text": "a", "label": )" + label + "}\n";
  return out;
}

std::vector<std::string> names(const json::Value& classes) {
  std::vector<std::string> out;
  if (const json::Value* const labels = classes.find("labels")) {
    for (const json::Value& label : labels->items())
      out.push_back(label.as_string());
  }
  return out;
}

const char* const kThree =
    R"({"num_labels": 3, "labels": ["neutral", "contradiction", "entailment"]})";
const auto kOrder = ElementsAre("neutral", "contradiction", "entailment");

TEST_F(SavedClasses, KeepNamesOrderAndNumberWhateverTheDataHasOfThem) {
  for (const auto& labels :
       std::vector<std::vector<std::string>>{{"\"entailment\"", "\"neutral\"", "\"contradiction\""},
                                             {"\"entailment\"", "\"neutral\""},
                                             {"\"entailment\""},
                                             {"2", "0", "1"},
                                             {"1", "0"}}) {
    const Continued out = classify(kThree, with_labels(labels));

    EXPECT_THAT(names(out.classes), kOrder) << labels.front();
    EXPECT_EQ(out.classes.find("num_labels")->as_integer(), 3);
    EXPECT_THAT(out.notes, IsEmpty());
  }
}

TEST_F(SavedClasses, AreThoseOfWordsToo) {
  const Continued out = task("tag",
                             "token_classification",
                             R"({"num_labels": 3, "labels": ["O", "B-PER", "B-ORG"]})",
                             "{\"tokens\": [\"a\", \"b\"], \"tags\": [\"B-PER\", \"O\"]}\n");

  EXPECT_THAT(names(out.classes), ElementsAre("O", "B-PER", "B-ORG"));
}

TEST_F(SavedClasses, WithoutNamesKeepTheirNumber) {
  const Continued numbers = classify(R"({"num_labels": 4})", with_labels({"1", "0"}));
  EXPECT_EQ(numbers.classes.find("num_labels")->as_integer(), 4);
  EXPECT_EQ(numbers.classes.find("labels"), nullptr);

  const Continued words = classify(R"({"num_labels": 2})", with_labels({"\"b\"", "\"a\""}));
  EXPECT_THAT(names(words.classes), ElementsAre("a", "b"));
  EXPECT_THAT(words.notes, ElementsAre(HasSubstr("does not name its 2 classes")));
}

TEST_F(SavedClasses, ThatDifferFromTheDatasAreNamed) {
  struct Row {
    const char* what;
    std::vector<std::string> labels;
    const char* params;
    const char* note;
  };
  for (const Row& row : {
           Row{"unknown", {"\"sad\"", "\"neutral\""}, "{}", "class \"sad\", which is none of"},
           Row{"capitals", {"\"NEUTRAL\""}, "{}", "class \"NEUTRAL\", which is none of"},
           Row{"more", {"3"}, "{}", "class \"3\", which is none of"},
           Row{"order",
               {"\"neutral\""},
               R"({"labels": ["contradiction", "entailment", "neutral"]})",
               "another order than the classes of model.from (neutral, contradiction, entailment)"},
           Row{"fewer",
               {"\"neutral\""},
               R"({"labels": ["neutral", "entailment"]})",
               "the head begins with new random weights"},
       }) {
    const Continued out = classify(kThree, with_labels(row.labels), row.params);

    EXPECT_THAT(out.notes, ElementsAre(HasSubstr(row.note))) << row.what;
  }
}

TEST_F(SavedClasses, OfSeveralHeadsKeepFieldsAndOrder) {
  const std::string saved =
      R"({"num_labels": 4, "heads": [{"name": "mood", "labels": ["sad", "glad"]},
                                     {"name": "topic", "labels": ["x", "a"]}]})";
  const std::string records = R"({"text": "t", "topic": "a", "mood": "glad"})"
                              "\n"
                              R"({"text": "t", "topic": "x", "mood": "sad"})"
                              "\n";

  for (const char* params : {"{}", R"({"heads": ["topic", "mood"]})"}) {
    const Continued out = classify(saved, records, params);

    const auto& heads = out.params.find("heads")->members();
    ASSERT_THAT(heads, SizeIs(2)) << params;
    EXPECT_EQ(heads[0].first, "mood");
    EXPECT_EQ(heads[0].second.items().front().as_string(), "sad");
    EXPECT_EQ(heads[1].second.items().front().as_string(), "x");
    EXPECT_THAT(out.notes, IsEmpty());
  }
}

TEST_F(SavedClasses, AreSeveralOfARecordWhereTheModelHasThatKind) {
  const Continued out = classify(
      R"({"num_labels": 2, "labels": ["b", "a"], "problem_type": "multi_label_classification"})",
      with_labels({"[\"a\", \"b\"]", "[]"}));

  EXPECT_TRUE(out.params.find("multi_label")->as_bool());
  EXPECT_THAT(names(out.classes), ElementsAre("b", "a"));
}

TEST_F(SavedClasses, OfAnotherKindOfModelAreNotTaken) {
  const Continued score = classify(R"({"num_labels": 1, "problem_type": "regression"})",
                                   with_labels({"\"b\"", "\"a\""}));
  EXPECT_THAT(names(score.classes), ElementsAre("a", "b"));
  EXPECT_THAT(score.notes, IsEmpty());

  const Continued words =
      task("classify", "token_classification", kThree, with_labels({"\"b\"", "\"a\""}));
  EXPECT_THAT(names(words.classes), ElementsAre("a", "b"));
}

TEST_F(SavedClasses, OfARunStandInPlaceOfThoseOfItsData) {
  const auto kept = [](const char* saved, const char* params) {
    json::Value out = json::parse(params, "params");
    keep_classes(json::parse(saved, "saved"), out);
    return out.dump();
  };

  EXPECT_EQ(kept(R"({"num_labels": 2, "labels": ["no", "yes"]})", "null"),
            R"({"labels":["no","yes"]})");
  EXPECT_EQ(kept(R"({"num_labels": 3})", R"({"label_field": "y"})"),
            R"({"label_field":"y","labels":["0","1","2"]})");
  EXPECT_EQ(kept(R"({"num_labels": 2, "class_weights": [0.5, 1.5]})",
                 R"({"class_balance": "inverse", "beta": 0.9})"),
            R"({"beta":0.9,"labels":["0","1"],"class_weights":[0.5,1.5]})");
  EXPECT_EQ(
      kept(R"({"heads": [{"name": "mood", "labels": ["bad", "good"]}]})", R"({"heads": ["mood"]})"),
      R"({"heads":{"mood":["bad","good"]}})");
  EXPECT_EQ(
      kept(
          R"({"heads": [{"name": "mood", "labels": ["bad", "good"], "class_weights": [0.5, 1.5]}]})",
          R"({"heads": ["mood"], "class_balance": "inverse"})"),
      R"({"heads":{"mood":["bad","good"]},"head_class_weights":{"mood":[0.5,1.5]}})");
  EXPECT_EQ(kept("{}", R"({"text_field": "a"})"), R"({"text_field":"a"})");
}

}  // namespace
}  // namespace tessera::tasks
