// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/file_tokenizer.h"

#include <map>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/small_file.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using Object = nlohmann::json;

Object parsed(const fs::path& path) {
  Object out = Object::parse(read_small_file(path), nullptr, false);
  TESSERA_REQUIRE(out.is_object(),
                  Format,
                  path.string() + ": is not a JSON object",
                  "copy the file again from where the model was published");
  return out;
}

/// The file beside the tokenizer; an empty object where there is none.
Object beside(const fs::path& path, const char* name) {
  const fs::path other = path.parent_path() / name;
  std::error_code ignored;
  return fs::exists(other, ignored) ? parsed(other) : Object::object();
}

/// "eos_token": "</s>", or an object with the content.
std::optional<std::string> token_named(const Object& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object() || !found->contains("content") || !(*found)["content"].is_string())
    return std::nullopt;
  return (*found)["content"].get<std::string>();
}

std::optional<std::int32_t> end_by_token(const fs::path& path,
                                         const tokenizers::Pipeline& pipeline) {
  for (const char* key : {"eos_token", "sep_token"}) {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (const auto token = token_named(beside(path, name), key))
        if (const auto id = pipeline.id_of(*token)) return id;
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> end_by_id(const fs::path& path, std::int64_t size) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Object config = beside(path, name);
    auto found = config.find("eos_token_id");
    if (found == config.end()) continue;
    const Object id = found->is_array() && !found->empty() ? found->front() : *found;
    if (id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < size)
      return static_cast<std::int32_t>(id.get<std::int64_t>());
  }
  return std::nullopt;
}

std::int32_t end_of(const fs::path& path, const tokenizers::Pipeline& pipeline) {
  if (const auto id = end_by_token(path, pipeline)) return *id;
  if (const auto id = end_by_id(path, pipeline.size())) return *id;
  for (const char* token :
       {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]", "<|im_end|>"}) {
    if (const auto id = pipeline.id_of(token)) return *id;
  }
  throw Error(Error::Kind::Format,
              path.string() + ": nothing says which token ends a text",
              "put eos_token into a tokenizer_config.json beside it");
}

/// The bytes for which the characters of byte-level BPE stand.
std::map<std::string, char> byte_characters() {
  std::map<std::string, char> out;
  std::uint32_t shifted = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    const std::uint32_t code = printable ? byte : shifted++;
    std::string character;
    if (code < 0x80) {
      character.push_back(static_cast<char>(code));
    } else {
      character.push_back(static_cast<char>(0xC0U | code >> 6U));
      character.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
    }
    out[character] = static_cast<char>(byte);
  }
  return out;
}

/// Converts a token to the bytes that it adds inside a text; the rule depends on the file's
/// decoder.
class TokenBytes {
 public:
  explicit TokenBytes(const Object& root) {
    const auto decoder = root.find("decoder");
    const std::string text = decoder == root.end() ? "" : decoder->dump();
    byte_level_ = text.find("\"ByteLevel\"") != std::string::npos;
    pieces_ = text.find("\"WordPiece\"") != std::string::npos;
    if (pieces_) prefix_ = decoder->value("prefix", "##");
  }

  [[nodiscard]] std::string operator()(const std::string& token) const {
    if (byte_level_) return from_characters(token);
    if (pieces_) return token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
    return from_sentencepiece(token);
  }

 private:
  [[nodiscard]] std::string from_characters(const std::string& token) const {
    std::string out;
    for (std::size_t i = 0; i < token.size();) {
      const std::size_t length = (static_cast<unsigned char>(token[i]) & 0xE0U) == 0xC0U ? 2 : 1;
      const auto found = characters_.find(token.substr(i, length));
      if (found == characters_.end()) return token;
      out += found->second;
      i += length;
    }
    return out;
  }

  [[nodiscard]] static std::string from_sentencepiece(const std::string& token) {
    constexpr std::string_view kSpace = "\u2581";
    constexpr std::size_t kByteToken = 6;  // <0xAB>
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

  bool byte_level_ = false, pieces_ = false;
  std::string prefix_;
  std::map<std::string, char> characters_ = byte_characters();
};

}  // namespace

FileTokenizer::FileTokenizer(const fs::path& path) : pipeline_(parsed(path), path.string()) {
  end_ = end_of(path, pipeline_);
  const TokenBytes bytes(parsed(path));
  for (std::int64_t id = 0; id < pipeline_.size(); ++id) {
    const auto token = static_cast<std::int32_t>(id);
    const std::string& text = pipeline_.token_of(token);
    bytes_.push_back(pipeline_.is_special(token) ? text : bytes(text));
  }
  const std::string content = read_small_file(path);
  fingerprint_ =
      fmt::format("file-{:016x}-{}", files::xxh3(std::as_bytes(std::span(content))), end_);
}

void FileTokenizer::encode(std::string_view text,
                           std::vector<std::int32_t>& out,
                           bool special) const {
  pipeline_.encode_ids(text, out, special);
}

std::string_view FileTokenizer::bytes_of(std::int32_t id) const {
  if (id < 0 || id >= static_cast<std::int64_t>(bytes_.size())) return {};
  return bytes_[static_cast<std::size_t>(id)];
}

std::string FileTokenizer::decode(const std::vector<std::int32_t>& ids) const {
  return pipeline_.decode(ids);
}

std::vector<std::int32_t> FileTokenizer::beginning() const {
  return pipeline_.prefix();
}

std::vector<std::int32_t> FileTokenizer::ending() const {
  return pipeline_.suffix();
}

}  // namespace tessera::data
