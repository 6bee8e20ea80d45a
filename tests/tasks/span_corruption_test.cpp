// SPDX-License-Identifier: Apache-2.0
// Spans that are left out: how many, which, and the resulting input and labels of a text.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/corrupted_spans.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using test::task_of;
using test::values;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

constexpr std::int32_t kSpanEnd = 1;

/// Sample i has the tokens 100 + i, 101 + i, ...; odd samples have 10 and padding.
class Ascending final : public data::TokenDataset {
 public:
  explicit Ascending(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::int64_t size() const override { return 1000; }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  bool get(std::int64_t index,
           std::int64_t* ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    const std::int64_t used = index % 2 != 0 ? std::min<std::int64_t>(length_, 10) : length_;
    for (std::int64_t t = 0; t < length_; ++t) {
      ids[t] = 100 + index + t;
      labels[t] = 1;
      mask[t] = t < used ? 1 : 0;
    }
    return used < length_;
  }

 private:
  std::int64_t length_;
};

SpanNoise span_noise(std::int64_t sentinels) {
  SpanNoise out{.end = kSpanEnd};
  for (std::int64_t i = 0; i < sentinels; ++i)
    out.sentinels.push_back(static_cast<std::int32_t>(99 - i));
  return out;
}

std::int64_t runs_of(const std::vector<bool>& hidden) {
  std::int64_t runs = 0;
  for (std::size_t t = 0; t < hidden.size(); ++t)
    runs += hidden[t] && (t == 0 || !hidden[t - 1]) ? 1 : 0;
  return runs;
}

// The text of a sample without its padding: the sentinels of the input are replaced by the labels'
// spans.
Ids restored(Ids input, Ids labels) {
  const auto cut = [](Ids& ids) { ids.erase(std::ranges::find(ids, kSpanEnd), ids.end()); };
  cut(input);
  cut(labels);
  Ids out;
  for (const std::int64_t id : input) {
    if (id >= 100) {
      out.push_back(id);
      continue;
    }
    auto at = std::ranges::find(labels, id);
    EXPECT_NE(at, labels.end()) << "no answer for " << id;
    while (at != labels.end() && ++at != labels.end() && *at >= 100)
      out.push_back(*at);
  }
  return out;
}

// 568 and 114 are the numbers that T5's pre-training has for inputs of 512 tokens.
TEST(SpanCounts, AreThoseOfT5) {
  EXPECT_EQ(text_length_for(512, 0.15, 3.0), 568);
  const SpanCounts counts = count_spans(568, 0.15, 3.0);
  EXPECT_EQ(counts.noise, 85);
  EXPECT_EQ(counts.spans, 28);
  EXPECT_EQ(counts.input, 512);
  EXPECT_EQ(counts.target, 114);
  // 1.5 and 4.5 are rounded to even numbers.
  EXPECT_EQ(count_spans(10, 0.15, 3.0).noise, 2);
  EXPECT_EQ(count_spans(30, 0.15, 3.0).noise, 4);
  EXPECT_EQ(count_spans(20, 0.15, 2.0).spans, 2);
}

TEST(SpanCounts, KeepATargetOfHalfTheTokensNoLongerThanItsInput) {
  // Seven tokens would be an input of 7 - 4 + 1 + 1 and a target of 4 + 1 + 1.
  EXPECT_EQ(text_length_for(5, 0.5, 3.0), 6);
  EXPECT_EQ(count_spans(6, 0.5, 3.0).target, 5);
}

TEST(SpanCounts, FillEveryInputLength) {
  for (std::int64_t input = 3; input < 200; ++input) {
    const std::int64_t tokens = text_length_for(input, 0.15, 3.0);
    EXPECT_EQ(count_spans(tokens, 0.15, 3.0).input, input);
    EXPECT_GT(count_spans(tokens + 1, 0.15, 3.0).input, input);
  }
  EXPECT_EQ(count_spans(1, 0.15, 3.0).noise, 0);
  EXPECT_EQ(text_length_for(1, 0.15, 3.0), 0);
}

TEST(ChosenSpans, AreAsManyAndAsLongAsTheyShouldBe) {
  for (std::int64_t sample = 0; sample < 200; ++sample) {
    const std::vector<bool> hidden = choose_spans(568, span_noise(28), sample);
    EXPECT_EQ(std::ranges::count(hidden, true), 85);
    EXPECT_EQ(runs_of(hidden), 28);
    EXPECT_FALSE(hidden.front());
    EXPECT_TRUE(hidden.back());
  }
  EXPECT_EQ(choose_spans(568, span_noise(28), 3), choose_spans(568, span_noise(28), 3));
  EXPECT_NE(choose_spans(568, span_noise(28), 3), choose_spans(568, span_noise(28), 4));
  SpanNoise other = span_noise(28);
  other.seed = 5;
  EXPECT_NE(choose_spans(568, span_noise(28), 3), choose_spans(568, other, 3));
}

// Three tokens out of six in two spans: one and two or two and one, as are those that stay.
TEST(ChosenSpans, AreDividedInEveryWayAsOften) {
  SpanNoise noise = span_noise(2);
  noise.density = 0.5;
  noise.mean_length = 1.5;
  constexpr int kDraws = 4000;
  std::map<std::vector<bool>, int> seen;
  for (std::int64_t sample = 0; sample < kDraws; ++sample)
    ++seen[choose_spans(6, noise, sample)];

  ASSERT_EQ(seen.size(), 4U);
  for (const auto& [hidden, count] : seen)
    EXPECT_NEAR(count, kDraws / 4.0, 4 * std::sqrt(kDraws * 0.25 * 0.75));
}

TEST(CorruptedSpans, PutASentinelForEachSpan) {
  const CorruptedSpans dataset(std::make_unique<Ascending>(21), 20, span_noise(1));
  // 21 tokens: 3.15, so three, in one span at the end.
  Ids input(18);
  std::iota(input.begin(), input.end(), 100);
  input.insert(input.end(), {99, kSpanEnd});
  EXPECT_EQ(values(dataset, 0, "input_ids"), input);
  EXPECT_EQ(values(dataset, 0, "labels"), (Ids{99, 118, 119, 120, kSpanEnd}));
  EXPECT_FALSE(data::Sample(dataset, 0).has("attention_mask"));
  EXPECT_EQ(dataset.sequence_length(), 20);
}

TEST(CorruptedSpans, LoseNothing) {
  const CorruptedSpans dataset(std::make_unique<Ascending>(568), 512, span_noise(28));
  for (const std::int64_t index : {0, 2, 998}) {
    Ids whole(568);
    std::iota(whole.begin(), whole.end(), 100 + index);
    EXPECT_EQ(restored(values(dataset, index, "input_ids"), values(dataset, index, "labels")),
              whole);
    EXPECT_EQ(values(dataset, index, "labels").size(), 114U);
    EXPECT_EQ(values(dataset, index, "labels").back(), kSpanEnd);
  }
}

TEST(CorruptedSpans, PadShortTexts) {
  const CorruptedSpans dataset(std::make_unique<Ascending>(21), 20, span_noise(1));
  // Ten tokens: 1.5, so two, in one span at the end.
  EXPECT_EQ(values(dataset, 1, "labels"), (Ids{99, 109, 110, kSpanEnd, -100}));
  Ids input(8);
  std::iota(input.begin(), input.end(), 101);
  input.insert(input.end(), {99, kSpanEnd});
  input.resize(20, kSpanEnd);
  EXPECT_EQ(values(dataset, 1, "input_ids"), input);
  Ids mask(10, 1);
  mask.resize(20, 0);
  EXPECT_EQ(values(dataset, 1, "attention_mask"), mask);
  EXPECT_TRUE(data::Sample(dataset, 1).has("attention_mask"));
}

class SpanCorruptionTask : public ::testing::Test {
 protected:
  data::DataOptions options(std::size_t bytes) {
    data::DataOptions out;
    out.train = {folder_.write("text.txt", std::string(bytes, 'x'))};
    return out;
  }
  static data::Datasets open_with(const std::string& params,
                                  const data::DataOptions& options,
                                  std::int64_t length,
                                  const text::Tokenizer& tokenizer = test::byte()) {
    return task_of("span_corruption", params)
        ->open({.options = options,
                .tokenizer = tokenizer,
                .vocab_size = 320,
                .sequence_length = length,
                .how = {}});
  }
  test::Folder folder_;
};

TEST_F(SpanCorruptionTask, ReadsWindowsWhoseInputFillsASample) {
  const data::Datasets opened = open_with(R"({"sentinel_id": 319})", options(2 * 568 + 1), 512);
  EXPECT_EQ(opened.train->size(), 2);
  const Ids input = values(*opened.train, 0, "input_ids");
  EXPECT_EQ(input.size(), 512U);
  EXPECT_EQ(std::ranges::count_if(input, [](std::int64_t id) { return id > 255; }), 28);
  const Ids labels = values(*opened.train, 0, "labels");
  EXPECT_EQ(labels.front(), 319);
  EXPECT_EQ(std::ranges::count(labels, 292), 1) << "the last of 28";
  EXPECT_EQ(std::ranges::count(labels, 291), 0);
  EXPECT_EQ(task_of("span_corruption")->objective(), "seq2seq");
}

TEST_F(SpanCorruptionTask, KeepsDocumentsApartInSamplesOfTheirOwn) {
  // Inputs of 20 tokens hold texts of 21: documents of 50, 7, 21 and 22 letters are three windows,
  // one, one and two.
  std::string lines;
  for (const auto& [letter, count] : {std::pair{'a', 50}, {'b', 7}, {'c', 21}, {'d', 22}})
    lines += R"({"text": ")" + std::string(static_cast<std::size_t>(count), letter) + "\"}\n";
  data::DataOptions options;
  options.train = {folder_.write("texts.jsonl", lines)};
  options.separate_documents = true;
  const data::Datasets opened = open_with(R"({"sentinel_id": 319, "dynamic": false})", options, 20);

