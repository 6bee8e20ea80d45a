// SPDX-License-Identifier: Apache-2.0
// BERT's vocab.txt: one token per line; its id is the line number.
#pragma once

#include <filesystem>

#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::tokenizers {

/// The tokenizer of a vocab.txt, as BertTokenizer of transformers: control characters are removed,
/// each Chinese character is a word, text is composed (NFC), words are split at white space and
/// punctuation, and the longest tokens are taken. `settings` may contain do_lower_case (default:
/// true), strip_accents (default: as do_lower_case), tokenize_chinese_chars, do_basic_tokenize,
/// never_split and the special tokens. Throws Error{Format} for a vocabulary without [UNK], [CLS]
/// or [SEP], and Error{Unsupported} for a tokenizer_class with other rules.
PipelineParts read_bert_vocabulary(const std::filesystem::path& path, const Settings& settings);

}  // namespace tessera::text::tokenizers
