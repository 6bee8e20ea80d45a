// SPDX-License-Identifier: Apache-2.0
// data.streaming: the samples of files that are read while they are used.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::Ids;
using test::open;
using test::task_of;
using ::testing::HasSubstr;

class StreamedRecords : public ::testing::Test {
 protected:
  /// Seven files; record r of file f has the label "a" or "b" and the text of the letters f and r.
  data::DataOptions streamed(std::int64_t window) {
    data::DataOptions out;
    for (int f = 0; f < 7; ++f)
      out.train.push_back(folder_.write(std::to_string(f) + ".jsonl", file_of(f)));
    out.streaming = window;
    return out;
  }
  static std::string file_of(int f) {
    std::string lines;
    // Files of 0, 3, 6, ... records: the first one is empty.
    for (int r = 0; r < 3 * f; ++r) {
      lines += R"({"text": ")" +
               std::string{static_cast<char>('A' + f), static_cast<char>('a' + r)} +
               R"(", "label": ")" + (r % 3 == 0 ? "b" : "a") + "\"}\n";
    }
    return lines;
  }
  /// The ids of the sample at a position of an epoch, as training reads it.
  static Ids sample(const data::Datasets& opened, std::int64_t epoch, std::int64_t position) {
    return test::values_in_epoch(*opened.train, epoch, position, "input_ids");
  }
  static std::vector<Ids> all(const data::Datasets& opened, std::int64_t epoch) {
    std::vector<Ids> out;
    for (std::int64_t i = 0; i < opened.train->size(); ++i)
      out.push_back(sample(opened, epoch, i));
    return out;
  }
  static std::vector<Ids> sorted(std::vector<Ids> samples) {
    std::ranges::sort(samples);
    return samples;
  }

  test::Folder folder_;
  std::unique_ptr<Task> task_ = task_of("classify");
};

TEST_F(StreamedRecords, HasEverySampleOnceInAnEpoch) {
  const data::DataOptions data = streamed(2);
  data::DataOptions held = data;
  held.streaming = 0;
  const data::Datasets opened = open(*task_, data, 4), whole = open(*task_, held, 4);
  ASSERT_EQ(opened.train->size(), 3 * (1 + 2 + 3 + 4 + 5 + 6));

  std::vector<Ids> expected;
  for (std::int64_t i = 0; i < whole.train->size(); ++i)
    expected.push_back(test::values(*whole.train, i, "input_ids"));

  for (const std::int64_t epoch : {0, 1, 7})
    EXPECT_EQ(sorted(all(opened, epoch)), sorted(expected)) << epoch;
  EXPECT_NE(all(opened, 0), all(opened, 1)) << "each epoch has an order of its own";
  EXPECT_EQ(opened.train_tokens, whole.train_tokens);
  EXPECT_EQ(class_counts_of(*opened.train), class_counts_of(*whole.train));
}

TEST_F(StreamedRecords, ShufflesTheSamplesOfAFewFilesTogether) {
  const data::Datasets opened = open(*task_, streamed(2), 4);

  const std::vector<Ids> samples = all(opened, 3);

  // The file of a sample is its first letter. Each window of two files ends before the next begins.
  std::map<std::int64_t, std::pair<std::size_t, std::size_t>> span;  // first and last position
  std::size_t changes = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    span.try_emplace(samples[i][0], i, i).first->second.second = i;
    if (i > 0 && samples[i][0] != samples[i - 1][0]) ++changes;
  }
  EXPECT_GT(changes, 12U) << "files are mixed: in order there would be five changes";
  for (const auto& [file, own] : span) {
    std::size_t together = 0;
    for (const auto& [other, their] : span)
      together += own.first <= their.second && their.first <= own.second ? 1U : 0U;
    EXPECT_LE(together, 2U) << file;
  }
}

TEST_F(StreamedRecords, ReadsAnyPositionAtAnyTime) {
  const data::DataOptions data = streamed(2);
  const std::vector<Ids> expected = all(open(*task_, data, 4), 5);
  const data::Datasets again = open(*task_, data, 4);

  // Another rank or a resumed run reads other positions, in another order, with epochs in between.
  for (std::int64_t i = std::ssize(expected) - 1; i >= 0; i -= 3) {
    EXPECT_EQ(sample(again, 5, i), expected[static_cast<std::size_t>(i)]);
    (void)sample(again, 6, 0);
  }
}

TEST_F(StreamedRecords, KeepsTheOrderOfFilesWithoutShuffle) {
  data::DataOptions data = streamed(3);
  data.shuffle = false;
  const data::Datasets opened = open(*task_, data, 4);

  EXPECT_EQ(sample(opened, 2, 0), (Ids{'B', 'a', 0, 0}));
  EXPECT_EQ(sample(opened, 2, 3), (Ids{'C', 'a', 0, 0}));
  EXPECT_EQ(sample(opened, 2, opened.train->size() - 1), (Ids{'G', 'r', 0, 0}));
}

TEST_F(StreamedRecords, PacksTheTextsOfAFile) {
  data::DataOptions data;
  data.train = {folder_.write("1.jsonl", "{\"text\": \"aaa\"}\n{\"text\": \"bb\"}\n"),
                folder_.write("2.jsonl", "{\"text\": \"c\"}\n{\"text\": \"dddd\"}\n")};
  data.streaming = 1;
  data.shuffle = false;

  const auto sft = task_of("sft");  // outlives the samples
  const data::Datasets opened = open(*sft, data, 8);

  // Each text has an end; 4 + 3 tokens of one file, then 5 + 2 of the other.
  ASSERT_EQ(opened.train->size(), 2);
  EXPECT_EQ(sample(opened, 0, 0), (Ids{'a', 'a', 'a', 0, 'b', 'b', 0, 0}));
  EXPECT_EQ(sample(opened, 0, 1), (Ids{'d', 'd', 'd', 'd', 0, 'c', 0, 0}));
}

