// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/tokenizer.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/gguf/splits.h"

namespace tessera::interop {
namespace {

using checkpoint::JsonCursor;

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which represents a space
constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 24;
constexpr std::size_t kMaxPiece = 512;  ///< maximum bytes of a piece for which merges are derived

json::Value text(std::string_view value) {
  return json::Value::string(std::string(value));
}
json::Value flag(bool value) {
  return json::Value::boolean(value);
}
using json::Value;

/// The tables of a file's tokenizer.
class Tables {
 public:
  explicit Tables(const GgufFile& file)
      : file_(file),
        tokens_(*file.texts("tokenizer.ggml.tokens")),
        types_(file.find("tokenizer.ggml.token_type")) {
    if (tokens_.size() > kMaxTokens || tokens_.empty())
      file.refuse(fmt::format("has a tokenizer of {} tokens", tokens_.size()));
    if (types_ != nullptr && (!types_->is_array() || types_->count != tokens_.size()))
      file.refuse("has another number of tokenizer.ggml.token_type than of tokens");
  }

  [[nodiscard]] std::size_t size() const { return tokens_.size(); }
  [[nodiscard]] std::string_view token(std::size_t id) const { return tokens_[id]; }
  [[nodiscard]] TokenKind kind(std::size_t id) const {
    const auto value = types_ == nullptr ? std::nullopt : types_->integer(id);
    if (!value || *value < 1 || *value > 6) return TokenKind::Normal;
    return static_cast<TokenKind>(*value);
  }
  /// The token whose id a key contains; nothing without the key.
  [[nodiscard]] std::optional<std::size_t> named(std::string_view key) const {
    const auto id = file_.integer(fmt::format("tokenizer.ggml.{}", key));
    if (!id) return std::nullopt;
    if (*id < 0 || static_cast<std::size_t>(*id) >= size())
      file_.refuse(fmt::format("tokenizer.ggml.{} is {} of {} tokens", key, *id, size()));
    return static_cast<std::size_t>(*id);
  }
  /// The text of that token as JSON; null without the key.
  [[nodiscard]] Value named_text(std::string_view key) const {
    const auto id = named(key);
    return id ? text(token(*id)) : Value();
  }

  /// {token: id} of all used tokens, with names from `spelled`.
  template <class Spelled>
  [[nodiscard]] Value vocabulary(Spelled spelled) const {
    std::set<std::string, std::less<>> seen;
    std::vector<Value::Member> out;
    for (std::size_t id = 0; id < size(); ++id) {
      if (kind(id) == TokenKind::Unused) continue;
      std::string name = spelled(id);
      if (!seen.insert(name).second)
        file_.refuse(fmt::format("has the token {} twice", JsonCursor::shown(name)));
      out.emplace_back(std::move(name), Value::integer(static_cast<std::int64_t>(id)));
    }
    return Value::object(std::move(out));
  }
  /// Tokens that are matched in a text before it is split.
  [[nodiscard]] Value added() const {
    std::vector<Value> out;
    for (std::size_t id = 0; id < size(); ++id) {
      const bool special = kind(id) == TokenKind::Control || kind(id) == TokenKind::Unknown;
      if (!special && kind(id) != TokenKind::User) continue;
      out.push_back(Value::object({{"id", Value::integer(static_cast<std::int64_t>(id))},
                                   {"content", text(token(id))},
                                   {"single_word", flag(false)},
                                   {"lstrip", flag(false)},
                                   {"rstrip", flag(false)},
                                   {"normalized", flag(false)},
                                   {"special", flag(special)}}));
    }
    return Value::array(std::move(out));
  }

