// SPDX-License-Identifier: Apache-2.0
// Tokenizers of sentencepiece models by their transformers class: special tokens, their ids, and
// what surrounds a text.
#pragma once

#include <filesystem>

#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::tokenizers {

/// Reads the .model file. The rules are those of `tokenizer_class`, or else of the model_type in
/// config.json: LlamaTokenizer, GemmaTokenizer, T5Tokenizer, XLMRobertaTokenizer,
/// CamembertTokenizer, MBartTokenizer, MBart50Tokenizer, AlbertTokenizer, CpmTokenizer and related
/// ones; if neither exists, those of plain sentencepiece. Throws Error{Unsupported} for other
/// classes and for settings that make ids random; other errors as read_sentencepiece().
PipelineParts read_sentencepiece_model(const std::filesystem::path& path, const Settings& settings);

}  // namespace tessera::text::tokenizers
