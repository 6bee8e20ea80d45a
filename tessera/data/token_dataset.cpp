// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_dataset.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/data/mixture.h"
#include "tessera/data/token_cache.h"

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
        pad_id_(pad_id) {
    for (std::int64_t i = 0; i < size_; ++i) {
      TESSERA_REQUIRE(
          text_length(i) > 0,
          Data,
          fmt::format("sequence {} of the token file has no tokens other than end of text",
                      first_ + i),
          "remove empty documents, or use data.pack true");
    }
  }
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
    const std::int64_t whole = text_length(index), used = std::min(whole, length_);
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
  // The length without the end of text that joins it to the next document and without its own,
  // because a file does not show which of the two its last one is.
  [[nodiscard]] std::int64_t text_length(std::int64_t index) const {
    const std::int64_t begin = tokens_->sequence_begin(first_ + index);
    std::int64_t length = tokens_->sequence_length(first_ + index), last = pad_id_;
    while (length > 0) {
      tokens_->read(begin + length - 1, 1, &last);
      if (last != pad_id_) break;
      --length;
    }
    return length;
  }

  std::shared_ptr<const TokenFile> tokens_;
  std::int64_t first_, size_, length_;
  std::int32_t pad_id_;
};

std::vector<std::filesystem::path> paths_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

/// Creates datasets of one configuration from ranges of token files.
class Maker {
 public:
  Maker(const DataOptions& options, const Tokenizer& tokenizer, std::int64_t length)
      : options_(options),
        end_of_text_(tokenizer.end_of_text()),
        length_(length),
        stride_(options.stride.value_or(length)) {}

  // Number of tokens with pack, of documents without.
  [[nodiscard]] std::int64_t units(const TokenFile& file) const {
    return options_.pack ? file.tokens() : file.sequences();
  }
  [[nodiscard]] std::int64_t tokens(const TokenFile& file,
                                    std::int64_t begin,
                                    std::int64_t end) const {
    if (options_.pack || begin == end) return end - begin;
    return file.sequence_begin(end - 1) + file.sequence_length(end - 1) -
           file.sequence_begin(begin);
  }
  [[nodiscard]] std::unique_ptr<TokenDataset> make(const std::shared_ptr<const TokenFile>& file,
                                                   std::int64_t begin,
                                                   std::int64_t end) const {
    if (!options_.pack) return make_documents(file, begin, end, length_, end_of_text_);
    auto windows = make_windows(file, begin, end, length_, stride_);
    if (!options_.separate_documents) return windows;
    return make_packed_documents(std::move(windows), end_of_text_);
  }
  /// Documents that are kept apart must end with an end of text.
  void require_ends(const TokenFile& file, const std::string& key) const {
    if (!options_.separate_documents || file.sequences() < 2) return;
    const std::int64_t length = file.sequence_length(0);
    std::int64_t last = end_of_text_;
    if (length > 0) file.read(file.sequence_begin(0) + length - 1, 1, &last);
    TESSERA_REQUIRE(last == end_of_text_,
                    Data,
                    fmt::format("{}: the first document ends with token {}, not with end of text "
                                "({}), so data.separate_documents cannot tell where one ends",
                                key,
                                last,
                                end_of_text_),
                    "make the file with an end of text behind each document (Megatron-LM's "
                    "--append-eod), or set data.separate_documents to false");
  }
  void require(const Dataset& made,
               std::int64_t tokens,
               std::int64_t wanted,
               const std::string& what) const {
    if (made.size() >= wanted) return;
    const std::string has =
        options_.pack
            ? fmt::format("{} tokens, that is {} windows of {} tokens and a label (stride {})",
                          text::with_commas(tokens),
                          made.size(),
                          length_,
                          stride_)
            : fmt::format("{} documents", made.size());
    const std::int64_t longest =
        options_.stride ? tokens - 1 - (wanted - 1) * stride_ : (tokens - 1) / wanted;
    throw Error(
        Error::Kind::Data,
        fmt::format("{} has {}; at least {} are needed", what, has, wanted),
        options_.pack && longest > 0
            ? fmt::format("use more data, a smaller batch, or a data.sequence_length of at most {}",
                          longest)
            : "use more data, or a smaller batch");
  }

 private:
  const DataOptions& options_;
  std::int32_t end_of_text_;
  std::int64_t length_, stride_;
};

