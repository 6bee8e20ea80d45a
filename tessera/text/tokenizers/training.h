// SPDX-License-Identifier: Apache-2.0
// Trains a tokenizer on text: with byte-pair merging, or as a unigram language model
// (unigram_training.h). Sources: Sennrich et al. 2016, "Neural machine translation of rare words
// with subword units"; the order of merges and ids, and the choice between equal pairs, are those
// of the tokenizers library's trainers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/text/tokenizers/normalizers.h"
#include "tessera/text/tokenizers/pre_tokenizers.h"

namespace tessera::text::tokenizers {

/// The frequency of each piece of text in the data.
using PieceCounts = std::map<std::string, std::int64_t>;

struct MergeOptions {
  std::int64_t vocab_size = 32000;  ///< maximum number of tokens; the alphabet is always included
  std::int64_t min_frequency = 2;   ///< rarer pairs are not merged
  std::vector<std::string> special = {};
  /// Characters that get a token even if the text does not contain them.
  std::vector<char32_t> alphabet = {};
  std::string inner_prefix = {};    ///< prefix of tokens that do not begin a piece: "##"
  std::function<void()> poll = {};  ///< called periodically; may throw
};
/// Tokens by id: special tokens, characters by code point (with an inner prefix, followed by those
/// that do not begin a piece), then one token per merge.
struct LearntMerges {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
};
/// The most frequent pair of neighbours becomes a token (of equal pairs, the one with the smallest
/// ids), until there are enough tokens. O(characters + changes log changes).
LearntMerges learn_merges(const PieceCounts& pieces, const MergeOptions& options);

enum class TrainedKind : std::uint8_t {
  Bpe,        ///< over bytes, with GPT-2's pieces
  WordPiece,  ///< BERT's: words, and their continuations with the prefix "##"
  Unigram     ///< a unigram language model over words that begin with U+2581
};
struct TrainingOptions {
  TrainedKind kind = TrainedKind::Bpe;
  std::int64_t vocab_size = 32000, min_frequency = 2;
  /// The first ids. Empty: "<|endoftext|>"; or BERT's five, of which a WordPiece tokenizer needs
  /// [UNK], [CLS] and [SEP]; or <pad>, </s> and <unk>, of which a Unigram tokenizer needs the
  /// latter two.
  std::vector<std::string> special = {};
  bool lowercase = true;            ///< only for WordPiece
  std::string text_field = "text";  ///< field of records (data/tokenizer_training.h)
  int threads = 1;                  ///< ids do not depend on it
  std::function<void()> poll = {};
};
struct TrainedTokenizer {
  std::string tokenizer_json, config_json;  ///< contents of tokenizer.json, tokenizer_config.json
  /// Size of the vocabulary; number of different pieces in the text.
  std::int64_t tokens = 0, pieces = 0;
};

/// Splits texts into the pieces that the trained tokenizer will see, and counts them. Const methods
/// can be called from any thread.
class PieceCounter {
 public:
  explicit PieceCounter(const TrainingOptions& options);
  /// Adds the pieces of `text`, which must be valid UTF-8, to `counts`.
  void count(std::string_view text, std::unordered_map<std::string, std::int64_t>& counts) const;

 private:
  NormalizerPtr normalizer_;
  PreTokenizerPtr pieces_;
};

/// Returns options.special, or the default ones of the kind. Throws Error{Config} for a token that
/// is empty or repeated, and if one that the kind needs is missing.
std::vector<std::string> special_tokens(const TrainingOptions& options);

/// Learns a tokenizer from pieces (data/tokenizer_training.h counts those of files). Throws
/// Error{Data} if there are none, and Error{Config} for a vocabulary that is too small for the
/// alphabet.
TrainedTokenizer train_tokenizer(const PieceCounts& pieces, const TrainingOptions& options);

}  // namespace tessera::text::tokenizers
