// SPDX-License-Identifier: Apache-2.0
// data.streaming of texts and of pairs of answers: the samples are those of data that is held in
// memory, in another order.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
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

using test::Ids;
using test::open;
using test::task_of;
using test::values_in_epoch;

/// All tensors of a sample, one after the other.
using Samples = std::vector<Ids>;

class StreamedTexts : public ::testing::Test {
 protected:
  /// Six files; file f has 2 * f documents of 3 to 5 letters, and the letters of a file are its
  /// own.
  data::DataOptions streamed(std::int64_t window) {
    data::DataOptions out;
    for (int f = 0; f < 6; ++f) {
      std::string lines;
      for (int d = 0; d < 2 * f; ++d) {
        std::string text(static_cast<std::size_t>(3 + d % 3), static_cast<char>('A' + f));
        text.back() = static_cast<char>('a' + d);
        lines += R"({"text": ")" + text + "\"}\n";
      }
      out.train.push_back(folder_.write(std::to_string(f) + ".jsonl", lines));
    }
    out.streaming = window;
    return out;
  }
  static data::DataOptions held(data::DataOptions data) {
    data.streaming = 0;
    return data;
  }
  static Ids sample(const data::Dataset& train, std::int64_t epoch, std::int64_t position) {
    Ids out;
    for (const data::TensorSpec& spec : train.tensors()) {
      const Ids own = values_in_epoch(train, epoch, position, spec.name.c_str());
      out.insert(out.end(), own.begin(), own.end());
    }
    return out;
  }
  static Samples all(const data::Dataset& train, std::int64_t epoch) {
    Samples out;
    for (std::int64_t i = 0; i < train.size(); ++i)
      out.push_back(sample(train, epoch, i));
    return out;
  }
  static Samples sorted(Samples samples) {
    std::ranges::sort(samples);
    return samples;
  }
  /// Tests that a task reads every sample once in an epoch, from any position, and in the order of
  /// the files without shuffle.
  void expect_the_samples_of_held_data(const std::string& type,
                                       const std::string& params,
                                       data::DataOptions data,
                                       std::int64_t length) {
    SCOPED_TRACE(type + " " + params);
    const auto task = task_of(type, params);
    ASSERT_TRUE(task->streams());
    const data::Datasets opened = open(*task, data, length),
                         expected = open(*task, held(data), length);
    ASSERT_GT(opened.train->size(), 6);
    const Samples first = all(*opened.train, 0), second = all(*opened.train, 1);
    EXPECT_EQ(sorted(first), sorted(all(*expected.train, 0)));
    EXPECT_EQ(sorted(second), sorted(first));
    EXPECT_NE(second, first) << "each epoch has an order of its own";
    EXPECT_EQ(opened.train_tokens, expected.train_tokens);
    EXPECT_NE(opened.fingerprint, expected.fingerprint);

    // Another rank or a resumed run reads other positions, with epochs in between.
    const data::Datasets again = open(*task, data, length);
    for (std::int64_t i = std::ssize(second) - 1; i >= 0; i -= 2) {
      EXPECT_EQ(sample(*again.train, 1, i), second[static_cast<std::size_t>(i)]);
      (void)sample(*again.train, 0, 0);
    }

    data.shuffle = false;
    EXPECT_EQ(all(*open(*task, data, length).train, 3), all(*expected.train, 0));
  }
  test::Folder folder_;
};

TEST_F(StreamedTexts, AreTheWindowsOfAllFilesTogether) {
  data::DataOptions data = streamed(2);
  expect_the_samples_of_held_data("pretrain", "{}", data, 7);
  data.stride = 3;
  expect_the_samples_of_held_data("pretrain", "{}", data, 7);
  data.separate_documents = true;
  expect_the_samples_of_held_data("pretrain", "{}", data, 7);
}

TEST_F(StreamedTexts, AreTheDocumentsOfAllFiles) {
  data::DataOptions data = streamed(1);
  data.pack = false;
  expect_the_samples_of_held_data("pretrain", "{}", data, 4);
}

