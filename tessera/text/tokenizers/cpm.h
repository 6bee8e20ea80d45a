// SPDX-License-Identifier: Apache-2.0
// The processing that CpmTokenizer of transformers adds to sentencepiece: Chinese text is cut into
// words by jieba, which are joined by spaces; spaces and line breaks of the text become U+2582 and
// U+2583. Decoding removes all spaces and restores these two. Unlike transformers' fast tokenizer,
// special tokens in a text are found before it is cut.
#pragma once

#include <string>
#include <string_view>

#include "tessera/text/tokenizers/pipeline.h"

namespace tessera::text::tokenizers {

/// True for the class without "Fast".
bool is_cpm(std::string_view tokenizer_class);

/// Adds the processing before the normalizer and after the decoder. Throws the errors of
/// Jieba::find() and of Jieba.
void add_cpm(PipelineParts& parts);

/// The text that decoding makes of a part of a text or of a piece, in which U+2581 is a space too.
std::string cpm_text(const std::string& piece);

}  // namespace tessera::text::tokenizers
