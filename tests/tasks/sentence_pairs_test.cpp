// SPDX-License-Identifier: Apache-2.0
// Pairs of sentences: how documents are divided, what the label says, and how a pair is framed.
#include "tessera/tasks/sentence_pairs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
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
using test::Ids;
using test::task_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kDocuments = 40, kSentences = 12, kWords = 3;
// Ids of the vocabulary below.
constexpr std::int64_t kPad = 0, kCls = 2, kSep = 3, kMask = 4, kFirstWord = 5;

/// A word that occurs once: that of a place in a sentence of a document.
std::string word(std::int64_t document, std::int64_t sentence, std::int64_t place) {
  return fmt::format("w{}", (document * kSentences + sentence) * kWords + place);
}
/// The number of the sentence, over all documents, to which a word's id belongs.
std::int64_t sentence_of(std::int64_t id) {
  return (id - kFirstWord) / kWords;
}

std::string documents() {
  std::string out;
  for (std::int64_t d = 0; d < kDocuments; ++d) {
    for (std::int64_t s = 0; s < kSentences; ++s)
      out += word(d, s, 0) + " " + word(d, s, 1) + "  " + word(d, s, 2) + (s % 2 ? "\r\n" : "\n");
    out += d % 3 == 0 ? "\n  \n" : "\n";
  }
  return out;
}

struct PairOfTexts {
  std::vector<std::int64_t> first, second;  ///< words, unmasked
  std::int64_t label = 0;
};

class SentencePairsOfFile : public ::testing::Test {
 protected:
  SentencePairsOfFile() {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (std::int64_t i = 0; i < kDocuments * kSentences * kWords; ++i)
      vocabulary += fmt::format("w{}\n", i);
    (void)folder_.write("tokenizer_config.json",
                        R"({"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]"})");
    tokenizer_ =
        text::make_tokenizer({.type = "file", .vocab = folder_.write("vocab.txt", vocabulary)});
  }

  data::Datasets open(const std::string& params,
                      std::int64_t length,
                      const std::string& text = documents(),
                      double validation_fraction = 0.0,
                      const std::string& name = "text.txt") {
    data::DataOptions options;
    options.train = {folder_.write(name, text)};
    options.validation_fraction = validation_fraction;
    return task_of("masked_lm", params)
        ->open({.options = options,
                .tokenizer = *tokenizer_,
                .vocab_size = tokenizer_->size(),
                .sequence_length = length,
                .how = {}});
  }

  /// A sample without its frame and its masks, after a check of these.
  static PairOfTexts taken_apart(const data::Dataset& dataset, std::int64_t index) {
    const Ids ids = values(dataset, index, "input_ids"), labels = values(dataset, index, "labels"),
              types = values(dataset, index, "token_type_ids"),
              mask = values(dataset, index, "attention_mask");
    PairOfTexts out;
    out.label = values(dataset, index, "pair_label").front();
    EXPECT_EQ(ids.front(), kCls);
    int separators = 0;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::int64_t id = labels[t] == -100 ? ids[t] : labels[t];
      if (separators == 2) {
        EXPECT_EQ(id, kPad);
        EXPECT_EQ(mask[t], 0);
        EXPECT_EQ(types[t], 0);
        continue;
      }
      EXPECT_EQ(mask[t], 1);
      EXPECT_EQ(types[t], separators);
      if (id == kSep) {
        ++separators;
      } else if (t > 0) {
        EXPECT_GE(id, kFirstWord);
        (separators == 0 ? out.first : out.second).push_back(id);
      }
    }
    EXPECT_EQ(separators, 2);
    EXPECT_FALSE(out.first.empty());
    EXPECT_FALSE(out.second.empty());
    return out;
  }
  static bool successive(const std::vector<std::int64_t>& ids) {
    return std::ranges::adjacent_find(ids, [](auto a, auto b) { return b != a + 1; }) == ids.end();
  }

  test::Folder folder_;
  text::TokenizerPtr tokenizer_;
};

TEST_F(SentencePairsOfFile, AreFramedAndTyped) {
  const data::Datasets data =
      open(R"({"pairs": "sop", "probability": 1e-9, "short_pairs": 0, "mask_share": 1,
               "random_share": 0})",
           12,
           "w1 w2\nw3\n\nw4\nw5 w6 w7\n");

  ASSERT_EQ(data.train->size(), 2);
  for (std::int64_t i = 0; i < 2; ++i) {
    const PairOfTexts pair = taken_apart(*data.train, i);
    EXPECT_EQ(pair.first.size() + pair.second.size(), i == 0 ? 3U : 4U);
    const Ids ids = values(*data.train, i, "input_ids");
    EXPECT_EQ(std::ranges::count(ids, kMask), 1) << "one token is hidden, whatever the probability";
    EXPECT_EQ(std::ranges::count(ids, kPad), i == 0 ? 6 : 5);
  }
}

