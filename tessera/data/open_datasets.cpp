// SPDX-License-Identifier: Apache-2.0
// Opens the data that a configuration names as datasets of token sequences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/data/mixture.h"
#include "tessera/data/stream_order.h"
#include "tessera/data/streamed_tokens.h"
#include "tessera/data/token_cache.h"
#include "tessera/data/token_dataset.h"
#include "tessera/data/windows_of_documents.h"

namespace tessera::data {
namespace {

std::vector<std::filesystem::path> paths_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

/// Creates datasets of one configuration from ranges of token files.
class Maker {
 public:
  Maker(const DataOptions& options,
        const text::Tokenizer& tokenizer,
        std::int64_t length,
        const TokenSamples& samples,
        std::function<void()> poll)
      : options_(options),
        end_of_text_(tokenizer.end_of_text()),
        length_(length),
        stride_(options.stride.value_or(length)),
        of_one_document_(of_one_document(options, samples)),
        poll_(std::move(poll)) {}

  /// True if windows end at the ends of documents.
  static bool of_one_document(const DataOptions& options, const TokenSamples& samples) {
    return options.pack && options.separate_documents && samples.of_one_document;
  }

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
    if (of_one_document_) {
      return std::make_unique<WindowsOfDocuments>(
          file, begin, end, length_, stride_, end_of_text_, poll_);
    }
    auto windows = make_windows(file, begin, end, length_, stride_);
    if (!options_.separate_documents) return windows;
    return make_packed_documents(std::move(windows), end_of_text_);
  }
  /// Throws Error{Data} if a document that becomes a sample has no text.
  void require_texts(const TokenFile& file, const std::string& name) const {
    if (!options_.pack) data::require_texts(file, name, 0, file.sequences(), end_of_text_);
  }
  /// Returns for each file of a stream how many of the samples `made` begin in it.
  [[nodiscard]] std::vector<std::int64_t> samples_by_file(const StreamedTokens& stream,
                                                          const TokenDataset& made) const {
    const std::int64_t samples = made.size();
    const auto* const windows = dynamic_cast<const WindowsOfDocuments*>(&made);
    const std::vector<std::int64_t>& begins =
        options_.pack ? stream.token_begins() : stream.sequence_begins();
    const std::int64_t step = options_.pack ? stride_ : 1;
    std::vector<std::int64_t> out;
    std::int64_t before = 0;
    for (std::size_t f = 1; f < begins.size(); ++f) {
      const std::int64_t end = windows != nullptr
                                   ? windows->windows_before(begins[f])
                                   : std::min(samples, (begins[f] + step - 1) / step);
      out.push_back(end - before);
      before = end;
    }
    return out;
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
        of_one_document_
            ? fmt::format("{} windows of at most {} tokens of one document", made.size(), length_)
        : options_.pack
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
        options_.pack && !of_one_document_ && longest > 0
            ? fmt::format("use more data, a smaller batch, or a data.sequence_length of at most {}",
                          longest)
            : "use more data, or a smaller batch");
  }

 private:
  const DataOptions& options_;
  std::int32_t end_of_text_;
  std::int64_t length_, stride_;
  bool of_one_document_;
  std::function<void()> poll_;
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

/// Warns of numbers in which some of the tokenizer's ids do not fit: another program may have
/// written those as other ids.
void warn_of_narrow_ids(const TokenFile& file,
                        const std::vector<std::string>& names,
                        const text::Tokenizer& tokenizer) {
  if (file.largest_id() >= tokenizer.size() - 1) return;
  log::warn_once(
      fmt::format("{} has {}-bit ids, up to {}, and the tokenizer has {} tokens: the ids above are "
                  "missing, or were written as other ids; write the file with 32-bit ids",
                  text::join(names, ", "),
                  file.largest_id() < 256 ? 8 : 16,
                  text::with_commas(file.largest_id()),
                  text::with_commas(tokenizer.size())));
}

OpenedTokens open_checked(const std::vector<std::string>& names,
                          const std::string& key,
                          const text::Tokenizer& tokenizer,
                          std::int64_t vocab_size,
                          const TokenizeOptions& how) {
  OpenedTokens opened = open_tokens(paths_of(names), tokenizer, how);
  if (!opened.from_text) {
    opened.file->check_ids(vocab_size, how.poll);
    warn_of_narrow_ids(*opened.file, names, tokenizer);
  }
  tell_skipped(opened.stats, key);
  return opened;
}

/// Tokens of data.train or of one of its sources.
struct Opened {
  OpenedTokens tokens;
  std::shared_ptr<const StreamedTokens> stream;  ///< the same tokens with data.streaming, else null
};

/// Splits off data.validation_fraction of a file and creates samples from both parts.
struct Parts {
  Parts(const DataOptions& options, const Maker& maker, const Opened& opened) {
    const std::shared_ptr<const TokenFile>& file = opened.tokens.file;
    const std::int64_t all = maker.units(*file);
    const auto cut = static_cast<std::int64_t>(
        std::floor(static_cast<double>(all) * (1.0 - options.validation_fraction)));
    train = maker.make(file, 0, cut);
    train_tokens = maker.tokens(*file, 0, cut);
    if (opened.stream != nullptr) train_by_file = maker.samples_by_file(*opened.stream, *train);
    if (options.validation_fraction == 0.0) return;
    tail = maker.make(file, cut, all);
    tail_tokens = maker.tokens(*file, cut, all);
  }
  std::unique_ptr<TokenDataset> train, tail;
  std::vector<std::int64_t> train_by_file;  ///< number of samples, with data.streaming
  std::int64_t train_tokens = 0, tail_tokens = 0;
};

std::string tail_text(const DataOptions& options) {
  return fmt::format("the tail of data.train (validation_fraction {})",
                     options.validation_fraction);
}

std::unique_ptr<Dataset> samples_of(const TokenSamples& samples,
                                    std::unique_ptr<TokenDataset> tokens,
                                    bool training) {
  if (!samples.make) return tokens;
  return samples.make(std::move(tokens), training);
}

/// Opens data.train or data.sources.
class TrainingOpener {
 public:
  TrainingOpener(const DataOptions& options,
                 const text::Tokenizer& tokenizer,
                 std::int64_t vocab_size,
                 std::int64_t sequence_length,
                 const TokenizeOptions& how,
                 const TokenSamples& samples)
      : options_(options),
        tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        length_(sequence_length),
        how_(reading_of(options, how)),
        samples_(samples),
        maker_(options, tokenizer, sequence_length, samples, how.poll) {}

