// SPDX-License-Identifier: Apache-2.0
// Computes what sentencepiece does with a model: its normalizer, its two algorithms and its
// decoder. Source: Kudo and Richardson 2018, "SentencePiece".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/sentencepiece_file.h"

namespace tessera::text::tokenizers {

/// The places at which U+2581 is inserted for a space that the text does not have.
enum class DummyPrefix : std::uint8_t {
  AsTrained,  ///< before each text, and each part after an added token, if the model specifies it
  /// Only before a text; U+2581 in the text is a space, and white space after an added token stays
  /// (transformers' `legacy` false).
  First,
  Never
};
/// Applies the longest rule of the charsmap at each position, joins spaces, and replaces spaces by
/// U+2581.
NormalizerPtr sentencepiece_normalizer(const SentencePieceModel& model,
                                       DummyPrefix dummy,
                                       const std::string& where);

/// Splits where no token crosses: before words, and around user-defined pieces. The text of a
/// unigram model is split only after each MiB.
PreTokenizerPtr sentencepiece_split(const SentencePieceModel& model);

/// The model with ids[i] for piece i; a piece with a negative entry has no id. Throws
/// Error{Unsupported} for unused pieces of BPE, and Error{Format} for ids that are used twice and
/// for pieces that are too long.
ModelPtr sentencepiece_model(const SentencePieceModel& model,
                             const std::vector<std::int32_t>& ids,
                             const std::string& where);

/// Converts pieces to text; special tokens are written literally.
DecoderPtr sentencepiece_decoder(const SentencePieceModel& model,
                                 const std::vector<AddedToken>& added);

}  // namespace tessera::text::tokenizers
