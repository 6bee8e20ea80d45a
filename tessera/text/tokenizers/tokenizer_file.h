// SPDX-License-Identifier: Apache-2.0
// Recognizes tokenizer files by name and content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::tokenizers {

/// The notation of tokens in a vocabulary.
enum class Spelling : std::uint8_t {
  ByteCharacters,  ///< a printable character for each byte
  WordPieces,      ///< a prefix marks tokens that do not begin a word
  SpaceMarks,      ///< U+2581 is a space, "<0x0A>" a byte
  WordsOfCpm       ///< U+2581 is nothing, U+2582 a space, U+2583 a line break
};

struct TokenizerFile {
  PipelineParts parts;
  Spelling spelling = Spelling::SpaceMarks;
  std::string inner_prefix;  ///< only for WordPieces
  std::string content;       ///< everything on which ids depend
};

/// Reads a tokenizer.json, a vocab.txt, a sentencepiece model or a file of tiktoken's ranks, with
/// the settings next to it. Throws Error{Config} for a file of another kind, Error{Format} for a
/// damaged one and Error{Unsupported} for rules that are not implemented.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

/// The file of a folder that read_tokenizer_file() can read; nothing if there is none.
std::optional<std::filesystem::path> find_tokenizer_file(const std::filesystem::path& folder);
/// "tokenizer.json, vocab.txt", for messages.
std::string names_of_tokenizer_files();

/// The bytes that a token contributes inside a text.
std::string bytes_of_token(const std::string& token, const TokenizerFile& file);

}  // namespace tessera::text::tokenizers