 private:
  const GgufFile& file_;
  const std::vector<std::string_view>& tokens_;
  const GgufValue* types_;
};

Value special(const Tables& tables, std::size_t id) {
  return Value::object(
      {{"SpecialToken",
        Value::object({{"id", text(tables.token(id))}, {"type_id", Value::integer(0)}})}});
}

/// [before] A [after], in the format of the tokenizers library.
Value surrounded(const Tables& tables,
                 std::optional<std::size_t> before,
                 std::optional<std::size_t> after) {
  std::vector<Value> single, pair;
  std::vector<Value::Member> tokens;
  const auto sequence = [](const char* id, std::int64_t type) {
    return Value::object(
        {{"Sequence", Value::object({{"id", text(id)}, {"type_id", Value::integer(type)}})}});
  };
  const auto name = [&](std::size_t id) {
    const std::string token(tables.token(id));
    const auto known = std::find_if(
        tokens.begin(), tokens.end(), [&](const auto& one) { return one.first == token; });
    if (known != tokens.end()) return;
    tokens.emplace_back(
        token,
        Value::object({{"id", text(token)},
                       {"ids", Value::array({Value::integer(static_cast<std::int64_t>(id))})},
                       {"tokens", Value::array({text(token)})}}));
  };
  for (const std::optional<std::size_t>& id : {before, after}) {
    if (id) name(*id);
  }
  if (before) single.push_back(special(tables, *before));
  single.push_back(sequence("A", 0));
  if (after) single.push_back(special(tables, *after));
  pair = single;
  if (before && !after) pair.push_back(special(tables, *before));
  pair.push_back(sequence("B", 1));
  if (after) pair.push_back(special(tables, *after));
  return Value::object({{"type", text("TemplateProcessing")},
                        {"single", Value::array(std::move(single))},
                        {"pair", Value::array(std::move(pair))},
                        {"special_tokens", Value::object(std::move(tokens))}});
}

Value whole(const Tables& tables,
            Value normalizer,
            Value pre_tokenizer,
            Value post_processor,
            Value decoder,
            Value model) {
  return Value::object({{"version", text("1.0")},
                        {"truncation", Value()},
                        {"padding", Value()},
                        {"added_tokens", tables.added()},
                        {"normalizer", std::move(normalizer)},
                        {"pre_tokenizer", std::move(pre_tokenizer)},
                        {"post_processor", std::move(post_processor)},
                        {"decoder", std::move(decoder)},
                        {"model", std::move(model)}});
}

/// The tokens that the file's metadata puts before and after a text.
Value template_of(const GgufFile& file, const Tables& tables, bool begins, Value otherwise) {
  const auto before = file.flag("tokenizer.ggml.add_bos_token").value_or(begins)
                          ? tables.named("bos_token_id")
                          : std::nullopt;
  const auto after = file.flag("tokenizer.ggml.add_eos_token").value_or(false)
                         ? tables.named("eos_token_id")
                         : std::nullopt;
  return before || after ? surrounded(tables, before, after) : otherwise;
}

Value byte_level(bool splits) {
  return Value::object({{"type", text("ByteLevel")},
                        {"add_prefix_space", flag(false)},
                        {"trim_offsets", flag(true)},
                        {"use_regex", flag(splits)}});
}

/// Returns nothing for an unknown way of splitting text.
std::optional<Value> byte_bpe(const GgufFile& file, const Tables& tables) {
  const auto split = find_split(file.text("tokenizer.ggml.pre").value_or("default"));
  if (!split) return std::nullopt;
  std::vector<Value> merges;
  if (const auto* stored = file.texts("tokenizer.ggml.merges")) {
    for (const std::string_view merge : *stored)
      merges.push_back(text(merge));
  }
  Value vocabulary =
      tables.vocabulary([&](std::size_t id) { return std::string(tables.token(id)); });
  return whole(tables,
               split->nfc ? Value::object({{"type", text("NFC")}}) : Value(),
               split->pre_tokenizer,
               template_of(file, tables, false, byte_level(true)),
               byte_level(true),
               Value::object({{"type", text("BPE")},
                              {"dropout", Value()},
                              {"unk_token", Value()},
                              {"continuing_subword_prefix", Value()},
                              {"end_of_word_suffix", Value()},
                              {"fuse_unk", flag(false)},
                              {"byte_fallback", flag(false)},
                              {"ignore_merges", flag(split->ignore_merges)},
                              {"vocab", std::move(vocabulary)},
                              {"merges", Value::array(std::move(merges))}}));
}

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Every way to form a token from two others, in descending order of score: the order in which
/// transformers derives merges from a sentencepiece model.
Value merges_of(const GgufFile& file, const Tables& tables) {
  const GgufValue* scores = file.find("tokenizer.ggml.scores");
  if (scores == nullptr || !scores->is_array() || scores->count != tables.size())
    file.refuse("has no score for each token");
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tables.size(); ++id)
    ids.emplace(tables.token(id), id);
  struct Merge {
    double score;
    std::string_view left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tables.size(); ++id) {
    const std::string_view piece = tables.token(id);
    if (piece.size() > kMaxPiece || tables.kind(id) != TokenKind::Normal) continue;
    std::vector<std::tuple<std::size_t, std::size_t, std::size_t>> ways;
    for (std::size_t at = 1; at < piece.size(); ++at) {
      if (!begins_character(piece[at])) continue;
      const auto left = ids.find(piece.substr(0, at)), right = ids.find(piece.substr(at));
      if (left != ids.end() && right != ids.end())
        ways.emplace_back(left->second, right->second, at);
    }
    std::sort(ways.begin(), ways.end());
    for (const auto& [left, right, at] : ways)
      merges.push_back({scores->number(id).value_or(0), piece.substr(0, at), piece.substr(at)});
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left.size(), a.right.size()) >
           std::tuple(b.score, b.left.size(), b.right.size());
  });
  std::vector<Value> out;
  for (const Merge& merge : merges)
    out.push_back(Value::array({text(merge.left), text(merge.right)}));
  return Value::array(std::move(out));
}