  std::map<char, std::vector<std::int64_t>> lengths;
  for (std::int64_t i = 0; i < opened.train->size(); ++i) {
    const Ids input = values(*opened.train, i, "input_ids"),
              labels = values(*opened.train, i, "labels");
    std::map<std::int64_t, std::int64_t> letters;
    for (const Ids& part : {input, labels}) {
      for (const std::int64_t id : part)
        letters[id] += id >= 'a' && id <= 'd' ? 1 : 0;
    }
    std::erase_if(letters, [](const auto& one) { return one.second == 0; });
    ASSERT_EQ(letters.size(), 1U) << "sample " << i << " is of one document";
    lengths[static_cast<char>(letters.begin()->first)].push_back(letters.begin()->second);
  }

  EXPECT_EQ(lengths,
            (std::map<char, std::vector<std::int64_t>>{
                {'a', {21, 21, 8}}, {'b', {7}}, {'c', {21}}, {'d', {21, 1}}}));
}

TEST_F(SpanCorruptionTask, WithShortDocumentsApartIsThatWithoutPacking) {
  std::string lines;
  for (int i = 0; i < 9; ++i)
    lines += R"({"text": ")" + std::string(static_cast<std::size_t>(3 + 2 * i), 'x') + "\"}\n";
  data::DataOptions apart;
  apart.train = {folder_.write("texts.jsonl", lines)};
  data::DataOptions padded = apart;
  apart.separate_documents = true;
  padded.pack = false;
  const data::Datasets ours = open_with(R"({"sentinel_id": 319})", apart, 20),
                       expected = open_with(R"({"sentinel_id": 319})", padded, 20);

  ASSERT_EQ(ours.train->size(), 9);
  ASSERT_EQ(expected.train->size(), 9);
  for (std::int64_t i = 0; i < 9; ++i) {
    for (const char* const tensor : {"input_ids", "attention_mask", "labels"})
      EXPECT_EQ(values(*ours.train, i, tensor), values(*expected.train, i, tensor)) << i;
  }
  EXPECT_NE(ours.fingerprint, expected.fingerprint);
}