  /// Writes what the training data depends on to `contents`.
  Datasets open(std::int64_t min_samples, std::string& contents) {
    return options_.sources.is_null() ? open_one(min_samples, contents)
                                      : open_sources(min_samples, contents);
  }

 private:
  [[nodiscard]] Opened open_tokens(const std::vector<std::string>& names) const {
    if (options_.streaming == 0) {
      Opened out{.tokens = open_checked(names, "data.train", tokenizer_, vocab_size_, how_)};
      maker_.require_texts(*out.tokens.file, "the token file");
      return out;
    }
    StreamedTokensOptions streaming{.window = options_.streaming, .head = length_};
    streaming.check = [this](const std::string& path, const TokenFile& tokens) {
      maker_.require_texts(tokens, path);
    };
    Opened out;
    out.stream =
        std::make_shared<const StreamedTokens>(paths_of(names), tokenizer_, how_, streaming);
    out.tokens = {.file = out.stream,
                  .fingerprint = out.stream->fingerprint(),
                  .stats = out.stream->stats(),
                  .from_text = true};
    tell_skipped(out.tokens.stats, "data.train");
    return out;
  }

  Datasets open_one(std::int64_t min_samples, std::string& contents) {
    const Opened opened = open_tokens(options_.train);
    maker_.require_ends(*opened.tokens.file, "data.train");
    Parts parts(options_, maker_, opened);
    maker_.require(*parts.train, parts.train_tokens, min_samples, "data.train");
    if (parts.tail != nullptr)
      maker_.require(*parts.tail, parts.tail_tokens, 1, tail_text(options_));
    contents = opened.tokens.fingerprint;
    Datasets out;
    out.train_stats = opened.tokens.stats;
    out.train_tokens = parts.train_tokens;
    out.validation_tokens = parts.tail_tokens;
    if (parts.tail != nullptr)
      out.validation = samples_of(samples_, std::move(parts.tail), /*training=*/false);
    Mixture all = Mixture::joined({parts.train->size()});
    std::vector<Parts> sources;
    sources.push_back(std::move(parts));
    out.train = training_samples(std::move(sources), std::move(all));
    return out;
  }

  /// Opens the entries of data.sources one after the other, then mixes them.
  Datasets open_sources(std::int64_t min_samples, std::string& contents) {
    Datasets out;
    std::vector<Parts> trains;
    std::vector<std::unique_ptr<TokenDataset>> tails;
    std::vector<std::int64_t> sizes, tail_sizes;
    std::vector<double> weights;
    for (const DataSource& source : sources_of(options_.sources)) {
      const Opened opened = open_tokens(source.paths);
      maker_.require_ends(*opened.tokens.file, source.name());
      Parts parts(options_, maker_, opened);
      maker_.require(*parts.train, parts.train_tokens, 1, source.name());
      out.train_stats += opened.tokens.stats;
      out.train_tokens += parts.train_tokens;
      out.validation_tokens += parts.tail_tokens;
      contents += fmt::format("{} {} ", opened.tokens.fingerprint, text::number(source.weight));
      weights.push_back(source.weight);
      sizes.push_back(parts.train->size());
      if (parts.tail != nullptr && parts.tail->size() > 0) {
        tail_sizes.push_back(parts.tail->size());
        tails.push_back(std::move(parts.tail));
      }
      trains.push_back(std::move(parts));
    }
    contents += options_.mix_until;
    out.train = training_samples(std::move(trains),
                                 Mixture::interleaved(sizes, weights, mix_until_of(options_)));
    TESSERA_REQUIRE(out.train->size() >= min_samples,
                    Data,
                    fmt::format("data.sources has {} samples in an epoch; at least {} are needed",
                                out.train->size(),
                                min_samples),
                    "use more data, a smaller batch, or data.mix_until last");
    if (options_.validation_fraction == 0.0) return out;
    TESSERA_REQUIRE(!tails.empty(),
                    Data,
                    tail_text(options_) + " has no sample",
                    "raise data.validation_fraction, or name data.validation");
    out.validation = samples_of(samples_,
                                make_mixed(std::move(tails), Mixture::joined(tail_sizes)),
                                /*training=*/false);
    return out;
  }

