// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/tokenizer_file.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/bert_vocabulary.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/cpm.h"
#include "tessera/text/tokenizers/sentencepiece_classes.h"
#include "tessera/text/tokenizers/sentencepiece_file.h"
#include "tessera/text/tokenizers/tiktoken.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;

TokenizerFile read_json(const fs::path& path) {
  TokenizerFile out;
  out.content = read_small_file(path);
  const json root = json::parse(out.content, nullptr, false);
  if (!root.is_object()) refuse_part(path.string(), "is not a JSON object");
  out.parts = read_parts(root, path.string());
  const auto decoder = root.find("decoder");
  const std::string parts = decoder == root.end() ? "" : decoder->dump();
  if (parts.find("\"ByteLevel\"") != std::string::npos) {
    out.spelling = Spelling::ByteCharacters;
  } else if (parts.find("\"WordPiece\"") != std::string::npos) {
    out.spelling = Spelling::WordPieces;
    out.inner_prefix = decoder->value("prefix", "##");
  }
  if (is_cpm(Settings(path.parent_path()).tokenizer_class())) {
    add_cpm(out.parts);
    out.spelling = Spelling::WordsOfCpm;
    out.content += out.parts.outside;
  }
  return out;
}

TokenizerFile read_vocabulary_lines(const fs::path& path) {
  const Settings settings(path.parent_path());
  TokenizerFile out;
  out.parts = read_bert_vocabulary(path, settings);
  out.spelling = Spelling::WordPieces;
  out.inner_prefix = "##";
  out.content = read_small_file(path) + settings.all();
  return out;
}

TokenizerFile read_ranks(const fs::path& path) {
  const Settings settings(path.parent_path());
  TokenizerFile out;
  out.parts = read_tiktoken(path, settings);
  out.spelling = Spelling::ByteCharacters;
  // The name determines how text is split, so it is part of the content.
  out.content = path.filename().string() + read_small_file(path) + settings.all();
  return out;
}

/// Reads a sentencepiece model, or a file of ranks with this name, as Llama 3 has.
TokenizerFile read_dot_model(const fs::path& path) {
  const Settings settings(path.parent_path());
  TokenizerFile out;
  out.content = read_small_file(path);
  if (looks_like_tiktoken(out.content)) return read_ranks(path);
  if (!looks_like_sentencepiece(out.content))
    refuse_part(path.string(),
                "is neither a model of sentencepiece nor a list of tiktoken's ranks");
  out.parts = read_sentencepiece_model(path, settings);
  if (is_cpm(settings.tokenizer_class())) out.spelling = Spelling::WordsOfCpm;
  out.content += settings.all() + out.parts.outside;
  return out;
}

/// A file name, and the function that reads such a file.
struct Kind {
  std::string_view ending;
  TokenizerFile (*read)(const fs::path& path);
};
constexpr Kind kKinds[] = {{".json", read_json},
                           {".txt", read_vocabulary_lines},
                           {".model", read_dot_model},
                           {".tiktoken", read_ranks}};

/// The names of tokenizer files in model folders.
constexpr const char* kNames[] = {"tokenizer.json",
                                  "vocab.txt",
                                  "tokenizer.model",
                                  "spiece.model",
                                  "sentencepiece.bpe.model",
                                  "qwen.tiktoken",
                                  "cl100k_base.tiktoken",
                                  "o200k_base.tiktoken"};

std::string from_byte_characters(const std::string& token) {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const int byte = byte_of_character(next_character(token, at));
    if (byte < 0) return token;
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

std::string from_space_marks(const std::string& token) {
  constexpr std::string_view kSpace = "\u2581";
  constexpr std::size_t kByteToken = 6;  // length of <0xAB>
  if (token.size() == kByteToken && token.starts_with("<0x") && token.back() == '>') {
    const auto value = std::strtoul(token.substr(3, 2).c_str(), nullptr, 16);
    return {static_cast<char>(value)};
  }
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const bool space = token.compare(i, kSpace.size(), kSpace) == 0;
    out += space ? ' ' : token[i];
    i += space ? kSpace.size() : 1;
  }
  return out;
}

}  // namespace

TokenizerFile read_tokenizer_file(const fs::path& path) {
  const std::string name = text::lower(path.filename().string());
  for (const Kind& kind : kKinds) {
    if (name.ends_with(kind.ending)) return kind.read(path);
  }
  throw Error(Error::Kind::Config,
              fmt::format("{}: its name says of no kind of tokenizer", path.string()),
              "name one of " + names_of_tokenizer_files());
}

std::optional<fs::path> find_tokenizer_file(const fs::path& folder) {
  for (const char* name : kNames) {
    std::error_code ignored;  // a symbolic link to itself is not a file
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  return std::nullopt;
}

std::string names_of_tokenizer_files() {
  return text::join(std::vector<std::string>(std::begin(kNames), std::end(kNames)), ", ");
}

std::string bytes_of_token(const std::string& token, const TokenizerFile& file) {
  switch (file.spelling) {
    case Spelling::ByteCharacters:
      return from_byte_characters(token);
    case Spelling::WordPieces:
      return token.starts_with(file.inner_prefix) ? token.substr(file.inner_prefix.size())
                                                  : " " + token;
    case Spelling::WordsOfCpm:
      return cpm_text(token);
    case Spelling::SpaceMarks:
      break;
  }
  return from_space_marks(token);
}

}  // namespace tessera::text::tokenizers