TEST_F(SpanCorruptionTask, FindsTheSentinelsOfATokenizer) {
  json::Value file = json::parse_strict(text::byte_tokenizer_json(), "byte");
  const std::map<std::string, int> added = {
      {"<extra_id_0>", 300}, {"<extra_id_1>", 299}, {"</s>", 301}};
  for (const auto& [content, id] : added) {
    file["added_tokens"].push_back(
        json::parse(R"({"id": )" + std::to_string(id) + R"(, "content": ")" + content +
                        R"(", "single_word": false, "lstrip": false, "rstrip": false, )"
                        R"("normalized": false, "special": true})",
                    "test"));
  }
  const std::string path = folder_.write("tokenizer.json", file.dump());
  (void)folder_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  const text::TokenizerPtr tokenizer = text::make_tokenizer({.type = "file", .vocab = path});
  const auto open_of = [&](std::int64_t length) {
    return open_with("{}", options(2000), length, *tokenizer);
  };

  // 44 tokens: 6.6, so seven, in two spans.
  const data::Datasets opened = open_of(40);
  const Ids labels = values(*opened.train, 0, "labels");
  EXPECT_EQ(labels.size(), 10U);
  EXPECT_EQ(labels.front(), 300);
  EXPECT_EQ(std::ranges::count(labels, 299), 1);
  EXPECT_EQ(labels.back(), 301);
  const Error many = error_of([&] { open_of(60); });
  EXPECT_THAT(many.what(), HasSubstr("a sample has 3 spans"));
  EXPECT_THAT(many.what(), HasSubstr("no token \"<extra_id_2>\""));
}

TEST_F(SpanCorruptionTask, RefusesWhatHasNoSentinels) {
  const Error none = error_of([&] { open_with("{}", options(2000), 64); });
  EXPECT_EQ(none.kind(), Error::Kind::Config);
  EXPECT_THAT(none.what(), HasSubstr("no token \"<extra_id_0>\""));
  const Error above = error_of([&] { open_with(R"({"sentinel_id": 320})", options(2000), 64); });
  EXPECT_THAT(above.what(), HasSubstr("the model has 320 tokens"));
  const Error below = error_of([&] { open_with(R"({"sentinel_id": 2})", options(2000), 512); });
  EXPECT_THAT(below.what(), HasSubstr("have the ids 2 to -25"));
  const Error tiny = error_of([&] { open_with(R"({"sentinel_id": 319})", options(2000), 2); });
  EXPECT_THAT(tiny.what(), HasSubstr("no room for a span"));
}

}  // namespace
}  // namespace tessera::tasks