TEST_F(StreamedRecords, HasAnotherFingerprintInAnotherOrder) {
  const std::string one = open(*task_, streamed(1), 4).fingerprint;

  EXPECT_NE(one, open(*task_, streamed(2), 4).fingerprint);
  EXPECT_EQ(one, open(*task_, streamed(1), 4).fingerprint);
}

TEST_F(StreamedRecords, NoticesAFileThatChanges) {
  const data::Datasets opened = open(*task_, streamed(1), 4);
  (void)folder_.write("6.jsonl",
                      R"({"text": "Ga", "label": "a"})"
                      "\n");

  const Error error = error_of([&] { (void)all(opened, 0); });

  EXPECT_THAT(error.what(), HasSubstr("6.jsonl has changed"));
}

TEST_F(StreamedRecords, RefusesWhatNeedsAllSamples) {
  data::DataOptions data = streamed(1);
  EXPECT_THAT(
      error_of([&] { open(*task_of("classify", R"({"balance": "over"})"), data, 4); }).what(),
      HasSubstr("task.params.balance"));
  const auto problem_of = [](const std::string& type, const data::DataOptions& options) {
    config::Problems problems;
    TaskOptions task{.type = type};
    check_data(*task_of(type), task, options, problems, {});
    return error_of([&] { problems.raise(); });
  };
  EXPECT_THAT(problem_of("image_classify", data).what(), HasSubstr("data.streaming"));
}

TEST_F(StreamedRecords, HoldOutTheShareOfEveryClassInEachFile) {
  data::DataOptions data = streamed(2);
  const std::vector<Ids> everything = sorted(all(open(*task_, data, 4), 0));
  data.validation_fraction = 1.0 / 3;
  const data::Datasets opened = open(*task_, data, 4);

  // Two of three records of each file are kept.
  ASSERT_EQ(opened.train->size(), 2 * (1 + 2 + 3 + 4 + 5 + 6));
  ASSERT_EQ(opened.validation->size(), 1 + 2 + 3 + 4 + 5 + 6);
  std::vector<Ids> samples = all(opened, 0);
  for (std::int64_t i = 0; i < opened.validation->size(); ++i)
    samples.push_back(test::values(*opened.validation, i, "input_ids"));
  EXPECT_EQ(sorted(samples), everything) << "each record is in one of the two";
  std::map<std::int64_t, std::pair<int, int>> held;  // by file: samples, and those of the class b
  for (std::int64_t i = 0; i < opened.validation->size(); ++i) {
    const Ids ids = test::values(*opened.validation, i, "input_ids");
    auto& [all_of_file, of_b] = held[ids[0] - 'A'];
    ++all_of_file;
    of_b += (ids[1] - 'a') % 3 == 0 ? 1 : 0;
  }
  for (const auto& [file, counts] : held) {
    EXPECT_EQ(counts.first, file);
    EXPECT_NEAR(counts.second, static_cast<double>(file) / 3, 0.7) << file;
  }
  EXPECT_EQ(opened.validation_tokens + opened.train_tokens, 2 * std::ssize(everything));
}

// An epoch ends with the last record of the larger source, and reads the smaller one several times.
TEST_F(StreamedRecords, AreMixedByWeights) {
  data::DataOptions data = streamed(2);
  const auto path = [&](int f) { return data.train[static_cast<std::size_t>(f)]; };
  // Three and six records beside eighteen.
  data.sources =
      json::parse(R"([{"path": [")" + path(1) + R"(", ")" + path(2) +
                      R"("], "weight": 2}, {"path": ")" + path(6) + R"(", "weight": 1}])",
                  "sources");
  data.mix_until = "last";
  const data::Datasets opened = open(*task_, data, 4);
  ASSERT_EQ(opened.train->size(), 35 + 18);

  // Two epochs read 70 of the nine records of the first source, and each of the second one twice.
  std::map<Ids, int> times;
  for (const std::int64_t epoch : {0, 1}) {
    const std::vector<Ids> samples = all(opened, epoch);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      ++times[samples[i]];
      if (i % 3 == 2) {
        const auto from_second = std::count_if(samples.begin() + static_cast<std::ptrdiff_t>(i - 2),
                                               samples.begin() + static_cast<std::ptrdiff_t>(i + 1),
                                               [](const Ids& ids) { return ids[0] == 'G'; });
        EXPECT_EQ(from_second, 1) << i;
      }
    }
  }
  EXPECT_EQ(times.size(), 27U);
  for (const auto& [ids, count] : times)
    EXPECT_EQ(count, ids[0] == 'G' ? 2 : std::clamp(count, 7, 8));
  EXPECT_NE(all(opened, 0), all(opened, 1)) << "each epoch has an order of its own";
  // Until the smaller source ends, the second one is read in parts, a different one in each epoch.
  data.mix_until = "first";
  const data::Datasets first = open(*task_, data, 4);
  std::set<Ids> seen;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    for (const Ids& ids : all(first, epoch)) {
      if (ids[0] == 'G') seen.insert(ids);
    }
  }
  EXPECT_EQ(seen.size(), 18U) << "four epochs of at least four and a half records";
}

}  // namespace
}  // namespace tessera::tasks