void require_consistent(const DataOptions& options, std::int64_t sequence_length) {
  TESSERA_REQUIRE(!options.train.empty(),
                  Config,
                  "data.train is missing",
                  "name a .txt, a .jsonl, a folder, a list of these, or a .bin/.idx pair");
  TESSERA_REQUIRE(
      options.validation.empty() || options.validation_fraction == 0.0,
      Config,
      "data.validation and data.validation_fraction are both given",
      "keep data.validation (other data) or data.validation_fraction (the tail of data.train)");
  TESSERA_REQUIRE(sequence_length > 0 && options.stride.value_or(1) > 0,
                  Config,
                  fmt::format("data.sequence_length {} and data.stride {} must be above 0",
                              sequence_length,
                              options.stride.value_or(sequence_length)),
                  "");
  for (const auto& [given, key] :
       {std::pair{options.stride.has_value(), "data.stride"},
        std::pair{options.separate_documents, "data.separate_documents"}}) {
    if (options.pack || !given) continue;
    log::warn_once(std::string(key) +
                   " has no effect with data.pack false: every document is one sample");
  }
}

// The fingerprint of everything on which the sequence of samples depends.
std::string fingerprint_of(const DataOptions& options,
                           const std::string& contents,
                           std::int64_t length) {
  const std::string text = fmt::format("{} {} {} {} {} {}",
                                       contents,
                                       length,
                                       options.stride.value_or(length),
                                       options.pack,
                                       options.shuffle,
                                       text::number(options.validation_fraction)) +
                           (options.separate_documents ? " separate" : "");
  return files::hex64(files::xxh3(std::as_bytes(std::span(text))));
}

// Warns the user of skipped documents.
void tell_skipped(const TokenizeStats& stats, const std::string& key) {
  if (stats.skipped_empty > 0) {
    log::warn_once(fmt::format("{}: {} blank lines or empty texts were skipped",
                               key,
                               text::with_commas(stats.skipped_empty)));
  }
  if (stats.replaced_utf8 > 0) {
    log::warn_once(fmt::format("{}: {} invalid UTF-8 sequences became U+FFFD",
                               key,
                               text::with_commas(stats.replaced_utf8)));
  }
}

// The tokenize options that the data options imply.
TokenizeOptions reading_of(const DataOptions& options, TokenizeOptions how) {
  how.text_field = options.text_field;
  how.invalid_utf8 = options.invalid_utf8;
  return how;
}

