// SPDX-License-Identifier: Apache-2.0
// Converts a tokenizer's files to GGUF metadata.
#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/gguf/splits.h"
#include "tessera/interop/gguf/tokenizer.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::interop {
namespace {

using checkpoint::JsonCursor;
using json::Value;

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which represents a space

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("tokenizer.json: {}, which GGUF has no word for", what),
              "write a Hugging Face folder instead");
}
[[noreturn]] void damaged(const std::string& what) {
  throw Error(Error::Kind::Format, "tokenizer.json: " + what, "fetch the model's files again");
}

const Value* member(const Value& value, std::string_view key) {
  const Value* found = value.is_object() ? value.find(key) : nullptr;
  return found != nullptr && !found->is_null() ? found : nullptr;
}
std::string text_at(const Value& value, std::string_view key) {
  const Value* found = member(value, key);
  return found != nullptr && found->is_string() ? found->as_string() : "";
}
bool flag_at(const Value& value, std::string_view key) {
  const Value* found = member(value, key);
  return found != nullptr && found->is_bool() && found->as_bool();
}

/// A file as JSON; null if it does not exist.
Value file_of(const FilesBeside& files, std::string_view name) {
  for (const auto& [file, content] : files) {
    if (file == name) return json::parse_strict(content, file);
  }
  return {};
}
std::string content_of(const FilesBeside& files, std::string_view name) {
  for (const auto& [file, content] : files) {
    if (file == name) return content;
  }
  return "";
}

class Exporter {
 public:
  Exporter(Value tokenizer, const FilesBeside& files, std::int64_t vocab_size)
      : tokenizer_(std::move(tokenizer)),
        words_(file_of(files, "tokenizer_config.json")),
        config_(file_of(files, "config.json")),
        vocab_size_(vocab_size) {}

  GgufTokenizer read() {
    const Value* model = member(tokenizer_, "model");
    if (model == nullptr) damaged("has no model");
    model_ = *model;
    read_tokens();
    const std::string type = text_at(model_, "type");
    if (type == "WordPiece") {
      word_pieces();
    } else if (type != "BPE" && !type.empty()) {
      unsupported(fmt::format("its model is of type \"{}\"", type));
    } else if (flag_at(model_, "byte_fallback")) {
      sentencepiece();
    } else {
      byte_bpe();
    }
    read_special_tokens();
    return std::move(out_);
  }

 private:
  void place(std::int64_t id, const std::string& token, TokenKind kind) {
    if (id < 0 || id >= vocab_size_)
      damaged(fmt::format("token {} has the id {}, and the table has {} rows",
                          JsonCursor::shown(token),
                          id,
                          vocab_size_));
    out_.tokens[static_cast<std::size_t>(id)] = token;
    out_.types[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(kind);
    ids_[token] = id;
  }
  [[nodiscard]] static std::int64_t id_of(const Value* id) {
    const auto number = id != nullptr && id->is_number() ? id->as_integer() : std::nullopt;
    if (!number) damaged("a token's id is not an integer");
    return *number;
  }
  /// Rows of the table without a token get the names that llama.cpp's converter uses.
  void read_tokens() {
    for (std::int64_t id = 0; id < vocab_size_; ++id)
      out_.tokens.push_back(fmt::format("[PAD{}]", id));
    out_.types.assign(out_.tokens.size(), static_cast<std::int32_t>(TokenKind::Unused));
    const Value* vocabulary = member(model_, "vocab");
    if (vocabulary == nullptr || !vocabulary->is_object())
      unsupported("model.vocab must be an object that maps tokens to ids");
    for (const auto& [token, id] : vocabulary->members())
      place(id_of(&id), token, TokenKind::Normal);
    const Value* added = member(tokenizer_, "added_tokens");
    if (added == nullptr || !added->is_array()) return;
    for (const Value& one : added->items()) {
      const std::string token = text_at(one, "content");
      const auto id = id_of(member(one, "id"));
      place(id, token, flag_at(one, "special") ? TokenKind::Control : TokenKind::User);
    }
  }

  /// Merges as "a b", whether the file has strings or pairs.
  std::vector<std::string> merges() const {
    std::vector<std::string> out;
    const Value* list = member(model_, "merges");
    if (list == nullptr || !list->is_array()) return out;
    for (const Value& one : list->items()) {
      if (one.is_string()) {
        out.push_back(one.as_string());
      } else if (one.is_array() && one.items().size() == 2 && one.items()[0].is_string() &&
                 one.items()[1].is_string()) {
        out.push_back(one.items()[0].as_string() + " " + one.items()[1].as_string());
      } else {
        damaged("a merge is not a pair of tokens");
      }
    }
    return out;
  }

  void byte_bpe() {
    out_.tokenizer = "gpt2";
    out_.merges = merges();
    auto split = name_of_split(tokenizer_);
    // Without merges each byte is a token, however the text is split.
    if (!split && out_.merges.empty() && is_byte_level()) split = "gpt-2";
    if (!split) unsupported("it splits text in a way that is not known");
    out_.pre = *split;
  }
  [[nodiscard]] bool is_byte_level() const {
    const Value* const splitter = member(tokenizer_, "pre_tokenizer");
    return splitter != nullptr && text_at(*splitter, "type") == "ByteLevel" &&
           !flag_at(*splitter, "add_prefix_space") && member(tokenizer_, "normalizer") == nullptr;
  }

  /// A token's score is the position of the first merge that forms it.
  void sentencepiece() {
    out_.tokenizer = "llama";
    out_.pre = "default";
    out_.scores.assign(out_.tokens.size(), 0.0F);
    std::map<std::string, std::size_t> first;
    const std::vector<std::string> all = merges();
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::string token = all[i];
      const std::size_t space = token.find(' ');
      if (space == std::string::npos) damaged("a merge is not a pair of tokens");
      first.emplace(token.erase(space, 1), i);
    }
    for (std::size_t id = 0; id < out_.tokens.size(); ++id) {
      const std::string& token = out_.tokens[id];
      if (out_.types[id] != static_cast<std::int32_t>(TokenKind::Normal)) continue;
      if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>')
        out_.types[id] = static_cast<std::int32_t>(TokenKind::Byte);
      const auto made = first.find(token);
      const std::size_t order = made == first.end() ? all.size() + id : made->second;
      out_.scores[id] = -static_cast<float>(order);
    }
    mark_unknown();
    const Value* normalizer = member(tokenizer_, "normalizer");
    out_.add_space_prefix =
        normalizer != nullptr && normalizer->dump().find("\"Prepend\"") != std::string::npos;
  }

