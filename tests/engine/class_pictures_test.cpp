// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/class_pictures.h"

#include <filesystem>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClassPictures : public ::testing::Test {
 protected:
  void write(const tasks::Predictions& predictions, const std::string& options) {
    write_class_pictures(folder_.path(), predictions, {"objective", json::parse(options, "o")});
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path()))
      out.insert(file.path().filename().string());
    return out;
  }
  [[nodiscard]] std::string text(const std::string& name) const {
    return files::read(folder_.path() / name);
  }

  files::TempDir folder_;
};

TEST_F(ClassPictures, HaveACurveForEachOfSeveralClasses) {
  // The third class never occurs, so that it has no curve.
  write({.width = 3, .label_width = 1, .values = {2, 1, 0, 0, 2, 1, 2, 1, 0}, .labels = {0, 1, 1}},
        R"({"labels": ["x", "y", "z"]})");

  EXPECT_THAT(names(), ElementsAre("confusion.svg", "roc.svg"));
  EXPECT_THAT(text("confusion.svg"), HasSubstr("x said of y: 1</title>"));
  EXPECT_THAT(text("roc.svg"),
              AllOf(HasSubstr("x, area 0.7500"), HasSubstr("y, area"), Not(HasSubstr("z, area"))));
}

TEST_F(ClassPictures, AreThoseOfEachHead) {
  // Two classes of the topic, three of the mood; the second row has no mood.
  write({.width = 5,
         .label_width = 2,
         .values = {1, 0, 0, 0, 3, 0, 1, 5, 0, 0, 0, 2, 0, 4, 0},
         .labels = {0, 2, 1, -100, 0, 1}},
        R"({"heads": [{"name": "topic", "labels": ["t", "u"]},
                      {"name": "a/b", "labels": ["k", "l", "m"]}]})");

  EXPECT_THAT(
      names(),
      ElementsAre("confusion_a_b.svg", "confusion_topic.svg", "roc_a_b.svg", "roc_topic.svg"));
  EXPECT_THAT(text("confusion_topic.svg"), HasSubstr("u said of t: 1</title>"));
  EXPECT_THAT(text("confusion_a_b.svg"),
              AllOf(HasSubstr("m said of m: 1</title>"), HasSubstr("k said of k: 0</title>")));
  EXPECT_THAT(text("roc_topic.svg"), HasSubstr("ROC, area 0.5000"));
}

TEST_F(ClassPictures, CountTheLabelsOfSamplesWithSeveral) {
  // A logit of 1 is a probability of 0.73.
  write(
      {.width = 2, .label_width = 2, .values = {1, -1, 1, 1, -1, 1}, .labels = {1, 0, 0, 1, 0, 1}},
      R"({"problem_type": "multi_label_classification", "labels": ["p", "q"],
            "thresholds": [0.5, 0.9]})");

  EXPECT_THAT(names(), ElementsAre("confusion.svg", "roc.svg"));
  EXPECT_THAT(text("confusion.svg"),
              AllOf(HasSubstr("p rightly found: 1<"),
                    HasSubstr("p wrongly found: 1<"),
                    HasSubstr("p rightly absent: 1<"),
                    HasSubstr("q missed: 2<")));
  EXPECT_THAT(text("roc.svg"), AllOf(HasSubstr("p, area 0.7500"), HasSubstr("q, area 1.0000")));
}

TEST_F(ClassPictures, AreNotDrawnForNumbers) {
  write({.width = 2, .label_width = 2, .values = {1, 2}, .labels = {1, 2}},
        R"({"problem_type": "regression"})");
  write({.width = 1, .label_width = 1, .values = {1}, .labels = {1}}, "{}");

  EXPECT_THAT(names(), IsEmpty());
}

}  // namespace
}  // namespace tessera::engine