OpenedTokens open_checked(const std::vector<std::string>& names,
                          const std::string& key,
                          const Tokenizer& tokenizer,
                          std::int64_t vocab_size,
                          const TokenizeOptions& how) {
  OpenedTokens opened = open_tokens(paths_of(names), tokenizer, how);
  if (!opened.from_text) opened.file->check_ids(vocab_size, how.poll);
  tell_skipped(opened.stats, key);
  return opened;
}

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
                        "folder of these, a list of these, or a .bin/.idx pair.",
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
                        "evaluation; no training window overlaps it.",
                .min = 0.0,
                .max = 1.0});
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
                        "of text is not predicted."});
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
  fields.field("streaming",
               streaming,
               {.text = "Read the records of data.train from their files while training, for data "
                        "that does not fit into memory: the samples of this many files are "
                        "shuffled together, and those of twice as many files are in memory. The "
                        "files are read once before the start, to count their samples. 0 holds "
                        "all samples in memory.",
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

namespace {

/// Splits off data.validation_fraction of a file and creates samples from both parts.
struct Parts {
  Parts(const DataOptions& options, const Maker& maker, const OpenedTokens& opened) {
    const std::int64_t all = maker.units(*opened.file);
    const auto cut = static_cast<std::int64_t>(
        std::floor(static_cast<double>(all) * (1.0 - options.validation_fraction)));
    train = maker.make(opened.file, 0, cut);
    train_tokens = maker.tokens(*opened.file, 0, cut);
    if (options.validation_fraction == 0.0) return;
    tail = maker.make(opened.file, cut, all);
    tail_tokens = maker.tokens(*opened.file, cut, all);
  }
  std::unique_ptr<TokenDataset> train, tail;
  std::int64_t train_tokens = 0, tail_tokens = 0;
};

std::string tail_text(const DataOptions& options) {
  return fmt::format("the tail of data.train (validation_fraction {})",
                     options.validation_fraction);
}

/// Opens the entries of data.sources one after the other, then mixes them.
Datasets open_sources(
    const DataOptions& options,
    const Maker& maker,
    const std::function<OpenedTokens(const std::vector<std::string>& names)>& open,
    std::int64_t min_samples,
    std::string& contents) {
  Datasets out;
  std::vector<std::unique_ptr<TokenDataset>> trains, tails;
  std::vector<std::int64_t> sizes, tail_sizes;
  std::vector<double> weights;
  for (const DataSource& source : sources_of(options.sources)) {
    const OpenedTokens opened = open(source.paths);
    maker.require_ends(*opened.file, source.name());
    Parts parts(options, maker, opened);
    maker.require(*parts.train, parts.train_tokens, 1, source.name());
    out.train_stats += opened.stats;
    out.train_tokens += parts.train_tokens;
    out.validation_tokens += parts.tail_tokens;
    contents += fmt::format("{} {} ", opened.fingerprint, text::number(source.weight));
    weights.push_back(source.weight);
    sizes.push_back(parts.train->size());
    trains.push_back(std::move(parts.train));
    if (parts.tail == nullptr || parts.tail->size() == 0) continue;
    tail_sizes.push_back(parts.tail->size());
    tails.push_back(std::move(parts.tail));
  }
  contents += options.mix_until;
  out.train =
      make_mixed(std::move(trains), Mixture::interleaved(sizes, weights, mix_until_of(options)));
  TESSERA_REQUIRE(out.train->size() >= min_samples,
                  Data,
                  fmt::format("data.sources has {} samples in an epoch; at least {} are needed",
                              out.train->size(),
                              min_samples),
                  "use more data, a smaller batch, or data.mix_until last");
  if (options.validation_fraction == 0.0) return out;
  TESSERA_REQUIRE(!tails.empty(),
                  Data,
                  tail_text(options) + " has no sample",
                  "raise data.validation_fraction, or name data.validation");
  out.validation = make_mixed(std::move(tails), Mixture::joined(tail_sizes));
  return out;
}

}  // namespace

Datasets open_datasets(const DataOptions& options,
                       const Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       std::int64_t sequence_length,
                       std::int64_t min_samples,
                       const TokenizeOptions& how) {
  require_consistent(options, sequence_length);
  const Maker maker(options, tokenizer, sequence_length);
  const auto open = [&](const std::vector<std::string>& names) {
    return open_checked(names, "data.train", tokenizer, vocab_size, reading_of(options, how));
  };
  min_samples = std::max<std::int64_t>(min_samples, 1);
  Datasets out;
  std::string contents;
  if (!options.sources.is_null()) {
    out = open_sources(options, maker, open, min_samples, contents);
  } else {
    const OpenedTokens train = open(options.train);
    maker.require_ends(*train.file, "data.train");
    Parts parts(options, maker, train);
    maker.require(*parts.train, parts.train_tokens, min_samples, "data.train");
    if (parts.tail != nullptr) maker.require(*parts.tail, parts.tail_tokens, 1, tail_text(options));
    contents = train.fingerprint;
    out.train_stats = train.stats;
    out.train = std::move(parts.train);
    out.validation = std::move(parts.tail);
    out.train_tokens = parts.train_tokens;
    out.validation_tokens = parts.tail_tokens;
  }
  out.fingerprint = fingerprint_of(options, contents, sequence_length);
  if (!options.validation.empty()) {
    OpenedDataset validation = open_dataset(options,
                                            options.validation,
                                            "data.validation",
                                            tokenizer,
                                            vocab_size,
                                            sequence_length,
                                            how);
    out.validation = std::move(validation.dataset);
    out.validation_tokens = validation.tokens;
    out.validation_stats = validation.stats;
    out.validation_fingerprint = std::move(validation.fingerprint);
  }
  return out;
}

OpenedDataset open_dataset(const DataOptions& options,
                           const std::vector<std::string>& names,
                           const std::string& key,
                           const Tokenizer& tokenizer,
                           std::int64_t vocab_size,
                           std::int64_t sequence_length,
                           const TokenizeOptions& how,
                           bool shorter) {
  const OpenedTokens opened =
      open_checked(names, key, tokenizer, vocab_size, reading_of(options, how));
  const bool fits = !options.pack || opened.file->tokens() > sequence_length;
  const std::int64_t length =
      fits || !shorter ? sequence_length : std::max<std::int64_t>(1, opened.file->tokens() - 1);
  const Maker maker(options, tokenizer, length);
  maker.require_ends(*opened.file, key);
  const std::int64_t end = maker.units(*opened.file);
  OpenedDataset out;
  out.dataset = maker.make(opened.file, 0, end);
  out.tokens = maker.tokens(*opened.file, 0, end);
  out.stats = opened.stats;
  out.fingerprint = opened.fingerprint;
  maker.require(*out.dataset, out.tokens, 1, key);
  return out;
}

}  // namespace tessera::data