Value sentencepiece(const GgufFile& file, const Tables& tables) {
  const auto replace = [](std::string_view from, std::string_view to) {
    return Value::object({{"type", text("Replace")},
                          {"pattern", Value::object({{"String", text(from)}})},
                          {"content", text(to)}});
  };
  const bool prefix = file.flag("tokenizer.ggml.add_space_prefix").value_or(true);
  std::vector<Value> before, after = {replace(kSpace, " "),
                                      Value::object({{"type", text("ByteFallback")}}),
                                      Value::object({{"type", text("Fuse")}})};
  if (prefix) {
    before.push_back(Value::object({{"type", text("Prepend")}, {"prepend", text(kSpace)}}));
    after.push_back(Value::object({{"type", text("Strip")},
                                   {"content", text(" ")},
                                   {"start", Value::integer(1)},
                                   {"stop", Value::integer(0)}}));
  }
  before.push_back(replace(" ", kSpace));
  Value vocabulary =
      tables.vocabulary([&](std::size_t id) { return std::string(tables.token(id)); });
  return whole(tables,
               Value::object({{"type", text("Sequence")}, {"normalizers", Value::array(before)}}),
               Value(),
               template_of(file, tables, true, Value()),
               Value::object({{"type", text("Sequence")}, {"decoders", Value::array(after)}}),
               Value::object({{"type", text("BPE")},
                              {"dropout", Value()},
                              {"unk_token", tables.named_text("unknown_token_id")},
                              {"continuing_subword_prefix", Value()},
                              {"end_of_word_suffix", Value()},
                              {"fuse_unk", flag(true)},
                              {"byte_fallback", flag(true)},
                              {"ignore_merges", flag(false)},
                              {"vocab", std::move(vocabulary)},
                              {"merges", merges_of(file, tables)}}));
}

/// Files mark the tokens that begin a word; tokenizers mark the others.
Value word_pieces(const GgufFile& file, const Tables& tables) {
  const auto cls =
      tables.named("cls_token_id") ? tables.named("cls_token_id") : tables.named("bos_token_id");
  const auto separator = tables.named("seperator_token_id");  // the key's spelling in files
  const auto unknown = tables.named("unknown_token_id");
  if (!cls || !separator || !unknown) file.refuse("has no tokens [CLS], [SEP] and [UNK]");
  Value vocabulary = tables.vocabulary([&](std::size_t id) {
    const std::string_view token = tables.token(id);
    const TokenKind kind = tables.kind(id);
    if (kind == TokenKind::Control || kind == TokenKind::Unknown) return std::string(token);
    if (token.starts_with(kSpace)) return std::string(token.substr(kSpace.size()));
    return "##" + std::string(token);
  });
  return whole(
      tables,
      Value::object({{"type", text("BertNormalizer")},
                     {"clean_text", flag(true)},
                     {"handle_chinese_chars", flag(true)},
                     {"strip_accents", Value()},
                     {"lowercase", flag(true)}}),
      Value::object({{"type", text("BertPreTokenizer")}}),
      surrounded(tables, cls, separator),
      Value::object({{"type", text("WordPiece")}, {"prefix", text("##")}, {"cleanup", flag(true)}}),
      Value::object({{"type", text("WordPiece")},
                     {"unk_token", text(tables.token(*unknown))},
                     {"continuing_subword_prefix", text("##")},
                     {"max_input_chars_per_word", Value::integer(100)},
                     {"vocab", std::move(vocabulary)}}));
}

std::optional<Value> tokenizer_json(const GgufFile& file, const Tables& tables) {
  const std::string tokenizer = file.text("tokenizer.ggml.model").value_or("");
  if (tokenizer == "gpt2") return byte_bpe(file, tables);
  if (tokenizer == "llama") return sentencepiece(file, tables);
  if (tokenizer == "bert") return word_pieces(file, tables);
  return std::nullopt;
}

}  // namespace

FilesBeside gguf_tokenizer_files(const GgufFile& file, std::optional<std::int64_t> max_positions) {
  if (file.texts("tokenizer.ggml.tokens") == nullptr) return {};
  const Tables tables(file);
  FilesBeside out;
  if (const auto tokenizer = tokenizer_json(file, tables))
    out.emplace_back("tokenizer.json", tokenizer->dump(2) + "\n");
  Value config = Value::object({{"tokenizer_class", text("PreTrainedTokenizerFast")},
                                {"clean_up_tokenization_spaces", flag(false)}});
  if (max_positions) config["model_max_length"] = Value::integer(*max_positions);
  for (const auto& [key, name] : kSpecialTokens) {
    if (const Value token = tables.named_text(key); !token.is_null())
      config[std::string(name)] = token;
  }
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    if (const auto value = file.flag(fmt::format("tokenizer.ggml.{}", key)))
      config[key] = flag(*value);
  }
  if (const auto chat = file.text("tokenizer.chat_template")) config["chat_template"] = text(*chat);
  out.emplace_back("tokenizer_config.json", config.dump(2) + "\n");
  Value generation = Value::object();
  add_token_ids(file, generation);
  if (!generation.members().empty())
    out.emplace_back("generation_config.json", generation.dump(2) + "\n");
  return out;
}

void add_token_ids(const GgufFile& file, Value& config) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kIds = {
      {{"bos_token_id", "bos_token_id"},
       {"eos_token_id", "eos_token_id"},
       {"padding_token_id", "pad_token_id"}}};
  for (const auto& [key, name] : kIds) {
    if (const auto id = file.integer(fmt::format("tokenizer.ggml.{}", key)))
      config[name] = Value::integer(*id);
  }
}

}  // namespace tessera::interop