  /// The samples of the sources in the order of `mixture`.
  [[nodiscard]] std::unique_ptr<Dataset> training_samples(std::vector<Parts> sources,
                                                          Mixture mixture) const {
    std::vector<std::unique_ptr<TokenDataset>> tokens;
    std::vector<std::unique_ptr<StreamOrder>> orders;
    std::vector<std::int64_t> sizes;
    for (std::size_t s = 0; s < sources.size(); ++s) {
      sizes.push_back(sources[s].train->size());
      tokens.push_back(std::move(sources[s].train));
      if (options_.streaming == 0) continue;
      const std::uint64_t seed =
          options_.sources.is_null() ? samples_.seed : mix64(samples_.seed, s + 1);
      orders.push_back(std::make_unique<StreamOrder>(
          sources[s].train_by_file,
          StreamOptions{.shuffle = options_.shuffle, .seed = seed, .window = options_.streaming}));
    }
    const bool streamed = !orders.empty();
    std::unique_ptr<TokenDataset> all =
        tokens.size() == 1 && (streamed || options_.sources.is_null())
            ? std::move(tokens.front())
            : make_mixed(std::move(tokens), streamed ? Mixture::joined(sizes) : mixture);
    std::unique_ptr<Dataset> out = samples_of(samples_, std::move(all), /*training=*/true);
    if (!streamed) return out;
    return std::make_unique<StreamedSamples>(std::move(out), std::move(mixture), std::move(orders));
  }

  const DataOptions& options_;
  const text::Tokenizer& tokenizer_;
  std::int64_t vocab_size_, length_;
  TokenizeOptions how_;
  const TokenSamples& samples_;
  Maker maker_;
};

}  // namespace

OpenedDataset open_dataset(const DataOptions& options,
                           const std::vector<std::string>& names,
                           const std::string& key,
                           const text::Tokenizer& tokenizer,
                           std::int64_t vocab_size,
                           std::int64_t sequence_length,
                           const TokenizeOptions& how,
                           bool shorter,
                           const TokenSamples& samples) {
  const OpenedTokens opened =
      open_checked(names, key, tokenizer, vocab_size, reading_of(options, how));
  const bool fits = !options.pack || Maker::of_one_document(options, samples) ||
                    opened.file->tokens() > sequence_length;
  const std::int64_t length =
      fits || !shorter ? sequence_length : std::max<std::int64_t>(1, opened.file->tokens() - 1);
  const Maker maker(options, tokenizer, length, samples, how.poll);
  maker.require_ends(*opened.file, key);
  maker.require_texts(*opened.file, "the token file");
  const std::int64_t end = maker.units(*opened.file);
  std::unique_ptr<TokenDataset> tokens = maker.make(opened.file, 0, end);
  OpenedDataset out;
  out.tokens = maker.tokens(*opened.file, 0, end);
  out.stats = opened.stats;
  out.fingerprint = opened.fingerprint;
  maker.require(*tokens, out.tokens, 1, key);
  out.dataset = samples_of(samples, std::move(tokens), /*training=*/false);
  return out;
}

Datasets open_datasets(const DataOptions& options,
                       const text::Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       std::int64_t sequence_length,
                       std::int64_t min_samples,
                       const TokenizeOptions& how,
                       const TokenSamples& samples) {
  require_consistent(options, sequence_length);
  std::string contents;
  Datasets out = TrainingOpener(options, tokenizer, vocab_size, sequence_length, how, samples)
                     .open(std::max<std::int64_t>(min_samples, 1), contents);
  out.fingerprint = fingerprint_of(options, contents, sequence_length);
  if (!options.validation.empty()) {
    OpenedDataset validation = open_dataset(options,
                                            options.validation,
                                            "data.validation",
                                            tokenizer,
                                            vocab_size,
                                            sequence_length,
                                            how,
                                            /*shorter=*/false,
                                            samples);
    out.validation = std::move(validation.dataset);
    out.validation_tokens = validation.tokens;
    out.validation_stats = validation.stats;
    out.validation_fingerprint = std::move(validation.fingerprint);
  }
  return out;
}

}  // namespace tessera::data
