// SPDX-License-Identifier: Apache-2.0
// Reads the files of byte-level BPE tokenizers.
#include <array>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/text/bpe.h"
#include "tessera/text/small_file.h"
#include "tessera/text/unicode_class.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::int64_t kLargestId = (std::int64_t{1} << 24) - 1;
constexpr std::string_view kVocabularyFix =
    "take vocab.json and merges.txt of the same GPT-2 style tokenizer";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(Error::Kind::Format, path + ": " + what, std::string(kVocabularyFix));
}

// GPT-2 writes every byte as a printable character: 188 bytes stand for themselves, the other 68
// are U+0100 + n.
std::array<char32_t, 256> printable_bytes() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    characters[b] = self ? static_cast<char32_t>(b) : next++;
  }
  return characters;
}

// The bytes that a vocabulary token represents; nothing if a character is not one of GPT-2's.
std::optional<std::string> bytes_of_printable(std::string_view text) {
  static const auto inverse = [] {
    std::array<int, 0x144> map{};
    map.fill(-1);
    const auto characters = printable_bytes();
    for (int b = 0; b < 256; ++b)
      map[characters[static_cast<std::size_t>(b)]] = b;
    return map;
  }();
  std::string out;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const Decoded c = decode_utf8(p, end);
    if (!c.valid || c.code_point >= inverse.size() || inverse[c.code_point] < 0)
      return std::nullopt;
    out.push_back(static_cast<char>(inverse[c.code_point]));
    p += c.length;
  }
  return out;
}

Json parse(const std::string& path) {
  const std::string text = read_small_file(path);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    refuse(path, fmt::format("is not valid JSON ({})", e.what()));
  }
}

std::int32_t id_of(const std::string& token, const Json& id, const std::string& path) {
  if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
      id.get<std::int64_t>() > kLargestId) {
    refuse(path,
           fmt::format("token \"{}\" has the id {}, which is not an integer from 0 to {}",
                       token,
                       id.dump(),
                       kLargestId));
  }
  return id.get<std::int32_t>();
}

Vocabulary vocabulary_of(const Json& object, const std::string& path) {
  if (!object.is_object()) refuse(path, "the vocabulary is not an object {token: id}");
  Vocabulary vocabulary;
  vocabulary.reserve(object.size());
  for (const auto& [token, id] : object.items())
    vocabulary.emplace(token, id_of(token, id, path));
  return vocabulary;
}

// Fills tokens and end of text.
BpeModel model_of(const Vocabulary& vocabulary, const std::string& path) {
  BpeModel model;
  for (const auto& [token, id] : vocabulary) {
    const auto index = static_cast<std::size_t>(id);
    if (model.tokens.size() <= index) model.tokens.resize(index + 1);
    if (!model.tokens[index].empty()) refuse(path, fmt::format("two tokens have the id {}", id));
    const auto bytes = bytes_of_printable(token);
    if (token.empty() || !bytes)
      refuse(path,
             fmt::format("token \"{}\" (id {}) is not in GPT-2's byte characters", token, id));
    model.tokens[index] = *bytes;
  }
  const auto end = vocabulary.find(std::string(kEndOfText));
  if (end == vocabulary.end()) refuse(path, fmt::format("has no token \"{}\"", kEndOfText));
  model.end_of_text = end->second;
  return model;
}

void require_all_bytes(const Vocabulary& vocabulary, const std::string& path) {
  const auto characters = printable_bytes();
  for (std::size_t b = 0; b < characters.size(); ++b) {
    std::string token;
    append_utf8(token, characters[b]);
    if (!vocabulary.count(token))
      refuse(path, fmt::format("has no token for byte 0x{:02X} (\"{}\")", b, token));
  }
}

void add_merge(BpeModel& model,
               const Vocabulary& vocabulary,
               const std::string& left,
               const std::string& right,
               const std::string& where) {
  const auto id_of = [&](const std::string& token) {
    const auto it = vocabulary.find(token);
    if (it == vocabulary.end())
      refuse(where,
             fmt::format("\"{}\" of merge \"{} {}\" is not in the vocabulary", token, left, right));
    return it->second;
  };
  model.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
}

bool absent(const Json& object, const char* key) {
  return !object.contains(key) || object[key].is_null() || object[key] == "" ||
         object[key] == false;
}

