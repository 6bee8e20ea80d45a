// SPDX-License-Identifier: Apache-2.0
// Several sources of data, by weights: for tasks of records and of streams of tokens.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/mixture.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::open;
using test::task_of;
using test::values;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

class MixedSources : public ::testing::Test {
 protected:
  /// Options over two files, whose contents are given, with weights 3 and 1.
  data::DataOptions options(const std::string& first,
                            const std::string& second,
                            const std::string& ending) {
    json::Value config = json::parse(
        R"({"data": {"sources": [{"path": ")" + folder_.write("a" + ending, first) +
            R"(", "weight": 3}, {"path": ")" + folder_.write("b" + ending, second) + R"("}]}})",
        "my.json");
    data::spell_out_sources(config);
    data::DataOptions out;
    config::Problems problems;
    config::Origins origins;
    config::read(*config.find("data"), out, problems, origins);
    problems.raise();
    return out;
  }
  test::Folder folder_;
};

/// The first token of every sample.
std::string firsts(const data::Dataset& dataset) {
  std::string out;
  for (std::int64_t i = 0; i < dataset.size(); ++i)
    out += static_cast<char>(values(dataset, i, "input_ids").front());
  return out;
}

TEST_F(MixedSources, OfRecordsShareTheirLabels) {
  std::string letters, digits;
  for (const char letter : std::string("abcdef"))
    letters += std::string(R"({"text": ")") + letter + R"(", "label": "letter"})" + "\n";
  for (const char digit : std::string("12"))
    digits += std::string(R"({"text": ")") + digit + R"(", "label": "digit"})" + "\n";
  data::DataOptions data = options(letters, digits, ".jsonl");

  const data::Datasets opened = open(*task_of("classify"), data, 4);

  // Three letters to a digit, in the order of the files.
  EXPECT_EQ(firsts(*opened.train), "ab1cde2f");
  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{1});
  EXPECT_EQ(values(*opened.train, 2, "label"), Ids{0});
  EXPECT_EQ(opened.train_stats.documents, 8);
  EXPECT_EQ(opened.train_tokens, 8);
}

TEST_F(MixedSources, HoldOutTheTailOfEach) {
  std::string letters, digits;
  for (const char letter : std::string("abcdefgh"))
    letters += std::string(R"({"text": ")") + letter + R"(", "label": 0})" + "\n";
  for (const char digit : std::string("1234"))
    digits += std::string(R"({"text": ")") + digit + R"(", "label": 1})" + "\n";
  data::DataOptions data = options(letters, digits, ".jsonl");
  data.validation_fraction = 0.25;

  const data::Datasets opened = open(*task_of("classify"), data, 4);

  EXPECT_EQ(firsts(*opened.validation), "gh4");
  // Third round: the letters begin again until the last digit was read.
  EXPECT_EQ(firsts(*opened.train), "ab1cde2fab3");
  data.mix_until = "first";
  const data::Datasets first = open(*task_of("classify"), data, 4);
  EXPECT_EQ(firsts(*first.train), "ab1cde2f") << "of six letters none is read twice";
  EXPECT_NE(first.fingerprint, opened.fingerprint);
}

TEST_F(MixedSources, OfStreamsMixTheirWindows) {
  data::DataOptions data = options(std::string(25, 'a'), std::string(9, 'b'), ".txt");

  const data::Datasets opened = open(*task_of("pretrain"), data, 4);

  // Six windows and two.
  EXPECT_EQ(firsts(*opened.train), "aabaaaba");
  EXPECT_EQ(opened.train_tokens, 25 + 9);
  data.validation_fraction = 0.4;
  const data::Datasets split = open(*task_of("pretrain"), data, 4);
  EXPECT_EQ(firsts(*split.train).substr(0, 4), "aaba");
  EXPECT_EQ(firsts(*split.validation), "aa") << "of b, four tokens are not a window and its label";
  // Tasks that hide tokens read the same windows.
  data.validation_fraction = 0.0;
  const data::Datasets hidden =
      open(*task_of("masked_lm", R"({"mask_token_id": 255, "probability": 0.01})"), data, 4);
  EXPECT_EQ(hidden.train->size(), 8);
  EXPECT_EQ(std::ranges::count(values(*hidden.train, 2, "input_ids"), 'b'), 3);
}

TEST_F(MixedSources, AreRefusedWhereOneIsEmpty) {
  data::DataOptions data = options("{\"text\": \"a\", \"label\": 0}\n", "\n", ".jsonl");
  const Error empty = error_of([&] { open(*task_of("classify"), data, 4); });
  EXPECT_THAT(empty.what(), HasSubstr("b.jsonl has 0 texts; at least 1 are needed"));

  data::DataOptions pairs =
      options("{\"text\": \"a\", \"label\": 0}\n", "{\"text\": \"bb\", \"label\": 1}\n", ".jsonl");
  const Error few = error_of([&] { open(*task_of("classify"), pairs, 4, 9); });
  EXPECT_THAT(few.what(), HasSubstr("at least 9 are needed"));
  config::Problems problems;
  data::DataOptions alone;
  alone.train = {"a"};
  alone.mix_until = "first";
  check_data(*task_of("classify"), {.type = "classify"}, alone, problems, {});
  ASSERT_EQ(problems.list().size(), 1U);
  EXPECT_EQ(problems.list()[0].path, "data.mix_until");
}

}  // namespace
}  // namespace tessera::tasks