TEST_F(SentencePairsOfFile, FollowEachOtherOrAreOfTwoDocuments) {
  const data::Datasets data = open(R"({"pairs": "nsp", "short_pairs": 0})", 21);
  const std::int64_t size = data.train->size();
  double random = 0;
  std::vector<int> used(kDocuments * kSentences, 0);

  for (std::int64_t i = 0; i < size; ++i) {
    const PairOfTexts pair = taken_apart(*data.train, i);
    EXPECT_TRUE(successive(pair.first) && successive(pair.second));
    EXPECT_LE(pair.first.size() + pair.second.size(), 18U);
    for (const std::int64_t id : pair.first)
      ++used[static_cast<std::size_t>(sentence_of(id))];
    if (pair.label == 0) {
      EXPECT_EQ(pair.second.front(), pair.first.back() + 1);
      for (const std::int64_t id : pair.second)
        ++used[static_cast<std::size_t>(sentence_of(id))];
    } else {
      ++random;
      EXPECT_NE(sentence_of(pair.first.front()) / kSentences,
                sentence_of(pair.second.front()) / kSentences);
    }
    EXPECT_EQ(sentence_of(pair.second.front()) / kSentences,
              sentence_of(pair.second.back()) / kSentences);
  }

  // Four standard deviations, and a few last sentences, which have no follower.
  const auto pairs = static_cast<double>(size);
  EXPECT_NEAR(random, pairs * 0.5, 4 * std::sqrt(pairs * 0.25) + kDocuments / 2.0);
  // Every sentence is used once: what a random text replaces becomes the next pair. Six sentences
  // of three words fill a sample exactly; a random text never makes it longer.
  EXPECT_THAT(used, ::testing::Each(static_cast<int>(kWords)));
}

TEST_F(SentencePairsOfFile, OfSentenceOrderAreExchangedHalfOfTheTime) {
  const data::Datasets data = open(R"({"pairs": "sop", "short_pairs": 0, "pair_copies": 4})", 21);
  double exchanged = 0;

  for (std::int64_t i = 0; i < data.train->size(); ++i) {
    const PairOfTexts pair = taken_apart(*data.train, i);
    const auto& [first, second, label] = pair;
    EXPECT_EQ(label == 0 ? second.front() : first.front(),
              (label == 0 ? first.back() : second.back()) + 1);
    exchanged += static_cast<double>(label);
  }

  const auto pairs = static_cast<double>(data.train->size());
  EXPECT_EQ(data.train->size(), 4 * kDocuments * kSentences / 6);
  EXPECT_NEAR(exchanged, pairs * 0.5, 4 * std::sqrt(pairs * 0.25));
}

TEST_F(SentencePairsOfFile, LoseTokensAtTheEndsOfTheLongerText) {
  // A sentence of 36 words beside short ones.
  std::string text, longest;
  for (int i = 0; i < 36; ++i)
    longest += fmt::format("w{} ", i);
  for (int i = 0; i < 40; ++i)
    text += longest + "\nw100\n\n";
  const data::Datasets data = open(R"({"pairs": "sop", "short_pairs": 0})", 13, text);
  std::vector<std::int64_t> begins;

  ASSERT_EQ(data.train->size(), 40);
  for (std::int64_t i = 0; i < 40; ++i) {
    const PairOfTexts pair = taken_apart(*data.train, i);
    const auto& longer = pair.label == 0 ? pair.first : pair.second;
    EXPECT_EQ(longer.size(), 9U);
    EXPECT_TRUE(successive(longer));
    EXPECT_THAT(pair.label == 0 ? pair.second : pair.first, ElementsAre(kFirstWord + 100));
    begins.push_back(longer.front() - kFirstWord);
  }
  // 27 tokens are lost, each on one of the two sides with the same probability.
  EXPECT_GT(*std::ranges::min_element(begins), 0);
  EXPECT_LT(*std::ranges::max_element(begins), 27);
  EXPECT_NE(*std::ranges::min_element(begins), *std::ranges::max_element(begins));
}

TEST_F(SentencePairsOfFile, AreTheSameFromLinesOfJson) {
  std::string lines;
  for (const char* document : {R"(w1 w2\nw3\nw4)", R"(w5\nw6\n)"})
    lines += std::string(R"({"text": ")") + document + "\"}\n";
  const std::string params = R"({"pairs": "nsp"})";
  const data::Datasets text = open(params, 12, "w1 w2\nw3\nw4\n\nw5\nw6"),
                       records = open(params, 12, lines, 0.0, "text.jsonl");

  ASSERT_EQ(text.train->size(), records.train->size());
  for (std::int64_t i = 0; i < text.train->size(); ++i) {
    EXPECT_EQ(values(*text.train, i, "input_ids"), values(*records.train, i, "input_ids"));
    EXPECT_EQ(values(*text.train, i, "pair_label"), values(*records.train, i, "pair_label"));
  }
  EXPECT_EQ(text.fingerprint, records.fingerprint);
  EXPECT_NE(text.fingerprint, open(R"({"pairs": "sop"})", 12).fingerprint);
}

