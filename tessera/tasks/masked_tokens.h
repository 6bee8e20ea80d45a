// SPDX-License-Identifier: Apache-2.0
// Token sequences of which some tokens are hidden and become the labels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"
#include "tessera/data/tokenizer.h"

namespace tessera::tasks {

/// Which tokens are hidden, and what stands in their place.
struct Masking {
  double probability = 0.15;                    ///< that a token is chosen
  double mask_share = 0.8, random_share = 0.1;  ///< of the chosen; the others stay as they are
  std::int32_t mask_id = 0;                     ///< what stands in place of most chosen tokens
  std::int64_t vocab_size = 0;                  ///< random tokens are from 0 to vocab_size - 1
  std::vector<std::int32_t> never;              ///< ids that are not chosen: the end of a text
  /// For each id whether it begins a word: tokens are chosen by words. Empty: each by itself.
  std::vector<bool> begins_word;
  std::uint64_t seed = 1234;
  bool dynamic = true;  ///< another choice each time that a sample is read for training
  /// All of it, for the fingerprint of the data.
  [[nodiscard]] std::string text() const;
};

/// For each id of a tokenizer whether its token begins a word: whether a space stands in its text
/// first. So begin the pieces of WordPiece that have no "##", those with "▁", and those of
/// byte-level BPE behind a space; what follows in a text without one belongs to the word before it.
std::vector<bool> word_beginnings(const data::Tokenizer& tokenizer);

/// The samples of another dataset with hidden tokens: "input_ids" [T], "labels" [T] with -100 where
/// a token was not chosen, and "attention_mask" [T] where there is padding, all int64. The choice
/// is a function of (seed, number of the sample in the run, position), static: of (seed, index of
/// the sample, position). By words, the position is that of a word's first token, so that all
/// tokens of a word are chosen or none; what stands in place of each is drawn for each. Each sample
/// has at least one label, unless it has no token that may be chosen. Threads: const methods from
/// any thread.  Source: Devlin et al. 2019, "BERT"; choices that change: Liu et al. 2019,
/// "RoBERTa".
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