  void word_pieces() {
    if (text_at(model_, "continuing_subword_prefix") != "##")
      unsupported("its pieces of words do not begin with ##");
    // Programs that read the file lower all letters of this kind of tokenizer.
    const Value* const normalizer = member(tokenizer_, "normalizer");
    if (normalizer == nullptr || !flag_at(*normalizer, "lowercase"))
      unsupported("it keeps upper-case letters apart");
    out_.tokenizer = "bert";
    for (std::size_t id = 0; id < out_.tokens.size(); ++id) {
      if (out_.types[id] != static_cast<std::int32_t>(TokenKind::Normal)) continue;
      std::string& token = out_.tokens[id];
      if (token.starts_with("##")) {
        token.erase(0, 2);
      } else {
        token.insert(0, kSpace);
      }
    }
    mark_unknown();
  }
  void mark_unknown() {
    const auto found = ids_.find(text_at(model_, "unk_token"));
    if (found != ids_.end())
      out_.types[static_cast<std::size_t>(found->second)] =
          static_cast<std::int32_t>(TokenKind::Unknown);
  }

  /// The id in config.json, the first of several; else that of the token in tokenizer_config.json.
  [[nodiscard]] std::optional<std::int64_t> special(std::string_view word) const {
    const Value* id = member(config_, std::string(word) + "_id");
    if (id != nullptr && id->is_array() && !id->items().empty()) id = &id->items().front();
    if (id != nullptr && id->is_number()) return id->as_integer();
    const Value* token = member(words_, word);
    if (token == nullptr) return std::nullopt;
    const std::string name = token->is_string() ? token->as_string() : text_at(*token, "content");
    const auto found = ids_.find(name);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  void read_special_tokens() {
    for (const auto& [key, word] : kSpecialTokens) {
      const auto id = special(word);
      if (id && *id >= 0 && *id < vocab_size_) out_.ids.emplace_back(key, *id);
    }
    for (const auto& [key, target] :
         {std::pair("add_bos_token", &out_.add_bos), std::pair("add_eos_token", &out_.add_eos)}) {
      if (const Value* value = member(words_, key); value != nullptr && value->is_bool())
        *target = value->as_bool();
    }
    out_.chat_template = text_at(words_, "chat_template");
  }

  Value tokenizer_, words_, config_, model_;
  std::int64_t vocab_size_;
  std::map<std::string, std::int64_t, std::less<>> ids_;
  GgufTokenizer out_;
};

}  // namespace

std::optional<GgufTokenizer> gguf_tokenizer_of(const FilesBeside& files, std::int64_t vocab_size) {
  Value tokenizer = file_of(files, "tokenizer.json");
  const std::string vocabulary = content_of(files, "vocab.json"),
                    merges = content_of(files, "merges.txt");
  if (tokenizer.is_null() && !vocabulary.empty() && !merges.empty())
    tokenizer = json::parse_strict(text::gpt2_tokenizer_json(vocabulary, merges), "vocab.json");
  if (tokenizer.is_null()) return std::nullopt;
  GgufTokenizer out = Exporter(std::move(tokenizer), files, vocab_size).read();
  // As in a folder, the file takes precedence over the key of tokenizer_config.json.
  std::string chat_template = content_of(files, "chat_template.jinja");
  if (!chat_template.empty()) out.chat_template = std::move(chat_template);
  return out;
}

}  // namespace tessera::interop
