// SPDX-License-Identifier: Apache-2.0
// Masked tokens: which are chosen, what replaces them, and what the choice depends on.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/masked_tokens.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::task_of;
using ::testing::HasSubstr;

constexpr std::int64_t kLength = 256, kSamples = 64;
constexpr std::int32_t kMask = 99, kEnd = 0;

/// Sample i has the tokens 1 + (i + t) % 50, an end of text at every 16th place, and padding in the
/// last quarter of odd samples.
class Counting final : public data::TokenDataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return kSamples; }
  [[nodiscard]] std::int64_t length() const override { return kLength; }
  bool get(std::int64_t index,
           std::int64_t* ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    for (std::int64_t t = 0; t < kLength; ++t) {
      ids[t] = t % 16 == 15 ? kEnd : 1 + (index + t) % 50;
      labels[t] = 1;
      mask[t] = is_padding(index, t) ? 0 : 1;
    }
    return index % 2 != 0;
  }
  static bool is_padding(std::int64_t index, std::int64_t t) {
    return index % 2 != 0 && t >= kLength * 3 / 4;
  }
};

Masking masking() {
  return {.mask_id = kMask, .vocab_size = 90, .never = {kEnd}};
}

struct Read {
  std::vector<std::int64_t> ids, labels, mask;
  bool operator==(const Read&) const = default;
};

Read read(const data::Dataset& dataset, std::int64_t index, std::int64_t number) {
  Read out{std::vector<std::int64_t>(kLength),
           std::vector<std::int64_t>(kLength),
           std::vector<std::int64_t>(kLength)};
  data::SampleWriter writer(dataset,
                            {reinterpret_cast<std::byte*>(out.ids.data()),
                             reinterpret_cast<std::byte*>(out.labels.data()),
                             reinterpret_cast<std::byte*>(out.mask.data())});
  writer.read(index, 0, number);
  return out;
}

TEST(MaskedTokens, HideTheSharesThatAreAskedFor) {
  const MaskedTokens dataset(std::make_unique<Counting>(), masking());
  double eligible = 0, chosen = 0, masked = 0, kept = 0;
  const Counting counting;
  std::vector<std::int64_t> ids(kLength), labels(kLength), mask(kLength);

  for (std::int64_t i = 0; i < kSamples; ++i) {
    counting.get(i, ids.data(), labels.data(), mask.data());
    const Read sample = read(dataset, i, i);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const bool may = ids[t] != kEnd && mask[t] != 0;
      eligible += may ? 1 : 0;
      if (sample.labels[t] == -100) {
        EXPECT_EQ(sample.ids[t], ids[t]);
        continue;
      }
      EXPECT_TRUE(may);
      EXPECT_EQ(sample.labels[t], ids[t]);
      EXPECT_TRUE(sample.ids[t] == kMask || (sample.ids[t] >= 0 && sample.ids[t] < 90));
      ++chosen;
      masked += sample.ids[t] == kMask ? 1 : 0;
      kept += sample.ids[t] == ids[t] ? 1 : 0;
    }
  }

  // Four standard deviations of a binomial distribution; a random token may be the one that was.
  const auto expect_share = [](double count, double of, double share) {
    EXPECT_NEAR(count, of * share, 4 * std::sqrt(of * share * (1 - share)));
  };
  expect_share(chosen, eligible, 0.15);
  expect_share(masked, chosen, 0.8);
  expect_share(kept, chosen, 0.1 + 0.1 / 90);
}

TEST(MaskedTokens, AreAFunctionOfTheNumberOfTheSample) {
  const MaskedTokens dataset(std::make_unique<Counting>(), masking());
  Masking other = masking();
  other.seed = 5;

  EXPECT_EQ(read(dataset, 3, 7), read(dataset, 3, 7));
  EXPECT_NE(read(dataset, 3, 7), read(dataset, 3, 8));
  EXPECT_NE(read(dataset, 3, 7), read(MaskedTokens(std::make_unique<Counting>(), other), 3, 7));
}

TEST(MaskedTokens, StayTheSameWhereTheyAreStatic) {
  Masking fixed = masking();
  fixed.dynamic = false;
  const MaskedTokens dataset(std::make_unique<Counting>(), fixed);

  EXPECT_EQ(read(dataset, 3, 7), read(dataset, 3, 1000));
  EXPECT_NE(read(dataset, 3, 7).labels, read(dataset, 4, 7).labels);
}

// The loss is a mean over labels.
TEST(MaskedTokens, HaveAtLeastOneLabelASample) {
  Masking rare = masking();
  rare.probability = 1e-9;
  const MaskedTokens dataset(std::make_unique<Counting>(), rare);

  for (std::int64_t i = 0; i < kSamples; ++i) {
    const Read sample = read(dataset, i, i);
    EXPECT_EQ(std::count(sample.labels.begin(), sample.labels.end(), -100), kLength - 1);
  }
}