/// The bytes of values in the order of this machine, which is that of the format.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Megatron-LM's pair of files, by its description: the index has a header, the lengths and places
// of sequences, and the first sequence of each document.
TEST_F(SentencePairsOfFile, AreTheSameFromTokenFilesWithASequenceForEachSentence) {
  const std::vector<std::vector<std::uint16_t>> sentences = {{6, 7}, {8}, {9}, {10}, {11}};
  const std::vector<std::int64_t> documents = {0, 3, 5};
  std::string bin, index = std::string("MMIDIDX\0\0", 9);
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> places;
  for (const auto& sentence : sentences) {
    lengths.push_back(static_cast<std::int32_t>(sentence.size()));
    places.push_back(static_cast<std::int64_t>(bin.size()));
    bin += bytes_of(sentence);
  }
  index += bytes_of<std::uint64_t>({1}) + "\x08" +
           bytes_of<std::uint64_t>({sentences.size(), documents.size()}) + bytes_of(lengths) +
           bytes_of(places) + bytes_of(documents);
  (void)folder_.write("t.bin", bin);
  const std::string params = R"({"pairs": "sop"})";
  const data::Datasets text = open(params, 12, "w1 w2\nw3\nw4\n\nw5\nw6"),
                       tokens = open(params, 12, index, 0.0, "t.idx");

  ASSERT_EQ(text.train->size(), tokens.train->size());
  for (std::int64_t i = 0; i < text.train->size(); ++i) {
    EXPECT_EQ(values(*text.train, i, "input_ids"), values(*tokens.train, i, "input_ids"));
    EXPECT_EQ(values(*text.train, i, "pair_label"), values(*tokens.train, i, "pair_label"));
  }
  EXPECT_EQ(text.fingerprint, tokens.fingerprint);
  // An id that the tokenizer does not have, and a file whose documents are single sequences.
  (void)folder_.write("t.bin", bytes_of<std::uint16_t>({6, 7, 8, 9, 10, 60000}));
  EXPECT_THAT(error_of([&] { open(params, 12, index, 0.0, "t.idx"); }).what(),
              HasSubstr("has the id 60000"));
  (void)folder_.write("t.bin", bytes_of<std::uint16_t>({6, 7, 8, 9, 10, 11}));
  const std::string plain = std::string("MMIDIDX\0\0", 9) + bytes_of<std::uint64_t>({1}) + "\x08" +
                            bytes_of<std::uint64_t>({2, 3}) + bytes_of<std::int32_t>({3, 3}) +
                            bytes_of<std::int64_t>({0, 6}) + bytes_of<std::int64_t>({0, 1, 2});
  EXPECT_THAT(error_of([&] { open(params, 12, plain, 0.0, "t.idx"); }).what(),
              HasSubstr("no documents of several sentences"));
}

TEST_F(SentencePairsOfFile, HoldOutWholeDocuments) {
  const data::Datasets data = open(R"({"pairs": "nsp"})", 21, documents(), 0.25);

  ASSERT_NE(data.validation, nullptr);
  const auto documents_in = [](const data::Dataset& dataset) {
    std::pair<std::int64_t, std::int64_t> range = {kDocuments, -1};
    for (std::int64_t i = 0; i < dataset.size(); ++i) {
      const PairOfTexts pair = taken_apart(dataset, i);
      for (const auto* text : {&pair.first, &pair.second}) {
        const std::int64_t document = sentence_of(text->front()) / kSentences;
        range = {std::min(range.first, document), std::max(range.second, document)};
      }
    }
    return range;
  };
  EXPECT_EQ(documents_in(*data.train), (std::pair<std::int64_t, std::int64_t>{0, 29}));
  EXPECT_EQ(documents_in(*data.validation), (std::pair<std::int64_t, std::int64_t>{30, 39}));
}

TEST_F(SentencePairsOfFile, RefuseWhatHasNoPairs) {
  const auto refusal =
      [&](const std::string& params, std::int64_t length, const std::string& text) {
        return error_of([&] { open(params, length, text); });
      };

  EXPECT_THAT(refusal(R"({"pairs": "nsp"})", 12, "w1\nw2\n").what(), HasSubstr("one document"));
  EXPECT_THAT(refusal(R"({"pairs": "sop"})", 4, "w1\nw2\n").what(), HasSubstr("no room"));
  EXPECT_THAT(refusal(R"({"pairs": "sop"})", 12, "w1\n\nw2\n").what(), HasSubstr("has 0"));
  EXPECT_THAT(refusal(R"({"pairs": "sop"})", 12, "w1\nw\xff\n").what(), HasSubstr("text.txt:2"));
  EXPECT_THAT(error_of([] { task_of("masked_lm", R"({"pair_copies": 2})"); }).what(),
              HasSubstr("without pairs"));
  EXPECT_THAT(test::error_of([&] {
                data::DataOptions options;
                options.train = {folder_.write("a.txt", "a\nb\n")};
                test::open(
                    *task_of("masked_lm", R"({"pairs": "sop", "mask_token_id": 7})"), options, 16);
              }).what(),
              HasSubstr("around and between"));
}

}  // namespace
}  // namespace tessera::tasks
