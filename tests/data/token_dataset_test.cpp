// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_dataset.h"

#include <cstdlib>
#include <fstream>
#include <span>

#include "support/text_files.h"
#include <gtest/gtest.h>

namespace tessera::data {
namespace {

using test::byte;
using test::contains;
using test::error_of;
using test::Folder;
using test::gpt2;
using Ids = std::vector<std::int64_t>;

/// One sample.
struct Tokens {
  Ids inputs, labels, mask;
  bool padded;
};
Tokens sample_of(const Dataset& dataset, std::int64_t index) {
  Sample sample(dataset, index);
  const auto ids = [&](const char* name) {
    const std::span<const std::int64_t> values = sample.values<std::int64_t>(name);
    return Ids(values.begin(), values.end());
  };
  return {ids("input_ids"), ids("labels"), ids("attention_mask"), sample.has("attention_mask")};
}

Ids starts_of(const Dataset& dataset, std::int64_t index) {
  Sample sample(dataset, index);
  const std::span<const std::int64_t> starts = sample.values<std::int64_t>("document_starts");
  return {starts.begin(), starts.end()};
}

// Text in which every byte shows its own position: '!' + i modulo 90.
std::string counting(std::size_t size) {
  std::string text(size, ' ');
  for (std::size_t i = 0; i < size; ++i)
    text[i] = static_cast<char>('!' + i % 90);
  return text;
}
Ids counted(std::int64_t begin, std::int64_t count) {
  Ids ids;
  for (std::int64_t i = begin; i < begin + count; ++i)
    ids.push_back('!' + i % 90);
  return ids;
}

class TokenDatasetTest : public ::testing::Test {
 protected:
  TokenDatasetTest() { setenv("TESSERA_CACHE", (folder_ / "cache").c_str(), 1); }
  ~TokenDatasetTest() override { unsetenv("TESSERA_CACHE"); }
  DataOptions options(const std::string& name, std::string_view content) {
    DataOptions options;
    options.train = {folder_.write(name, content).string()};
    return options;
  }
  static Datasets open(const DataOptions& options,
                       std::int64_t length,
                       std::int64_t min_samples = 1) {
    return open_datasets(options, *byte(), 256, length, min_samples, {});
  }
  Folder folder_;
};

TEST_F(TokenDatasetTest, CutsWindowsWhoseLastTokenIsOnlyALabel) {
  const auto data = open(options("a.txt", counting(33)), 8).train;

  const Tokens second = sample_of(*data, 1);

  EXPECT_EQ(data->size(), 4);  // floor((33 - 1 - 8) / 8) + 1
  EXPECT_EQ(second.inputs, counted(8, 8));
  EXPECT_EQ(second.labels, counted(9, 8));
  EXPECT_EQ(second.mask, Ids(8, 1));
  EXPECT_FALSE(second.padded);
  EXPECT_EQ(sample_of(*data, 3).labels.back(), counted(32, 1).front());
}

TEST_F(TokenDatasetTest, CountsWindowsByTheFormula) {
  for (const std::int64_t tokens : {9, 10, 16, 17, 29, 33}) {
    for (const std::int64_t stride : {1, 3, 8, 20}) {
      DataOptions o = options("a.txt", counting(static_cast<std::size_t>(tokens)));
      o.stride = stride;
      const auto data = open(o, 8).train;
      ASSERT_EQ(data->size(), (tokens - 1 - 8) / stride + 1);
      ASSERT_EQ(sample_of(*data, data->size() - 1).inputs, counted((data->size() - 1) * stride, 8));
    }
  }
}

TEST_F(TokenDatasetTest, JoinsDocumentsWithEndOfText) {
  const auto data =
      open(options("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cde\"}\n{\"text\":\"f\"}\n"), 7)
          .train;

  const Tokens sample = sample_of(*data, 0);

  EXPECT_EQ(data->size(), 1);
  EXPECT_EQ(sample.inputs, (Ids{'a', 'b', 0, 'c', 'd', 'e', 0}));
  EXPECT_EQ(sample.labels.back(), 'f');
}

TEST_F(TokenDatasetTest, KeepsTheDocumentsOfAWindowApart) {
  DataOptions o =
      options("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cde\"}\n{\"text\":\"fghijklm\"}\n");
  EXPECT_EQ(open(o, 7).train->tensors().size(), 3U);
  o.separate_documents = true;
  const auto data = open(o, 7).train;

  const Tokens first = sample_of(*data, 0);
  const Ids starts = starts_of(*data, 0), later = starts_of(*data, 1);

  EXPECT_EQ(first.inputs, (Ids{'a', 'b', 0, 'c', 'd', 'e', 0}));
  EXPECT_EQ(first.labels, (Ids{'b', 0, -100, 'd', 'e', 0, -100}));
  EXPECT_EQ(starts, (Ids{0, 0, 0, 3, 3, 3, 3}));
  EXPECT_EQ(later, Ids(7, 0));
}

TEST_F(TokenDatasetTest, RefusesToKeepDocumentsApartThatDoNotShowWhereTheyEnd) {
  const DataOptions text = options("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cdefgh\"}\n");
  tokenize({text.train[0]}, *byte(), folder_ / "pair", {});
  DataOptions o;
  o.train = {(folder_ / "pair").string()};
  o.separate_documents = true;
  EXPECT_EQ(open(o, 4).train->size(), 2);
  // As Megatron-LM writes it without --append-eod: another token in place of the end of text.
  std::fstream file(folder_ / "pair.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2 * 2);
  file.put('z');
  file.close();

  const Error error = error_of([&] { open(o, 4); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "the first document ends with token 122"));
}

TEST_F(TokenDatasetTest, KeepsTheTailForValidation) {
  DataOptions o = options("a.txt", counting(1000));
  o.validation_fraction = 0.1;
  const Datasets data = open(o, 8);

  const Tokens last = sample_of(*data.train, data.train->size() - 1),
               first = sample_of(*data.validation, 0);

  EXPECT_EQ(data.train_tokens, 900);
  EXPECT_EQ(data.validation_tokens, 100);
  EXPECT_EQ(data.train->size(), 112);      // floor((900 - 1 - 8) / 8) + 1
  EXPECT_EQ(data.validation->size(), 12);  // floor((100 - 1 - 8) / 8) + 1
  EXPECT_EQ(last.labels, counted(111 * 8 + 1, 8));
  EXPECT_EQ(first.inputs, counted(900, 8));
}

TEST_F(TokenDatasetTest, TakesOtherDataForValidation) {
  DataOptions o = options("a.txt", counting(100));
  o.validation = {folder_.write("b.txt", "0123456789").string()};

  const Datasets data = open(o, 4);

  EXPECT_EQ(sample_of(*data.validation, 0).inputs, (Ids{'0', '1', '2', '3'}));
  EXPECT_EQ(data.validation->size(), 2);
}

TEST_F(TokenDatasetTest, OpensOtherDataAsItsOwnValidationIs) {
  DataOptions o = options("a.txt", counting(100));
  o.text_field = "body";
  o.invalid_utf8 = "replace";
  o.validation = {
      folder_.write("b.jsonl", "{\"body\":\"ab\"}\n{\"body\":\"cde\"}\n{\"body\":\"f\xff\"}\n")
          .string()};
  for (const auto& [pack, separate] : {std::pair(true, false), {true, true}, {false, false}}) {
    o.pack = pack;
    o.separate_documents = separate;
    const Datasets run = open(o, 4);

    const OpenedDataset other = open_dataset(o, o.validation, "--data", *byte(), 256, 4, {});

    ASSERT_EQ(other.dataset->size(), run.validation->size());
    EXPECT_EQ(other.tokens, run.validation_tokens);
    EXPECT_EQ(other.fingerprint, run.validation_fingerprint);
    for (std::int64_t i = 0; i < other.dataset->size(); ++i) {
      EXPECT_EQ(sample_of(*other.dataset, i).inputs, sample_of(*run.validation, i).inputs);
      EXPECT_EQ(sample_of(*other.dataset, i).labels, sample_of(*run.validation, i).labels);
    }
  }
}

TEST_F(TokenDatasetTest, ShortensAWindowOnlyWhereItMay) {
  const DataOptions o = options("a.txt", counting(6));
  const auto opened = [&](std::int64_t length, bool shorter) {
    return open_dataset(o, o.train, "--data", *byte(), 256, length, {}, shorter);
  };

  EXPECT_EQ(opened(8, true).dataset->sequence_length(), 5);
  EXPECT_EQ(opened(4, true).dataset->sequence_length(), 4);
  EXPECT_TRUE(contains(error_of([&] { opened(8, false); }).what(),
                       "--data has 6 tokens, that is 0 windows"));
  const DataOptions one = options("b.txt", "!");
  EXPECT_EQ(
      error_of([&] { open_dataset(one, one.train, "--data", *byte(), 256, 8, {}, true); }).kind(),
      Error::Kind::Data);
}

TEST_F(TokenDatasetTest, HasNoValidationUnlessAsked) {
  EXPECT_EQ(open(options("a.txt", counting(100)), 8).validation, nullptr);
}

TEST_F(TokenDatasetTest, MakesEveryDocumentASampleWithoutPacking) {
  DataOptions o =
      options("a.jsonl",
              "{\"text\":\"ab\"}\n{\"text\":\"cdefgh\"}\n{\"text\":\"ijkl\"}\n{\"text\":\"m\"}\n");
  o.pack = false;
  const auto data = open(o, 4).train;

  const Tokens shorter = sample_of(*data, 0), longer = sample_of(*data, 1),
               even = sample_of(*data, 2), last = sample_of(*data, 3);

  EXPECT_EQ(data->size(), 4);
  EXPECT_EQ(shorter.inputs, (Ids{'a', 'b', 0, 0}));
  EXPECT_EQ(shorter.labels, (Ids{'b', 0, -100, -100}));  // it learns to stop
  EXPECT_EQ(shorter.mask, (Ids{1, 1, 0, 0}));
  EXPECT_TRUE(shorter.padded);
  EXPECT_EQ(longer.inputs, (Ids{'c', 'd', 'e', 'f'}));
  EXPECT_EQ(longer.labels, (Ids{'d', 'e', 'f', 'g'}));
  EXPECT_FALSE(longer.padded);
  EXPECT_EQ(even.labels, (Ids{'j', 'k', 'l', 0}));
  EXPECT_FALSE(even.padded);
  EXPECT_EQ(last.labels, (Ids{0, -100, -100, -100}));  // although no end of text follows it
}

TEST_F(TokenDatasetTest, TakesADocumentsOwnEndOfTextAsItsEndWhereverItStands) {
  const std::string line = "{\"text\":\"ab\\u0000\"}\n";
  DataOptions o = options("a.jsonl", line + line + line);
  o.pack = false;
  const auto data = open(o, 4).train;

  ASSERT_EQ(data->size(), 3);
  for (std::int64_t i = 0; i < data->size(); ++i) {
    EXPECT_EQ(sample_of(*data, i).inputs, (Ids{'a', 'b', 0, 0})) << i;
    EXPECT_EQ(sample_of(*data, i).labels, (Ids{'b', 0, -100, -100})) << i;
  }
  DataOptions none = options("b.jsonl", "{\"text\":\"\\u0000\"}\n" + line);
  none.pack = false;
  EXPECT_TRUE(contains(error_of([&] { open(none, 4); }).what(), "sequence 0 of the token file"));
}

TEST_F(TokenDatasetTest, KeepsTheLastDocumentsForValidationWithoutPacking) {
  std::string lines;
  for (char c = 'a'; c < 'k'; ++c)
    lines += std::string("{\"text\":\"") + c + "\"}\n";
  DataOptions o = options("a.jsonl", lines);
  o.pack = false;
  o.validation_fraction = 0.2;

  const Datasets data = open(o, 4);

  EXPECT_EQ(data.train->size(), 8);
  EXPECT_EQ(data.validation->size(), 2);
  EXPECT_EQ(sample_of(*data.validation, 0).inputs.front(), 'i');
}

TEST_F(TokenDatasetTest, ReadsAPairToTheSameSamplesAsItsText) {
  const DataOptions text = options("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"cdefgh\"}\n");
  tokenize({text.train.front()}, *byte(), folder_ / "pair", {});
  DataOptions pair;
  pair.train = {(folder_ / "pair").string()};

  for (const bool pack : {true, false}) {
    DataOptions a = text, b = pair;
    a.pack = b.pack = pack;
    const auto x = open(a, 4).train, y = open(b, 4).train;
    ASSERT_EQ(x->size(), y->size());
    for (std::int64_t i = 0; i < x->size(); ++i)
      EXPECT_EQ(sample_of(*x, i).labels, sample_of(*y, i).labels);
  }
}

TEST_F(TokenDatasetTest, RefusesIdsBeyondTheVocabulary) {
  DataOptions o = options("a.txt", counting(100));
  tokenize({o.train.front()}, *gpt2(), folder_ / "pair", {});
  o.train = {(folder_ / "pair.bin").string()};

  const Error error = error_of([&] { open(o, 8); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "pair.bin"));
  EXPECT_NO_THROW(open_datasets(o, *gpt2(), 50304, 8, 1, {}));
}

TEST_F(TokenDatasetTest, SaysHowMuchDataIsMissing) {
  const Error batch = error_of([&] { open(options("a.txt", counting(100)), 8, 50); });
  const Error window = error_of([&] { open(options("b.txt", counting(8)), 8); });
  DataOptions tail = options("c.txt", counting(100));
  tail.validation_fraction = 0.05;
  const Error validation = error_of([&] { open(tail, 8); });

  EXPECT_EQ(batch.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(batch.what(), "100 tokens, that is 12 windows"));
  EXPECT_TRUE(contains(batch.what(), "at least 50"));
  EXPECT_TRUE(contains(batch.fix(), "sequence_length of at most 1"));
  EXPECT_TRUE(contains(window.what(), "0 windows"));
  EXPECT_TRUE(contains(validation.what(), "validation_fraction 0.05"));
}

TEST_F(TokenDatasetTest, NamesALengthThatWouldDo) {
  const auto o = options("a.txt", counting(101));
  const Error error = error_of([&] { open(o, 20, 10); });

  EXPECT_TRUE(contains(error.fix(), "at most 10"));
  EXPECT_GE(open(o, 10, 10).train->size(), 10);
}

TEST_F(TokenDatasetTest, RefusesContradictions) {
  DataOptions both = options("a.txt", counting(100));
  both.validation = both.train;
  both.validation_fraction = 0.5;

  EXPECT_EQ(error_of([&] { open(both, 8); }).kind(), Error::Kind::Config);
  EXPECT_EQ(error_of([&] { open(DataOptions{}, 8); }).kind(), Error::Kind::Config);
}

TEST_F(TokenDatasetTest, HasAFingerprintOfWhatItsSamplesAre) {
  const DataOptions o = options("a.txt", counting(100));
  DataOptions copy = options("b.txt", counting(100)), stride = o,
              other = options("c.txt", counting(101)), separate = o;
  stride.stride = 3;
  separate.separate_documents = true;

  EXPECT_EQ(open(o, 8).fingerprint, open(copy, 8).fingerprint);
  EXPECT_NE(open(o, 8).fingerprint, open(o, 9).fingerprint);
  EXPECT_NE(open(o, 8).fingerprint, open(stride, 8).fingerprint);
  EXPECT_NE(open(o, 8).fingerprint, open(other, 8).fingerprint);
  EXPECT_NE(open(o, 8).fingerprint, open(separate, 8).fingerprint);
}

TEST_F(TokenDatasetTest, CountsWhatWasSkipped) {
  EXPECT_EQ(open(options("a.jsonl", "\n{\"text\":\"some words here\"}\n{\"text\":\"\"}\n"), 4)
                .train_stats.skipped_empty,
            2);
}

TEST(DataOptions, AreReadFromJson) {
  DataOptions options;
  config::Problems problems;
  config::Origins origins;

  config::read(
      json::parse(
          R"({"train": "a.txt", "validation": ["b.txt", "c"], "stride": 32, "pack": false})",
          "test"),
      options,
      problems,
      origins);

  EXPECT_NO_THROW(problems.raise());
  EXPECT_EQ(options.train, (std::vector<std::string>{"a.txt"}));
  EXPECT_EQ(options.validation, (std::vector<std::string>{"b.txt", "c"}));
  EXPECT_EQ(options.stride, 32);
  EXPECT_FALSE(options.pack);
}

}  // namespace
}  // namespace tessera::data