// Tokens 1 to 50 in turn, every third of which begins a word; ends of text and padding also begin
// words.
TEST(MaskedTokens, HideWholeWords) {
  Masking whole = masking();
  whole.begins_word.assign(90, false);
  for (std::size_t id = 0; id < 90; id += 3)
    whole.begins_word[id] = true;
  const MaskedTokens dataset(std::make_unique<Counting>(), whole);
  const Counting counting;
  std::vector<std::int64_t> ids(kLength), labels(kLength), mask(kLength);
  double words = 0, chosen = 0, masked_in_part = 0;

  for (std::int64_t i = 0; i < kSamples; ++i) {
    counting.get(i, ids.data(), labels.data(), mask.data());
    const Read sample = read(dataset, i, i);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const bool may = ids[t] != kEnd && mask[t] != 0;
      const bool hidden = sample.labels[t] != -100;
      if (!may) {
        EXPECT_FALSE(hidden);
        continue;
      }
      const bool begins = t == 0 || ids[t - 1] == kEnd || ids[t] % 3 == 0;
      if (begins) {
        ++words;
        chosen += hidden ? 1 : 0;
      } else {
        EXPECT_EQ(hidden, sample.labels[t - 1] != -100) << "sample " << i << " token " << t;
        masked_in_part +=
            hidden && (sample.ids[t] == kMask) != (sample.ids[t - 1] == kMask) ? 1 : 0;
      }
    }
  }
  EXPECT_NEAR(chosen, words * 0.15, 4 * std::sqrt(words * 0.15 * 0.85));
  EXPECT_GT(masked_in_part, 0) << "what stands in place is drawn for each token";
  EXPECT_NE(whole.text(), masking().text());
}

TEST(MaskedTokens, HideAtLeastAWord) {
  Masking rare = masking();
  rare.probability = 1e-9;
  rare.begins_word.assign(90, false);
  const MaskedTokens dataset(std::make_unique<Counting>(), rare);
  // Words end only at ends of text: each has fifteen tokens.
  const Read sample = read(dataset, 2, 2);
  EXPECT_EQ(std::count(sample.labels.begin(), sample.labels.end(), -100), kLength - 15);
}

TEST(WordBeginnings, AreTokensBehindASpace) {
  const std::vector<bool> bytes = word_beginnings(test::byte());
  EXPECT_TRUE(bytes[' ']);
  EXPECT_TRUE(bytes['\n']);
  EXPECT_FALSE(bytes['a']);
  const text::TokenizerPtr gpt2 = text::make_tokenizer({.type = "gpt2"});
  const std::vector<bool> begins = word_beginnings(*gpt2);
  std::vector<std::int32_t> ids;
  gpt2->encode(" untokenizable words", ids);
  std::string seen;
  for (const std::int32_t id : ids)
    seen += begins[static_cast<std::size_t>(id)] ? '1' : '0';
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '1'), 2) << seen;
  EXPECT_EQ(seen.front(), '1');

  // A WordPiece vocabulary, as BERT has it.
  const test::Folder folder;
  (void)folder.write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  const std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n,\n";
  const text::TokenizerPtr bert =
      text::make_tokenizer({.type = "file", .vocab = folder.write("vocab.txt", vocabulary)});
  const std::vector<bool> pieces = word_beginnings(*bert);
  EXPECT_TRUE(pieces[5]);
  EXPECT_FALSE(pieces[6]);
  EXPECT_TRUE(pieces[7]);
}

// A document is found by the end of text that was there before tokens were replaced by random ones.
TEST(MaskedLmTask, KeepsSeparateDocumentsApart) {
  const test::Folder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(3 + i % 4), 'a') + "\"}\n";
  data::DataOptions options;
  options.train = {folder.write("texts.jsonl", lines)};
  options.separate_documents = true;
  const auto task = task_of(
      "masked_lm", R"({"mask_token_id": 1, "probability": 1, "mask_share": 0, "random_share": 1})");
  const data::Datasets opened = test::open(*task, options, 16);

  ASSERT_GT(opened.train->size(), 3);
  // Documents have 4 to 7 tokens with their ends.
  EXPECT_EQ(test::values(*opened.train, 0, "document_starts"),
            (test::Ids{0, 0, 0, 0, 4, 4, 4, 4, 4, 9, 9, 9, 9, 9, 9, 15}));
  const auto labels = test::values(*opened.train, 0, "labels");
  for (const std::size_t end : {3U, 8U, 14U})
    EXPECT_EQ(labels[end], -100) << "an end of text was masked";
}

TEST(MaskedLmTask, RefusesSharesOfMoreThanAll) {
  const Error error =
      error_of([] { task_of("masked_lm", R"({"mask_share": 0.9, "random_share": 0.2})"); });

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_THAT(error.what(), HasSubstr("random_share"));
  EXPECT_EQ(task_of("masked_lm")->objective(), "masked_lm");
}

}  // namespace
}  // namespace tessera::tasks
