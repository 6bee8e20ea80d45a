// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of tokens that carry their byte ranges.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/text/bpe.h"
#include "tessera/text/tokenizers/models.h"

namespace tessera::text::tokenizers {

/// Merges the tokens from `first` on: the pair of lowest rank first, the leftmost of equal pairs.
/// Takes n log n steps if there are many.
void merge_tokens(const PairTable& pairs, std::vector<Token>& tokens, std::size_t first);

}  // namespace tessera::text::tokenizers
