// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Spans of whole words that are left out of sentences: which, how many, and the resulting input and
// labels, by Megatron-LM's rule.
#include "tessera/tasks/word_spans.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::task_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

/// Ids 0, 2, 4, ... begin a word, and the others continue one.
WordSpansOptions options_of(std::int64_t input, std::int64_t target, std::size_t sentinels) {
  WordSpansOptions out{.input_length = input, .target_length = target};
  out.sentinels.resize(sentinels);
  std::iota(out.sentinels.begin(), out.sentinels.end(), 5000);
  for (int id = 0; id < 5000; ++id)
    out.begins_word.push_back(id % 2 == 0);
  return out;
}
std::vector<std::int32_t> one_to(std::int32_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}
std::int64_t removed_by(const std::vector<WordSpan>& spans) {
  std::int64_t count = 0;
  for (const auto& [first, last] : spans)
    count += last - first;
  return count;
}

TEST(WordSpans, AreWholeWordsUpToTheShareOfTheTokens) {
  const WordSpansOptions options = options_of(512, 200, 100);
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    const std::vector<WordSpan> spans = choose_word_spans(one_to(510), options, sample);
    std::int64_t before = 0;
    for (const auto& [first, last] : spans) {
      EXPECT_GE(first, before) << "spans do not overlap";
      EXPECT_EQ(first % 2, 0);
      EXPECT_EQ(last % 2, 0);
      EXPECT_LE(last - first, 20) << "at most ten words of two tokens";
      before = last;
    }
    // 0.15 of 510 tokens are 76.5, and round(76.5) is 76; words have two tokens.
    EXPECT_EQ(removed_by(spans), 76);
  }
  // Of four tokens 0.6 are rounded to one, which no word of two tokens fits; a word of one does.
  EXPECT_TRUE(choose_word_spans(one_to(4), options, 1).empty());
  EXPECT_EQ(removed_by(choose_word_spans({0, 2, 4, 6}, options, 1)), 1);
}

// A length is n words with the probability 0.8^(n - 1) 0.2 and ten with what is left, where nothing
// else shortens a span: the first one that is drawn.
TEST(WordSpans, HaveGeometricLengths) {
  WordSpansOptions options = options_of(100002, 100000, 1);
  options.short_share = 0;
  std::map<std::int64_t, double> count;
  constexpr std::uint64_t kSamples = 4000;
  const std::vector<std::int32_t> ids = one_to(4000);
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    const std::vector<WordSpan> spans = choose_word_spans(ids, options, sample);
    ASSERT_EQ(spans.size(), 1U) << "there is one sentinel";
    count[(spans[0].second - spans[0].first) / 2] += 1;
  }
  for (std::int64_t n = 1; n <= 10; ++n) {
    const double share = n < 10 ? std::pow(0.8, n - 1) * 0.2 : std::pow(0.8, 9),
                 expected = share * kSamples;
    EXPECT_NEAR(count[n], expected, 5 * std::sqrt(expected) + 5) << n;  // ends of texts cut a few
  }
}

TEST(WordSpans, FitIntoTheTarget) {
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    const std::vector<WordSpan> spans =
        choose_word_spans(one_to(510), options_of(512, 20, 100), sample);
    EXPECT_LE(removed_by(spans) + std::ssize(spans) + 1, 20);
    EXPECT_FALSE(spans.empty());
  }
}

class WordSpanTask : public ::testing::Test {
 protected:
  WordSpanTask() {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 0; i < 100; ++i)
      vocabulary += fmt::format("w{}\n", i);
    tokenizer_ =
        text::make_tokenizer({.type = "file", .vocab = folder_.write("vocab.txt", vocabulary)});
  }
  data::Datasets open(const std::string& params, std::int64_t length, const std::string& text) {
    data::DataOptions options;
    options.train = {folder_.write("text.txt", text)};
    return task_of("word_span_corruption", params)
        ->open({.options = options,
                .tokenizer = *tokenizer_,
                .vocab_size = 300,
                .sequence_length = length,
                .how = {}});
  }
  test::Folder folder_;
  text::TokenizerPtr tokenizer_;
};

// Sentences of documents: samples begin and end with them.
TEST_F(WordSpanTask, ReplacesSpansAndAsksForThemInOrder) {
  const std::string text = "w0 w1 w2\nw3 w4\nw5 w6 w7\nw8\nw9\n\nw20 w21\n";
  const data::Datasets data =
      open(R"({"sentinel_id": 200, "num_sentinels": 5, "end_id": 199, "short_texts": 0,
               "noise_density": 0.5, "target_length": 9})",
           8,
           text);
  // Six tokens fill a text: three sentences are eight, of which six are used; the last sentence is
  // not left alone.
  std::vector<Ids> texts;
  for (std::int64_t i = 0; i < data.train->size(); ++i) {
    const Ids input = values(*data.train, i, "input_ids"),
              labels = values(*data.train, i, "labels"),
              mask = values(*data.train, i, "attention_mask");
    EXPECT_EQ(labels.size(), 9U);
    EXPECT_EQ(input.size(), 8U);
    Ids whole;
    std::int64_t sentinel = 200;
    for (std::size_t t = 0; t < input.size(); ++t) {
      if (mask[t] == 0) continue;
      if (input[t] < 200) {
        whole.push_back(input[t] - 5);
        continue;
      }
      EXPECT_EQ(input[t], sentinel++) << "sentinels ascend";
      auto at = std::ranges::find(labels, input[t]);
      for (++at; at != labels.end() && *at < 199 && *at >= 0; ++at)
        whole.push_back(*at - 5);
    }
    EXPECT_GT(sentinel, 200);
    EXPECT_EQ(std::ranges::count(labels, 199), 1);
    texts.push_back(whole);
  }
  EXPECT_THAT(texts,
              ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5), ElementsAre(8, 9), ElementsAre(20, 21)));
  EXPECT_EQ(task_of("word_span_corruption")->objective(), "seq2seq");
}

TEST_F(WordSpanTask, RefusesWhatItCannotDo) {
  const auto refusal = [&](const std::string& params, std::int64_t length = 16) {
    return std::string(error_of([&] { open(params, length, "w1 w2\n"); }).what());
  };
  EXPECT_THAT(refusal("{}"), HasSubstr("has no token \"<extra_id_0>\""));
  EXPECT_THAT(refusal(R"({"sentinel_id": 250})"), HasSubstr("have the ids 250 to 349"));
  EXPECT_THAT(refusal(R"({"sentinel_id": 120, "end_id": 300})"), HasSubstr("end_id is 300"));
  EXPECT_THAT(refusal(R"({"sentinel_id": 120})", 3), HasSubstr("no room for a span"));
}

}  // namespace
}  // namespace tessera::tasks
