// SPDX-License-Identifier: Apache-2.0
// BERT's vocab.txt: one token a line, its id the number of the line.
#pragma once

#include <filesystem>

#include "tessera/data/tokenizers/pipeline.h"
#include "tessera/data/tokenizers/settings.h"

namespace tessera::data::tokenizers {

/// The tokenizer of a vocab.txt, as BertTokenizer of transformers is: control characters go, each
/// Chinese character is a word, text is composed (NFC), words are cut at white space and
/// punctuation, and the longest tokens win. `settings` may name do_lower_case (default: true),
/// strip_accents (default: as do_lower_case), tokenize_chinese_chars, do_basic_tokenize,
/// never_split and the special tokens. Error{Format} for a vocabulary that lacks [UNK], [CLS] or
/// [SEP], Error{Unsupported} for a tokenizer_class with other rules.
PipelineParts read_bert_vocabulary(const std::filesystem::path& path, const Settings& settings);

}  // namespace tessera::data::tokenizers