TEST_F(StreamedTexts, AreTheWindowsOfEachDocumentForSpansThatAreLeftOut) {
  data::DataOptions data = streamed(2);
  data.separate_documents = true;
  // Windows of four tokens: a document of five letters has two of them.
  const std::string params = R"({"sentinel_id": 250, "dynamic": false})";
  expect_the_samples_of_held_data("span_corruption", params, data, 5);
  data.stride = 2;
  expect_the_samples_of_held_data("span_corruption", params, data, 5);
}

TEST_F(StreamedTexts, AreMaskedCorruptedAndDividedAsHeldTexts) {
  const data::DataOptions data = streamed(2);
  expect_the_samples_of_held_data(
      "masked_lm", R"({"dynamic": false, "mask_token_id": 250})", data, 6);
  expect_the_samples_of_held_data(
      "span_corruption", R"({"dynamic": false, "sentinel_id": 250})", data, 6);
  expect_the_samples_of_held_data("prefix_lm", R"({"dynamic": false})", data, 6);
}

TEST_F(StreamedTexts, HaveOtherMasksInEachEpoch) {
  const auto task = task_of("masked_lm", R"({"mask_token_id": 250})");

  const data::Datasets opened = open(*task, streamed(2), 6);

  EXPECT_NE(sorted(all(*opened.train, 0)), sorted(all(*opened.train, 1)));
}

TEST_F(StreamedTexts, ReadAFewFilesAtATime) {
  data::DataOptions data = streamed(2);
  data.pack = false;
  const auto task = task_of("pretrain");  // outlives the samples
  const data::Datasets opened = open(*task, data, 4);

  // The file of a document is its first letter.
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> span;  // first and last position
  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const std::int64_t file = values_in_epoch(*opened.train, 3, i, "input_ids").front();
    span.try_emplace(file, i, i).first->second.second = i;
  }
  ASSERT_EQ(span.size(), 5U) << "the first file has no document";
  for (const auto& [file, own] : span) {
    const auto together =
        std::ranges::count_if(span, [&, first = own.first, last = own.second](const auto& other) {
          return first <= other.second.second && other.second.first <= last;
        });
    EXPECT_LE(together, 2) << file;
  }
}

TEST_F(StreamedTexts, HoldOutTheEndOfTheStream) {
  data::DataOptions data = streamed(2);
  data.validation_fraction = 0.25;
  const auto task = task_of("pretrain");
  const data::Datasets opened = open(*task, data, 7), expected = open(*task, held(data), 7);

  EXPECT_EQ(sorted(all(*opened.train, 0)), sorted(all(*expected.train, 0)));
  EXPECT_EQ(all(*opened.validation, 0), all(*expected.validation, 0));
  EXPECT_EQ(opened.validation_tokens, expected.validation_tokens);
}

TEST_F(StreamedTexts, AreMixedByWeights) {
  data::DataOptions data = streamed(1);
  const auto path = [&](int f) { return data.train[static_cast<std::size_t>(f)]; };
  data.pack = false;
  // Six documents beside ten.
  data.sources = json::parse(R"([{"path": [")" + path(1) + R"(", ")" + path(2) +
                                 R"("], "weight": 2}, {"path": ")" + path(5) + R"("}])",
                             "sources");
  const auto task = task_of("pretrain");
  const data::Datasets opened = open(*task, data, 4);

  // An epoch ends with the tenth document of the second source.
  ASSERT_EQ(opened.train->size(), 19 + 10);
  std::map<Ids, int> times;
  for (const std::int64_t epoch : {0, 1, 2}) {
    for (const Ids& ids : all(*opened.train, epoch))
      ++times[ids];
  }
  ASSERT_EQ(times.size(), 16U);
  for (const auto& [ids, count] : times)
    EXPECT_EQ(count, ids.front() == 'F' ? 3 : std::clamp(count, 9, 10)) << ids.front();
}

