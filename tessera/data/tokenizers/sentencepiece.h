// SPDX-License-Identifier: Apache-2.0
// What sentencepiece does with a model: its normalizer, its two algorithms and its way back to
// text.  Source: Kudo and Richardson 2018, "SentencePiece".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data/tokenizers/pipeline.h"
#include "tessera/data/tokenizers/sentencepiece_file.h"

namespace tessera::data::tokenizers {

/// Where U+2581 stands for a space that the text does not have.
enum class DummyPrefix : std::uint8_t {
  AsTrained,  ///< before each text, and each part behind an added token, if the model says so
  First,      ///< before a text alone; U+2581 in it is a space, and white space behind an added
              ///< token stays (transformers' `legacy` false)
  Never
};
/// The longest rule of the charsmap at each place, one space for several, and U+2581 for spaces.
NormalizerPtr sentencepiece_normalizer(const SentencePieceModel& model,
                                       DummyPrefix dummy,
                                       const std::string& where);

/// Cuts where no token crosses: before words, and around pieces that users defined. The text of a
/// unigram model is cut after each MiB alone.
PreTokenizerPtr sentencepiece_split(const SentencePieceModel& model);

/// The model with ids[i] for piece i; a negative one has none. Error{Unsupported} for unused pieces
/// of BPE, Error{Format} for ids that are taken and for pieces that are too long.
ModelPtr sentencepiece_model(const SentencePieceModel& model,
                             const std::vector<std::int32_t>& ids,
                             const std::string& where);

/// Text of pieces; tokens that are special stand as they are written.
DecoderPtr sentencepiece_decoder(const SentencePieceModel& model,
                                 const std::vector<AddedToken>& added);

}  // namespace tessera::data::tokenizers
