// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/folds.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Metrics of two evaluations, of which the first one is the better.
std::string metrics(double first, double second) {
  return fmt::format(
      "{{\"step\": 1, \"loss\": 9}}\n"
      "{{\"step\": 1, \"eval_loss\": {0}, \"eval_terms\": {{\"loss\": {0}, \"accuracy\": 0.75}}}}\n"
      "{{\"step\": 2, \"eval_loss\": {1}, \"eval_terms\": {{\"loss\": {1}, \"accuracy\": 0.5}}}}\n"
      "{{\"step\": 2, \"test_loss\": 4}}\n",
      first,
      second);
}

TEST(Folds, CountTheLastEvaluationOrTheBestOne) {
  const FoldResult last = read_fold(metrics(1, 2), 3, std::nullopt);
  EXPECT_EQ(last.fold, 3);
  EXPECT_EQ(last.step, 2);
  EXPECT_EQ(last.values, (std::map<std::string, double>{{"loss", 2}, {"accuracy", 0.5}}));
  EXPECT_EQ(last.test, (std::map<std::string, double>{{"loss", 4}}));

  const FoldResult best =
      read_fold(metrics(1, 2), 1, tasks::BestRule{.metric = "accuracy", .higher = true});
  EXPECT_EQ(best.step, 1);
  EXPECT_EQ(best.values.at("loss"), 1);
  EXPECT_THROW(read_fold("{\"step\": 1, \"loss\": 9}\n", 1, std::nullopt), Error);
}

TEST(Folds, HaveTheMeanAndTheStandardDeviationOfASample) {
  const std::vector<FoldResult> results = {read_fold(metrics(9, 1), 1, std::nullopt),
                                           read_fold(metrics(9, 2), 2, std::nullopt),
                                           read_fold(metrics(9, 6), 3, std::nullopt)};

  const json::Value all = folds_json(results, std::nullopt);

  EXPECT_EQ(all.find("mean")->find("loss")->as_double(), 3);
  // ((1-3)^2 + (2-3)^2 + (6-3)^2) / 2 = 7
  EXPECT_DOUBLE_EQ(all.find("sd")->find("loss")->as_double(), std::sqrt(7.0));
  EXPECT_EQ(all.find("sd")->find("accuracy")->as_double(), 0);
  EXPECT_EQ(all.find("results")->items().size(), 3U);
  EXPECT_EQ(all.find("test")->find("mean")->find("loss")->as_double(), 4);
  const std::vector<std::string> table = folds_table(results, std::nullopt);
  EXPECT_THAT(table[1], HasSubstr("loss  accuracy"));
  EXPECT_THAT(table[5], HasSubstr("mean              3.0000    0.5000"));
  EXPECT_THAT(table[6], HasSubstr("sd                2.6458    0.0000"));
}

TEST(Folds, AreTrainedOneAfterTheOtherInFoldersOfTheirOwn) {
  const files::TempDir folder;
  std::vector<std::vector<std::string>> lines;
  const auto train = [&](const std::vector<std::string>& line) {
    lines.push_back(line);
    if (lines.size() == 3) return kExitIncomplete;
    const auto own = folder.path() / fmt::format("fold-{}", lines.size());
    std::filesystem::create_directories(own);
    files::write_atomic(own / "metrics.jsonl", metrics(1, 2));
    return kExitOk;
  };
  FoldsCommand command{.line = {"my.json", "-n", "2"},
                       .folds = 2,
                       .dir = folder.path(),
                       .rule = {},
                       .sets_every = true,
                       .as_json = true};

  EXPECT_EQ(train_folds(command, train), kExitOk);

  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[1],
              ElementsAre("my.json",
                          "-n",
                          "2",
                          "--set",
                          "data.folds=2",
                          "--set",
                          "data.fold=2",
                          "--set",
                          "run.dir=\"" + (folder.path() / "fold-2").string() + "\"",
                          "--set",
                          "eval.every=epoch",
                          "--quiet"));
  const json::Value written =
      json::parse_strict(files::read(folder.path() / "folds.json"), "folds.json");
  EXPECT_EQ(written.find("folds")->as_integer(), 2);
  EXPECT_EQ(train_folds(command, train), kExitIncomplete) << "a fold that fails ends them";
  EXPECT_EQ(lines.size(), 3U);
}

TEST(Folds, AreEvaluatedEveryEpochUnlessTheFileSaysWhen) {
  json::Value source = json::parse(R"({"data": {"train": "a.csv"}})", "test");
  EXPECT_TRUE(set_fold(source, 5, 2));
  EXPECT_EQ(source.find("eval")->find("every")->as_string(), "epoch");
  EXPECT_EQ(source.find("data")->find("fold")->as_integer(), 2);
  json::Value given = json::parse(R"({"eval": {"every": 10}})", "test");
  EXPECT_FALSE(set_fold(given, 5, 1));
  EXPECT_EQ(given.find("eval")->find("every")->as_integer(), 10);
}

}  // namespace
}  // namespace tessera::cli