TEST_F(StreamedTexts, AreMadeIntoPairsOfSentencesWithinAFile) {
  data::DataOptions data;
  for (int f = 0; f < 3; ++f) {
    std::string text;
    for (int d = 0; d < 4; ++d)
      text += std::string(3, static_cast<char>('a' + 4 * f + d)) + "\n" +
              std::string(2, static_cast<char>('A' + 4 * f + d)) + "\n\n";
    data.train.push_back(folder_.write(std::to_string(f) + ".txt", text));
  }
  data.streaming = 1;
  const auto task = task_of("masked_lm",
                            R"({"pairs": "nsp", "dynamic": false, "mask_token_id": 250,
                                "cls_token_id": 251, "sep_token_id": 252})");
  const data::Datasets opened = open(*task, data, 12);

  Samples expected;
  for (const std::string& file : data.train) {
    data::DataOptions alone;
    alone.train = {file};
    const Samples own = all(*open(*task, alone, 12).train, 0);
    expected.insert(expected.end(), own.begin(), own.end());
  }
  for (const std::int64_t epoch : {0, 1})
    EXPECT_EQ(sorted(all(*opened.train, epoch)), sorted(expected));
}

TEST_F(StreamedTexts, AreCompletionsOfPrefixes) {
  data::DataOptions data;
  for (int f = 0; f < 4; ++f) {
    std::string lines;
    for (int r = 0; r < 3; ++r)
      lines += R"({"prompt": ")" + std::string(1, static_cast<char>('a' + f)) +
               R"(", "completion": ")" + std::to_string(r) + "\"}\n";
    data.train.push_back(folder_.write(std::to_string(f) + ".jsonl", lines));
  }
  data.streaming = 2;
  expect_the_samples_of_held_data("prefix_lm", R"({"records": true})", data, 4);
}

class StreamedPreferences : public StreamedTexts {
 protected:
  data::DataOptions pairs() {
    data::DataOptions out;
    for (int f = 0; f < 4; ++f) {
      std::string lines;
      for (int r = 0; r < 3; ++r)
        lines += R"({"prompt": ")" + std::string(1, static_cast<char>('a' + f)) +
                 R"(", "chosen": ")" + std::to_string(r) + R"(", "rejected": "x"})" + "\n";
      out.train.push_back(folder_.write(std::to_string(f) + ".jsonl", lines));
    }
    out.streaming = 2;
    return out;
  }
};

TEST_F(StreamedPreferences, AreThoseOfHeldPairs) {
  expect_the_samples_of_held_data("prefer", R"({"method": "cpo"})", pairs(), 9);
  expect_the_samples_of_held_data("reward", "{}", pairs(), 9);
}

// The reference of a sample is computed once, in an order that is the same in every epoch.
TEST_F(StreamedPreferences, HaveAFixedOrderForTheReference) {
  const auto task = task_of("prefer");
  const data::Datasets opened = open(*task, pairs(), 9);
  const data::Dataset& train = *opened.train;
  ASSERT_TRUE(train.made_by_model().has_value());
  const data::Dataset& fixed = train.in_fixed_order();
  ASSERT_EQ(fixed.size(), train.size());

  for (const std::int64_t epoch : {0, 2}) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < train.size(); ++i) {
      const std::int64_t index = train.fixed_index(i, epoch * train.size() + i);
      seen.insert(index);
      EXPECT_EQ(values_in_epoch(train, epoch, i, "input_ids"),
                test::values(fixed, index, "input_ids"));
    }
    EXPECT_EQ(std::ssize(seen), train.size());
  }
}

TEST_F(StreamedPreferences, HaveAReferenceIfSourcesAreMixed) {
  data::DataOptions data = pairs();
  data.sources = json::parse(
      R"([{"path": ")" + data.train[0] + R"("}, {"path": ")" + data.train[1] + R"("}])", "sources");

  for (const std::int64_t window : {0, 1}) {
    data.streaming = window;
    const auto task = task_of("prefer");
    EXPECT_TRUE(open(*task, data, 9).train->made_by_model().has_value()) << window;
  }
}

}  // namespace
}  // namespace tessera::tasks
