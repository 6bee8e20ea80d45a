// SPDX-License-Identifier: Apache-2.0
// Pairs of neighbouring sentences of documents, with masked tokens and a label of the pair.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/token_file.h"
#include "tessera/tasks/masked_tokens.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/sentences.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The meaning of the label of a pair of texts.
enum class PairLabel : std::uint8_t {
  None,  ///< there are no pairs
  /// Next sentence prediction: 0 if the second text follows the first in its document, 1 if it is
  /// from another document. Source: Devlin et al. 2019, "BERT".
  NextSentence,
  /// Sentence order prediction: 0 if the two texts are in their order, 1 if they are exchanged.
  /// Source: Lan et al. 2020, "ALBERT".
  SentenceOrder,
};

/// The ids around and between two texts, and the type of each.
struct PairFrame {
  std::vector<std::int32_t> before, between, after;
  std::vector<std::int32_t> before_types, between_types, after_types;
  std::int32_t first_type = 0, second_type = 1;  ///< of the texts
  [[nodiscard]] std::int64_t size() const {
    return std::ssize(before) + std::ssize(between) + std::ssize(after);
  }
};
/// The ids with which the tokenizer joins two texts.
PairFrame pair_frame_of(const text::Tokenizer& tokenizer);

struct SentencePairsOptions {
  std::int64_t length = 0;  ///< T, in tokens
  std::int32_t pad_id = 0;
  PairLabel label = PairLabel::NextSentence;
  PairFrame frame;
  double short_share = 0.1;  ///< share of documents' passes with a random smaller length
  std::int64_t copies = 1;   ///< how often each document is divided into pairs
  Masking masking;
};

/// Pairs of texts, each of some successive sentences of a document: "input_ids", "token_type_ids",
/// "labels" (of masked tokens, else -100) [T], "pair_label" [], all int64, and "attention_mask"
/// [T], 0 at padding, if a pair of the batch is shorter. Sentences are collected until they fill a
/// sample and divided at a random place; half of the second texts (and those of single sentences)
/// are replaced by sentences of another document, or half of the pairs are exchanged. A pair that
/// is too long loses tokens at random ends of its longer text. The pairs are a function of (seed,
/// copy, number of the document); for masks see MaskedTokens. Memory: 4 bytes per token, and 32 per
/// sample. Const methods can be called from any thread.
class SentencePairs final : public RecordDataset {
 public:
  explicit SentencePairs(SentencePairsOptions options);

  /// Reads the documents of files; see read_sentences().
  void read_files(const std::vector<std::string>& names,
                  const text::Tokenizer& tokenizer,
                  const data::TokenizeOptions& how);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  void reorder(const std::vector<std::int64_t>& order) override;
  /// Makes the pairs. Before this call each document is a sample. Throws Error{Data} if there is no
  /// other document from which a text could be taken.
  void arrange() override;

  [[nodiscard]] std::string name() const override { return "pairs of sentences"; }
  [[nodiscard]] std::int64_t size() const override {
    return arranged_ ? std::ssize(pairs_) : std::ssize(documents_);
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return options_.length;
  }
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] std::string fingerprint() const override;

 private:
  /// Successive tokens.
  struct Range {
    std::int64_t begin = 0, end = 0;
    [[nodiscard]] std::int64_t size() const { return end - begin; }
  };
  struct Pair {
    Range first, second;
    bool label = false;
  };
  [[nodiscard]] Range tokens_of(std::int64_t first, std::int64_t last) const {
    return {sentences_->begins[static_cast<std::size_t>(first)],
            sentences_->begins[static_cast<std::size_t>(last)]};
  }
  void pair_up(std::size_t document, std::int64_t copy);
  [[nodiscard]] Range from_another(std::size_t document, std::int64_t size, Draws& draws) const;
  void add(Range first, Range second, bool label, Draws& draws);

  SentencePairsOptions options_;
  std::shared_ptr<Sentences> sentences_;
  std::vector<SentenceRange> documents_;
  std::vector<Pair> pairs_;
  bool arranged_ = false;
};

}  // namespace tessera::tasks
