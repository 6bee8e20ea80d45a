// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_dataset.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kIgnored = -100;

class Windows final : public TokenDataset {
 public:
  Windows(std::shared_ptr<const TokenFile> tokens,
          std::int64_t begin,
          std::int64_t end,
          std::int64_t length,
          std::int64_t stride)
      : tokens_(std::move(tokens)), begin_(begin), length_(length), stride_(stride) {
    const std::int64_t last_start = end - begin - 1 - length;
    size_ = last_start < 0 ? 0 : last_start / stride + 1;
  }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    TESSERA_ASSERT(index >= 0 && index < size_);
    const std::int64_t start = begin_ + index * stride_;
    tokens_->read(start, length_, input_ids);
    tokens_->read(start + 1, length_, labels);
    std::fill_n(mask, length_, 1);
    return false;
  }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  std::int64_t begin_, length_, stride_, size_ = 0;
};

class PackedDocuments final : public TokenDataset {
 public:
  PackedDocuments(std::unique_ptr<TokenDataset> windows, std::int32_t end_of_text)
      : windows_(std::move(windows)), end_of_text_(end_of_text) {}
  [[nodiscard]] std::int64_t size() const override { return windows_->size(); }
  [[nodiscard]] std::int64_t length() const override { return windows_->length(); }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    const bool padded = windows_->get(index, input_ids, labels, mask);
    for (std::int64_t t = 0; t < length(); ++t) {
      if (input_ids[t] == end_of_text_) labels[t] = kIgnored;
    }
    return padded;
  }
  [[nodiscard]] bool separates_documents() const override { return true; }
  void document_starts(const std::int64_t* input_ids, std::int64_t* starts) const override {
    std::int64_t start = 0;
    for (std::int64_t t = 0; t < length(); ++t) {
      starts[t] = start;
      if (input_ids[t] == end_of_text_) start = t + 1;
    }
  }

 private:
  std::unique_ptr<TokenDataset> windows_;
  std::int32_t end_of_text_;
};

/// The length of a sequence without the end of text that joins it to the next document and without
/// its own, because a file does not show which of the two its last one is.
std::int64_t text_length(const TokenFile& tokens, std::int64_t sequence, std::int32_t end_of_text) {
  const std::int64_t begin = tokens.sequence_begin(sequence);
  std::int64_t length = tokens.sequence_length(sequence), last = end_of_text;
  while (length > 0) {
    tokens.read(begin + length - 1, 1, &last);
    if (last != end_of_text) break;
    --length;
  }
  return length;
}

class Documents final : public TokenDataset {
 public:
  Documents(std::shared_ptr<const TokenFile> tokens,
            std::int64_t first,
            std::int64_t last,
            std::int64_t length,
            std::int32_t pad_id)
      : tokens_(std::move(tokens)),
        first_(first),
        size_(last - first),
        length_(length),
        pad_id_(pad_id) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  // An end-of-text label follows every document, whether the file contains one (between documents,
  // or as part of the text) or several, or none (after the last), so that a model learns to stop.
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    TESSERA_ASSERT(index >= 0 && index < size_);
    const std::int64_t begin = tokens_->sequence_begin(first_ + index);
    const std::int64_t whole = text_length(*tokens_, first_ + index, pad_id_),
                       used = std::min(whole, length_);
    tokens_->read(begin, used, input_ids);
    std::copy_n(input_ids + 1, used - 1, labels);
    if (whole > used) {
      tokens_->read(begin + used, 1, labels + used - 1);
    } else {
      labels[used - 1] = pad_id_;
    }
    std::fill_n(mask, used, 1);
    std::fill_n(input_ids + used, length_ - used, pad_id_);
    std::fill_n(labels + used, length_ - used, kIgnored);
    std::fill_n(mask + used, length_ - used, 0);
    return used < length_;
  }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  std::int64_t first_, size_, length_;
  std::int32_t pad_id_;
};

}  // namespace

std::vector<TensorSpec> TokenDataset::tensors() const {
  const std::vector<std::int64_t> shape = {length()};
  std::vector<TensorSpec> out = {
      {.name = "input_ids", .dtype = DType::I64, .shape = shape},
      {.name = "labels", .dtype = DType::I64, .shape = shape},
      {.name = "attention_mask", .dtype = DType::I64, .shape = shape, .optional = true}};
  if (separates_documents())
    out.push_back({.name = "document_starts", .dtype = DType::I64, .shape = shape});
  return out;
}

void TokenDataset::read(std::int64_t index, SampleWriter& out) const {
  std::int64_t* const input_ids = out.tensor<std::int64_t>("input_ids").data();
  const bool padded = get(index,
                          input_ids,
                          out.tensor<std::int64_t>("labels").data(),
                          out.tensor<std::int64_t>("attention_mask").data());
  if (padded) out.need("attention_mask");
  if (separates_documents())
    document_starts(input_ids, out.tensor<std::int64_t>("document_starts").data());
}

