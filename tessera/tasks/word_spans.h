// SPDX-License-Identifier: Apache-2.0
// Span corruption of whole words: spans of some words are replaced by sentinels, and the model
// predicts them. Samples begin and end with sentences, as those of Megatron-LM's T5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/sentences.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

struct WordSpansOptions {
  std::int64_t input_length = 0;   ///< S, in tokens; a text has two fewer
  std::int64_t target_length = 0;  ///< T, in tokens
  double density = 0.15;           ///< largest share of the tokens that are removed
  std::int64_t most_words = 10;    ///< of a span
  double stop = 0.2;               ///< the lengths of spans are geometric with this probability
  double short_share = 0.1;        ///< share of samples with a random smaller length
  std::vector<std::int32_t> sentinels;  ///< of the first span of a sample, of the second, ...
  std::int32_t end = 0;                 ///< ends targets
  std::int32_t pad = 0;
  std::vector<bool> begins_word;  ///< for each id
  std::uint64_t seed = 1234;
  bool dynamic = true;  ///< removes new spans each time that a sample is read for training
  /// All settings as text, for the fingerprint of the data.
  [[nodiscard]] std::string text() const;
};

/// Tokens [first, second).
using WordSpan = std::pair<std::int64_t, std::int64_t>;
/// The spans that are removed, in order. Words are visited in random order; from each, a span of a
/// geometric number of words, at most `most_words`, is removed, or a shorter one that does not
/// exceed the number of removed tokens: min(density * (input_length - 2), max(1, round(density *
/// tokens))). Spans do not overlap. It ends early where sentinels, or the room of the target, do.
/// Source: Megatron-LM's masked word pieces (Joshi et al. 2020, "SpanBERT", 3.1).
std::vector<WordSpan> choose_word_spans(const std::vector<std::int32_t>& ids,
                                        const WordSpansOptions& options,
                                        std::uint64_t sample);

/// Texts of successive sentences of a document without their spans: "input_ids" [S], with a
/// sentinel for each span; "labels" [T], each sentinel followed by its span, and the end, -100
/// behind it; "attention_mask" [S] if an input is shorter; all int64. Sentences are collected until
/// they fill a text; what does not fit is dropped. The texts are a function of (seed, number of the
/// document). Memory: 4 bytes per token, and 16 per sample. Const methods can be called from any
/// thread.
class WordSpans final : public RecordDataset {
 public:
  explicit WordSpans(WordSpansOptions options);

  /// Reads the documents of files; see read_sentences().
  void read_files(const std::vector<std::string>& names,
                  const text::Tokenizer& tokenizer,
                  const data::TokenizeOptions& how);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override;
  /// Makes the texts. Before this call each document is a sample.
  void arrange() override;

  [[nodiscard]] std::string name() const override { return "spans of words"; }
  [[nodiscard]] std::int64_t size() const override {
    return arranged_ ? std::ssize(texts_) : std::ssize(documents_);
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.input_length;
  }
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] std::string fingerprint() const override;

 private:
  void divide(std::size_t document);

  WordSpansOptions options_;
  std::shared_ptr<Sentences> sentences_;
  std::vector<SentenceRange> documents_;
  std::vector<WordSpan> texts_;  // tokens of the sentences
  bool arranged_ = false;
};

}  // namespace tessera::tasks