void require_plain(bool plain, const std::string& path, const std::string& part) {
  TESSERA_REQUIRE(
      plain,
      Unsupported,
      fmt::format(
          "{}: {} is not what GPT-2's tokenizer does, and nothing else is read yet", path, part),
      "use tokenizer.type gpt2 with this vocabulary's vocab.json and merges.txt, or a GPT-2 "
      "folder");
}

void require_gpt2_parts(const Json& root, const std::string& path) {
  const auto typed = [&](const char* key, const char* type) {
    return root.contains(key) && root[key].is_object() && root[key].value("type", "") == type;
  };
  require_plain(root.is_object() && typed("model", "BPE"), path, "model.type");
  require_plain(absent(root, "normalizer"), path, "normalizer");
  require_plain(typed("pre_tokenizer", "ByteLevel"), path, "pre_tokenizer.type");
  const Json& split = root["pre_tokenizer"];
  require_plain(absent(split, "add_prefix_space"), path, "pre_tokenizer.add_prefix_space");
  require_plain(split.value("use_regex", true), path, "pre_tokenizer.use_regex");
  for (const char* key : {"dropout",
                          "continuing_subword_prefix",
                          "end_of_word_suffix",
                          "byte_fallback",
                          "ignore_merges"}) {
    require_plain(absent(root["model"], key), path, fmt::format("model.{}", key));
  }
  for (const Json& token : root.value("added_tokens", Json::array())) {
    require_plain(
        token.is_object() && token.value("content", "") == kEndOfText, path, "added_tokens");
    require_plain(
        absent(token, "lstrip") && absent(token, "rstrip") && absent(token, "single_word"),
        path,
        "added_tokens");
  }
}

}  // namespace

BpeModel read_bpe(const std::string& vocab_path, const std::string& merges_path) {
  const Vocabulary vocabulary = vocabulary_of(parse(vocab_path), vocab_path);
  BpeModel model = model_of(vocabulary, vocab_path);
  require_all_bytes(vocabulary, vocab_path);
  const std::string text = read_small_file(merges_path);
  model.merges.reserve(vocabulary.size());
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.substr(0, 8) == "#version")) continue;
    const std::size_t space = line.find(' ');
    const std::string where = fmt::format("{}:{}", merges_path, number);
    if (space == 0 || space >= line.size() - 1 ||
        line.find(' ', space + 1) != std::string_view::npos) {
      refuse(where, "expected two tokens with one space between them");
    }
    add_merge(model,
              vocabulary,
              std::string(line.substr(0, space)),
              std::string(line.substr(space + 1)),
              where);
  }
  return model;
}

void require_gpt2_parts_of(const std::string& path) {
  const Json root = parse(path);
  try {
    require_gpt2_parts(root, path);
  } catch (const Json::exception& e) {
    refuse(path, fmt::format("is not a tokenizer.json ({})", e.what()));
  }
}

BpeModel read_bpe_json(const std::string& path) {
  const Json root = parse(path);
  try {
    require_gpt2_parts(root, path);
    const Json& part = root["model"];
    Vocabulary vocabulary = vocabulary_of(part.value("vocab", Json()), path);
    for (const Json& token : root.value("added_tokens", Json::array())) {
      const auto content = token.at("content").get<std::string>();
      vocabulary.emplace(content, id_of(content, token.at("id"), path));
    }
    BpeModel model = model_of(vocabulary, path);
    require_all_bytes(vocabulary, path);
    for (const Json& merge : part.value("merges", Json::array())) {
      const std::string where = fmt::format("{}: merge {}", path, model.merges.size());
      if (merge.is_array()) {
        add_merge(model,
                  vocabulary,
                  merge.at(0).get<std::string>(),
                  merge.at(1).get<std::string>(),
                  where);
        continue;
      }
      const std::string line = merge.get<std::string>();
      const std::size_t space = line.find(' ');
      if (space == std::string::npos)
        refuse(where, "expected two tokens with one space between them");
      add_merge(model, vocabulary, line.substr(0, space), line.substr(space + 1), where);
    }
    return model;
  } catch (const Json::exception& e) {
    refuse(path, fmt::format("is not a tokenizer.json ({})", e.what()));
  }
}

}  // namespace tessera::text
