// SPDX-License-Identifier: Apache-2.0
// Metrics as scikit-learn and scipy give them (reference_metrics.py).
#include "tessera/tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::tasks {
namespace {

constexpr double kBound = 1e-12;

const json::Value& reference() {
  static const json::Value value = json::parse_strict(
      files::read(tessera::test::source_dir().string() + "/tests/tasks/reference_metrics.json"),
      "reference_metrics.json");
  return value;
}

void append(const json::Value& value, std::vector<float>& out) {
  if (value.is_array()) {
    for (const json::Value& item : value.items())
      append(item, out);
  } else {
    out.push_back(static_cast<float>(value.as_double()));
  }
}

Predictions predictions_of(const json::Value& one, std::int64_t width, std::int64_t label_width) {
  Predictions out{.width = width, .label_width = label_width, .values = {}, .labels = {}};
  append(*one.find("values"), out.values);
  append(*one.find("labels"), out.labels);
  return out;
}

double number(const json::Value& one, const char* name) {
  return one.find(name)->as_double();
}

void expect_values(const std::vector<NamedValue>& made, const json::Value& one) {
  for (const NamedValue& value : made) {
    SCOPED_TRACE(value.name);
    ASSERT_NE(one.find(value.name), nullptr);
    EXPECT_NEAR(value.value, number(one, value.name.c_str()), kBound);
  }
}

TEST(Metrics, OfClassesAreThoseOfScikitLearn) {
  for (const json::Value& one : reference().find("classes")->items()) {
    const std::int64_t width = one.find("width")->as_integer().value();
    SCOPED_TRACE(width);

    const ClassificationReport made = classification_report(predictions_of(one, width, 1));

    EXPECT_NEAR(made.accuracy, number(one, "accuracy"), kBound);
    EXPECT_NEAR(made.matthews, number(one, "matthews"), kBound);
    for (std::size_t c = 0; c < made.classes.size(); ++c) {
      EXPECT_NEAR(made.classes[c].precision, one.find("precision")->items()[c].as_double(), kBound);
      EXPECT_NEAR(made.classes[c].recall, one.find("recall")->items()[c].as_double(), kBound);
      EXPECT_NEAR(made.classes[c].f1, one.find("f1")->items()[c].as_double(), kBound);
      EXPECT_EQ(made.classes[c].support, one.find("support")->items()[c].as_integer());
    }
    const auto expect_average = [&](const ClassReport& average, const char* name) {
      const std::vector<json::Value>& wanted = one.find(name)->items();
      EXPECT_NEAR(average.precision, wanted[0].as_double(), kBound) << name;
      EXPECT_NEAR(average.recall, wanted[1].as_double(), kBound) << name;
      EXPECT_NEAR(average.f1, wanted[2].as_double(), kBound) << name;
    };
    expect_average(made.macro, "macro");
    expect_average(made.weighted, "weighted");
    ASSERT_EQ(made.confusion.size(), one.find("confusion")->items().size());
    for (std::size_t i = 0; i < made.confusion.size(); ++i)
      EXPECT_EQ(made.confusion[i], one.find("confusion")->items()[i].as_integer());
    ASSERT_EQ(made.auc.has_value(), one.find("auc") != nullptr);
    EXPECT_NEAR(made.auc.value_or(0), one.find("auc") != nullptr ? number(one, "auc") : 0, 1e-9);
  }
}

TEST(Metrics, OfFlagsAndNumbersAreThoseOfScikitLearn) {
  for (const json::Value& one : reference().find("flags")->items()) {
    const std::int64_t width = one.find("width")->as_integer().value();
    expect_values(multi_label_metrics(predictions_of(one, width, width)), one);
  }
  for (const json::Value& one : reference().find("numbers")->items())
    expect_values(regression_metrics(predictions_of(one, 1, 1)), one);
}

TEST(Metrics, LeaveOutRowsWithoutAClass) {
  const Predictions some{
      .width = 2, .label_width = 1, .values = {1, 0, 0, 1, 5, 0}, .labels = {0, 1, -100}};

  const ClassificationReport report = classification_report(some);

  EXPECT_EQ(report.accuracy, 1.0);
  EXPECT_EQ(report.macro.support, 2);
  EXPECT_EQ(report.auc, 1.0);
}

TEST(Metrics, TheCurveRisesFromNothingToAll) {
  const Predictions some{
      .width = 2, .label_width = 1, .values = {0, 3, 0, 2, 0, 2, 0, 1}, .labels = {1, 1, 0, 0}};

  const std::vector<RocPoint> curve = roc_curve(some, 1);

  ASSERT_EQ(curve.size(), 4U);
  EXPECT_EQ(curve[1].true_positives, 0.5);
  EXPECT_EQ(curve[1].false_positives, 0.0);
  EXPECT_EQ(curve[2].true_positives, 1.0);
  EXPECT_EQ(curve[2].false_positives, 0.5);
  EXPECT_EQ(curve[3].false_positives, 1.0);
}

TEST(Metrics, OfTwoClassesAreThoseOfTheSecond) {
  const json::Value& one = reference().find("classes")->items().front();
  std::map<std::string, double> made;
  for (const NamedValue& value : class_metrics(predictions_of(one, 2, 1)))
    made[value.name] = value.value;

  EXPECT_NEAR(made.at("f1"), one.find("f1")->items()[1].as_double(), kBound);
  EXPECT_NEAR(made.at("precision"), one.find("precision")->items()[1].as_double(), kBound);
  EXPECT_NEAR(made.at("auc"), number(one, "auc"), kBound);
}

TEST(Predictions, AreReported) {
  const std::vector<std::string> names = {"no", "yes"};
  const float third = static_cast<float>(std::log(3.0));
  const Predictions row{.width = 2, .label_width = 0, .values = {0, third}, .labels = {}};

  const json::Value one = class_prediction(row, names);
  EXPECT_EQ(one.find("label")->as_string(), "yes");
  EXPECT_NEAR(one.find("score")->as_double(), 0.75, 1e-7);
  EXPECT_NEAR(one.find("scores")->find("no")->as_double(), 0.25, 1e-7);
  EXPECT_EQ(class_prediction(row, {}).find("label")->as_integer(), 1);

  const json::Value several = multi_label_prediction(row, names);
  EXPECT_EQ(several.find("labels")->dump(), "[\"yes\"]");
  EXPECT_NEAR(several.find("scores")->find("no")->as_double(), 0.5, 1e-7);

  EXPECT_EQ(
      regression_prediction({.width = 1, .label_width = 0, .values = {2.5F}, .labels = {}}).dump(),
      "{\"value\":2.5}");
  EXPECT_EQ(
      tags_prediction({.width = 2, .label_width = 0, .values = {1, 0, 0, 1}, .labels = {}}, names)
          .find("tags")
          ->dump(),
      "[\"no\",\"yes\"]");
}

TEST(Predictions, OfAListHaveAPlaceForEachEntry) {
  Predictions rows{.width = 2, .label_width = 0, .values = {1, 0, 0, 1}, .labels = {}};
  rows.places = {-1, 0, -1, -1, 1};

  const json::Value out = tags_prediction(rows, {"no", "yes"});

  EXPECT_EQ(out.find("tags")->dump(), "[null,\"no\",null,null,\"yes\"]");
  ASSERT_EQ(out.find("scores")->items().size(), 5);
  EXPECT_TRUE(out.find("scores")->items()[0].is_null());
  EXPECT_NEAR(out.find("scores")->items()[4].as_double(), 1 / (1 + std::exp(-1.0)), 1e-6);
}

/// "PER 0-2" for each entity, of rows that certainly have the given tags.
std::string entities(const std::vector<std::string>& tags) {
  const std::vector<std::string> names = {
      "O", "B-PER", "I-PER", "E-PER", "S-PER", "B-ORG", "I-ORG"};
  Predictions rows{.width = static_cast<std::int64_t>(names.size()),
                   .label_width = 0,
                   .values = {},
                   .labels = {}};
  for (const std::string& tag : tags) {
    rows.places.push_back(tag.empty() ? -1 : rows.rows());
    for (const std::string& name : names)
      if (!tag.empty()) rows.values.push_back(name == tag ? 50.0F : 0.0F);
  }
  const json::Value prediction = tags_prediction(rows, names);
  std::string out;
  for (const json::Value& one : prediction.find("entities")->items()) {
    EXPECT_NEAR(one.find("score")->as_double(), 1, 1e-6);
    out += one.find("label")->as_string() + " " + one.find("begin")->dump() + "-" +
           one.find("end")->dump() + " ";
  }
  return out;
}

TEST(Predictions, MergeTheTagsOfAnEntity) {
  EXPECT_EQ(entities({"B-PER", "I-PER", "O", "B-ORG"}), "PER 0-2 ORG 3-4 ");
  EXPECT_EQ(entities({"B-PER", "B-PER", "I-ORG"}), "PER 0-1 PER 1-2 ORG 2-3 ");
  EXPECT_EQ(entities({"O", "I-PER", "I-PER"}), "PER 1-3 ");
  EXPECT_EQ(entities({"B-PER", "I-PER", "E-PER", "S-PER", "I-PER"}), "PER 0-3 PER 3-4 PER 4-5 ");
  EXPECT_EQ(entities({"B-PER", "", "I-PER"}), "PER 0-1 PER 2-3 ");
  EXPECT_EQ(entities({"O", "O"}), "");
}

/// Every threshold that matters, tried one by one.
double best_f1_of(const Predictions& all, std::size_t of_class) {
  const auto width = static_cast<std::size_t>(all.width);
  double best = 0;
  for (float edge : all.values) {
    double right = 0, said = 0, truly = 0;
    for (std::size_t r = of_class; r < all.values.size(); r += width) {
      const bool positive = all.values[r] >= edge, label = all.labels[r] > 0;
      right += positive && label ? 1 : 0;
      said += positive ? 1 : 0;
      truly += label ? 1 : 0;
    }
    if (right > 0) best = std::max(best, 2 * right / (said + truly));
  }
  return best;
}

TEST(Thresholds, GiveTheBestF1OfEachLabel) {
  // The second label has equal logits, the third is never true.
  const Predictions all = {.width = 3,
                           .label_width = 3,
                           .values = {-2, 1, 0, -1, 1, 2, -3, -1, 1, 0.5F, 1, 0, -1.5F, 3, 1},
                           .labels = {1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0}};

  const std::vector<Threshold> best = best_f1_thresholds(all);

  ASSERT_EQ(best.size(), 3U);
  for (std::size_t c = 0; c < 2; ++c)
    EXPECT_NEAR(best[c].f1, best_f1_of(all, c), kBound) << c;
  // Of the first label the rows with 0.5, -1 and -2 are true: all are predicted, with the false one
  // of -1.5 among them.
  const auto probability = [](double logit) { return 1 / (1 + std::exp(-logit)); };
  EXPECT_NEAR(best[0].value, (probability(-2) + probability(-3)) / 2, kBound);
  EXPECT_EQ(best[2].value, 0.5);
  EXPECT_EQ(best[2].f1, 0.0);
  // The metrics with these thresholds are those that were promised.
  std::vector<double> values;
  double sum = 0;
  for (const Threshold& one : best) {
    values.push_back(one.value);
    sum += one.f1;
  }
  for (const NamedValue& metric : multi_label_metrics(all, values)) {
    if (metric.name != "f1_macro") continue;
    EXPECT_NEAR(metric.value, sum / 3, kBound);
  }
}

TEST(Thresholds, DecideWhichLabelsArePredicted) {
  const Predictions row = {
      .width = 3, .label_width = 0, .values = {-1, 0.5F, 2}, .labels = {}};  // 0.27, 0.62, 0.88

  const auto labels = [&](const std::vector<double>& thresholds) {
    return multi_label_prediction(row, {"a", "b", "c"}, thresholds).find("labels")->dump();
  };

  EXPECT_EQ(labels({}), R"(["b","c"])");
  EXPECT_EQ(labels({0.2, 0.7, 0.5}), R"(["a","c"])");
}

}  // namespace
}  // namespace tessera::tasks
