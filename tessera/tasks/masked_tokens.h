// SPDX-License-Identifier: Apache-2.0
// Token sequences in which some tokens are masked and become the labels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The choice of the tokens that are masked, and of their replacements.
struct Masking {
  double probability = 0.15;  ///< probability that a token is chosen
  /// Shares of the chosen tokens that become the mask token or a random token; the others remain
  /// unchanged.
  double mask_share = 0.8, random_share = 0.1;
  std::int32_t mask_id = 0;         ///< the id that replaces most chosen tokens
  std::int64_t vocab_size = 0;      ///< random tokens are from 0 to vocab_size - 1
  std::vector<std::int32_t> never;  ///< ids that are never chosen: the end of a text
  /// For each id, whether its token begins a word; then whole words are chosen. Empty: tokens are
  /// chosen independently.
  std::vector<bool> begins_word;
  std::uint64_t seed = 1234;
  bool dynamic = true;  ///< chooses new tokens each time that a sample is read for training
  /// All settings as text, for the fingerprint of the data.
  [[nodiscard]] std::string text() const;
};

/// For each id of a tokenizer, whether its token begins a word: its text starts with a space. This
/// holds for WordPiece tokens without "##", for tokens with "▁", and for tokens of byte-level BPE
/// after a space; a token at the beginning of a text without a space belongs to the previous word.
std::vector<bool> word_beginnings(const text::Tokenizer& tokenizer);

/// Masks the tokens `ids` of a sample: replaces the chosen ones, and writes their ids to `labels`,
/// -100 to those of other tokens. Tokens with 0 in `mask` are never chosen. `sample`: the number
/// from which the choice is made; see MaskedTokens.
void mask_tokens(const Masking& masking,
                 std::uint64_t sample,
                 std::span<std::int64_t> ids,
                 std::span<std::int64_t> labels,
                 std::span<const std::int64_t> mask);

/// The samples of another dataset with masked tokens: "input_ids" [T], "labels" [T] with -100 where
/// a token was not chosen, and "attention_mask" [T] if there is padding, all int64. The choice is a
/// function of (seed, number of the sample in the run, position); if static, of (seed, index of the
/// sample, position). For whole words, the position is that of the word's first token, so that all
/// tokens of a word are chosen or none; the replacement is drawn per token. Each sample has at
/// least one label, unless none of its tokens may be chosen. Const methods can be called from any
/// thread. Source: Devlin et al. 2019, "BERT"; dynamic choices: Liu et al. 2019, "RoBERTa".
class MaskedTokens final : public data::Dataset {
 public:
  MaskedTokens(std::unique_ptr<data::TokenDataset> tokens, Masking masking);

  [[nodiscard]] std::string name() const override { return "masked tokens"; }
  [[nodiscard]] std::int64_t size() const override { return tokens_->size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return tokens_->length();
  }

 private:
  std::unique_ptr<data::TokenDataset> tokens_;
  Masking masking_;
};

}  // namespace tessera::tasks
