// SPDX-License-Identifier: Apache-2.0
// The punctuation at which BERT's tokenizers split words.
#pragma once

namespace tessera::text::tokenizers {

/// True for the characters that the tokenizers library takes for punctuation: of ASCII, all that
/// are neither letters, digits, spaces nor controls; of the others, the punctuation of Unicode 8,
/// whatever the version of Unicode elsewhere.
bool is_bert_punctuation(char32_t c);

}  // namespace tessera::text::tokenizers
