// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers, which split normalized text into the pieces that the model encodes one by one.
#pragma once

#include <memory>
#include <vector>

#include "tessera/data/tokenizers/aligned_text.h"
#include "tessera/data/tokenizers/part_reader.h"

namespace tessera::data::tokenizers {

/// Cuts and rewrites pieces of text. Threads: const methods from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Puts what becomes of `piece` behind `out`; empty pieces are left out.
  virtual void apply(AlignedText piece, std::vector<AlignedText>& out) const = 0;
};
using PreTokenizerPtr = std::shared_ptr<const PreTokenizer>;

/// By "type", as the tokenizers library defines each. Error{Unsupported} for an unknown type,
/// Error{Format} for members of another type or Sequences nested deeper than kDeepestSequence.
PreTokenizerPtr read_pre_tokenizer(const Part& part, int depth = 0);

}  // namespace tessera::data::tokenizers
