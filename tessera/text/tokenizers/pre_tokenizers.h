// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers, which split normalized text into the pieces that the model encodes one by one.
#pragma once

#include <memory>
#include <vector>

#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {

/// Splits and rewrites pieces of text. Const methods can be called from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Appends the resulting pieces to `out`, without empty ones.
  virtual void apply(AlignedText piece, std::vector<AlignedText>& out) const = 0;
};
using PreTokenizerPtr = std::shared_ptr<const PreTokenizer>;

/// Creates the pre-tokenizer of "type", as the tokenizers library defines it. Throws
/// Error{Unsupported} for an unknown type, and Error{Format} for members of the wrong type or
/// Sequences nested deeper than kDeepestSequence.
PreTokenizerPtr read_pre_tokenizer(const Part& part, int depth = 0);

}  // namespace tessera::text::tokenizers