void DataOptions::describe(config::Fields& fields) {
  fields.field("train",
               train,
               {.text = "Training data: a .txt (one document), a .jsonl (one document per line), a "
                        "folder of these, a list of these, or a .bin/.idx pair. Behind a name may "
                        "stand a slice of its records, as in datasets: train.jsonl[:1000], "
                        "data[10%:20%], train.parquet[-500:].",
                .required = true});
  fields.field("sources",
               sources,
               {.text = "Several sources of training data instead of train, mixed by their "
                        "weights: [{\"path\": \"a.jsonl\", \"weight\": 3}, {\"path\": "
                        "\"b.jsonl\"}] takes three of every four samples from the first source.",
                .default_text = "none"});
  fields.field(
      "mix_until",
      mix_until,
      {.text =
           "Length of an epoch over several sources: last reads all samples of all sources, those "
           "of smaller ones more than once; first ends when one source has no further sample.",
       .choices = {"last", "first"}});
  fields.field(
      "validation",
      validation,
      {.text = "Separate evaluation data, in the same formats as train.", .default_text = "none"});
  fields.field("test",
               test,
               {.text = "Data that is evaluated once, completely, after the training, with the "
                        "best weights if checkpoint.best is set; in the same formats as train.",
                .default_text = "none"});
  fields.field("validation_fraction",
               validation_fraction,
               {.text = "Fraction of the token stream, at its end, that is held out for "
                        "evaluation; no training window overlaps it. Of records with classes or "
                        "tags, every one has its share.",
                .min = 0.0,
                .max = 1.0});
  fields.field("folds",
               folds,
               {.text = "Number of parts into which the records of data.train are divided, each "
                        "with its share of every class, by trainer.seed; one is held out for "
                        "evaluation. `tessera train --folds` trains once for each.",
                .min = 2,
                .max = 1000,
                .default_text = "none"});
  fields.field(
      "fold", fold, {.text = "Which of data.folds is held out, from 1.", .min = 1, .max = 1000});
  fields.field("sequence_length",
               sequence_length,
               {.text = "Number of tokens per sample.",
                .unit = "tokens",
                .min = 1,
                .default_text = "model.max_positions, or 1024"});
  fields.field("stride",
               stride,
               {.text = "Distance between the starts of two windows of the token stream.",
                .unit = "tokens",
                .min = 1,
                .default_text = "sequence_length"});
  fields.field(
      "text_field", text_field, {.text = "Field of a .jsonl line that contains the text."});
  fields.field(
      "pack",
      pack,
      {.text = "Pack: take fixed-length windows from the concatenated documents; false makes every "
               "document one sample, truncated or padded to sequence_length."});
  fields.field("separate_documents",
               separate_documents,
               {.text = "Separate the documents within a window: a token attends only to its own "
                        "document, positions restart at each document, and the token after an end "
                        "of text is not predicted. With the task span_corruption a window ends at "
                        "the end of its document and is padded."});
  fields.field(
      "shuffle",
      shuffle,
      {.text = "Shuffle the samples of every epoch; the order is a function of seed and epoch."});
  fields.field("drop_last",
               drop_last,
               {.text = "Drop the last incomplete global batch of an epoch; false trains on it "
                        "with its smaller size."});
  fields.field("invalid_utf8",
               invalid_utf8,
               {.text = "Handling of bytes that are not UTF-8: refuse stops and reports the place, "
                        "replace substitutes U+FFFD.",
                .choices = {"refuse", "replace"}});
  fields.field("map",
               map,
               {.text = "Field names for tasks that read records: {\"prompt\": \"question\"} reads "
                        "the field question as prompt; \"answers.text\" is a nested field.",
                .default_text = "none"});
  fields.field(
      "format",
      format,
      {.text = "Kind of the records; auto detects it by their fields.",
       .choices = {"auto", "text", "messages", "sharegpt", "alpaca", "prompt_completion"}});
  fields.field("on_bad_record",
               on_bad_record,
               {.text = "Handling of a record that cannot be read: stop reports its place, skip "
                        "skips and counts it.",
                .choices = {"stop", "skip"}});
  fields.field("drop_duplicates",
               drop_duplicates,
               {.text = "Leave out records that equal an earlier one of data.train, or of the data "
                        "that is evaluated."});
  fields.field("streaming",
               streaming,
               {.text = "Read data.train from its files while training, for data that does not fit "
                        "into memory or, tokenized, on the disk: the samples of this many files "
                        "are shuffled together, and those of twice as many files are in memory. "
                        "The files are read once before the start, to count their samples. 0 "
                        "holds all records in memory, and tokenized texts on the disk.",
                .unit = "files",
                .min = 0,
                .max = 1e6});
}

std::unique_ptr<TokenDataset> make_windows(std::shared_ptr<const TokenFile> tokens,
                                           std::int64_t begin,
                                           std::int64_t end,
                                           std::int64_t length,
                                           std::int64_t stride) {
  TESSERA_ASSERT(0 <= begin && begin <= end && end <= tokens->tokens() && length > 0 && stride > 0);
  return std::make_unique<Windows>(std::move(tokens), begin, end, length, stride);
}

std::unique_ptr<TokenDataset> make_packed_documents(std::unique_ptr<TokenDataset> windows,
                                                    std::int32_t end_of_text) {
  return std::make_unique<PackedDocuments>(std::move(windows), end_of_text);
}

std::unique_ptr<TokenDataset> make_documents(std::shared_ptr<const TokenFile> tokens,
                                             std::int64_t first,
                                             std::int64_t last,
                                             std::int64_t length,
                                             std::int32_t pad_id) {
  TESSERA_ASSERT(0 <= first && first <= last && last <= tokens->sequences() && length > 0);
  return std::make_unique<Documents>(std::move(tokens), first, last, length, pad_id);
}

void require_texts(const TokenFile& tokens,
                   const std::string& name,
                   std::int64_t first,
                   std::int64_t last,
                   std::int32_t end_of_text) {
  for (std::int64_t i = first; i < last; ++i) {
    TESSERA_REQUIRE(text_length(tokens, i, end_of_text) > 0,
                    Data,
                    fmt::format("sequence {} of {} has no tokens other than end of text", i, name),
                    "remove empty documents, or use data.pack true");
  }
}

}  // namespace tessera::data
