// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/text/bpe.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/base64.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/part_reader.h"
#include "tessera/text/tokenizers/token_merger.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestToken = 512;                 // bytes; published ones have 128
constexpr std::size_t kMostMerges = std::size_t{1} << 23;  // o200k_base has a million
constexpr std::size_t kLongestLine = 4 * kLongestToken;
constexpr std::int64_t kRanksOfLlama3 = 128000;
constexpr std::size_t kTokensOfLlama3 = 256;

// Patterns as the encodings' authors publish them.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using SpecialTokens = std::vector<std::pair<std::string, std::int64_t>>;

/// Pattern and special tokens that follow from a file's name.
struct NamedEncoding {
  std::string_view name;
  const char* pattern;
  SpecialTokens (*special)(std::int64_t ranks);
};

SpecialTokens with_end_50256(std::int64_t /*ranks*/) {
  return {{"<|endoftext|>", 50256}};
}
SpecialTokens of_p50k_edit(std::int64_t /*ranks*/) {
  return {{"<|endoftext|>", 50256},
          {"<|fim_prefix|>", 50281},
          {"<|fim_middle|>", 50282},
          {"<|fim_suffix|>", 50283}};
}
SpecialTokens of_cl100k(std::int64_t /*ranks*/) {
  return {{"<|endoftext|>", 100257},
          {"<|fim_prefix|>", 100258},
          {"<|fim_middle|>", 100259},
          {"<|fim_suffix|>", 100260},
          {"<|endofprompt|>", 100276}};
}
SpecialTokens of_o200k(std::int64_t /*ranks*/) {
  return {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
}
SpecialTokens of_harmony(std::int64_t /*ranks*/) {
  SpecialTokens out = {{"<|startoftext|>", 199998},
                       {"<|endoftext|>", 199999},
                       {"<|reserved_200000|>", 200000},
                       {"<|reserved_200001|>", 200001},
                       {"<|return|>", 200002},
                       {"<|constrain|>", 200003},
                       {"<|reserved_200004|>", 200004},
                       {"<|channel|>", 200005},
                       {"<|start|>", 200006},
                       {"<|end|>", 200007},
                       {"<|message|>", 200008},
                       {"<|reserved_200009|>", 200009},
                       {"<|reserved_200010|>", 200010},
                       {"<|reserved_200011|>", 200011},
                       {"<|call|>", 200012}};
  // One of them has the id of <|endofprompt|>; both names are accepted in text.
  for (std::int64_t id = 200013; id < 201088; ++id)
    out.emplace_back(id == 200018 ? "<|endofprompt|>" : fmt::format("<|reserved_{}|>", id), id);
  return out;
}
SpecialTokens of_qwen(std::int64_t ranks) {
  SpecialTokens out = {
      {"<|endoftext|>", ranks}, {"<|im_start|>", ranks + 1}, {"<|im_end|>", ranks + 2}};
  for (int i = 0; i < 205; ++i)
    out.emplace_back(fmt::format("<|extra_{}|>", i), ranks + 3 + i);
  return out;
}
/// The ids after the 128,000 ranks of Llama 3, with the names of Llama 3.1.
SpecialTokens of_llama3(std::int64_t ranks) {
  SpecialTokens out;
  int reserved = 0;
  const auto add = [&](const char* name) {
    out.emplace_back(name != nullptr ? std::string(name)
                                     : fmt::format("<|reserved_special_token_{}|>", reserved++),
                     ranks + static_cast<std::int64_t>(out.size()));
  };
  for (const char* name : {"<|begin_of_text|>",
                           "<|end_of_text|>",
                           static_cast<const char*>(nullptr),
                           static_cast<const char*>(nullptr),
                           "<|finetune_right_pad_id|>",
                           static_cast<const char*>(nullptr),
                           "<|start_header_id|>",
                           "<|end_header_id|>",
                           "<|eom_id|>",
                           "<|eot_id|>",
                           "<|python_tag|>"})
    add(name);
  while (out.size() < kTokensOfLlama3)
    add(nullptr);
  return out;
}

constexpr NamedEncoding kEncodings[] = {{"r50k_base", kGpt2, with_end_50256},
                                        {"p50k_base", kGpt2, with_end_50256},
                                        {"p50k_edit", kGpt2, of_p50k_edit},
                                        {"cl100k_base", kLlama3, of_cl100k},
                                        {"o200k_base", kO200k, of_o200k},
                                        {"o200k_harmony", kO200k, of_harmony},
                                        {"qwen", kQwen, of_qwen}};

/// A rank and its bytes.
struct Ranked {
  std::string bytes;
  std::int64_t rank = 0;
};

std::optional<Ranked> read_line(std::string_view line, const std::string& where) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || line.size() > kLongestLine)
    return std::nullopt;
  Ranked out;
  const std::string_view number = line.substr(space + 1);
  const auto [end, failed] =
      std::from_chars(number.data(), number.data() + number.size(), out.rank);
  if (failed != std::errc() || end != number.data() + number.size() || out.rank < 0)
    return std::nullopt;
  out.bytes = from_base64(line.substr(0, space), where);
  if (out.bytes.empty() || out.bytes.size() > kLongestToken) return std::nullopt;
  return out;
}

std::vector<Ranked> read_ranks(std::string_view content, const std::string& file) {
  std::vector<Ranked> out;
  std::size_t number = 0;
  while (!content.empty()) {
    const std::size_t length = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, length);
    content.remove_prefix(std::min(length + 1, content.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", file, number);
    std::optional<Ranked> one = read_line(line, where);
    if (!one)
      refuse_part(
          where,
          fmt::format("is not the base64 of 1 to {} bytes, a space and a rank", kLongestToken));
    out.push_back(std::move(*one));
  }
  return out;
}

std::string in_byte_characters(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes)
    out += byte_character(static_cast<unsigned char>(byte));
  return out;
}

/// Merges by the rank of two tokens' joined bytes, however the tokens were made.
class RankedBytes final : public Model {
 public:
  RankedBytes(const std::vector<Ranked>& tokens, const std::string& where) {
    for (const Ranked& token : tokens)
      vocabulary_.add(in_byte_characters(token.bytes), token.rank, where);
    for (int byte = 0; byte < kBytes; ++byte) {
      const auto id = vocabulary_.find(in_byte_characters(std::string(1, static_cast<char>(byte))));
      if (!id) refuse_part(where, fmt::format("has no token for the byte 0x{:02X}", byte));
      of_byte_[static_cast<std::size_t>(byte)] = *id;
    }
    pairs_ = pairs_of(tokens, where);
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    if (const auto id = vocabulary_.find(piece)) {
      out.push_back({*id, 0, static_cast<std::uint32_t>(piece.size())});
      return;
    }
    const std::size_t first = out.size();
    for (std::size_t at = 0; at < piece.size();) {
      const auto begin = static_cast<std::uint32_t>(at);
      const auto byte = static_cast<std::size_t>(byte_of_character(next_character(piece, at)));
      out.push_back({of_byte_[byte], begin, static_cast<std::uint32_t>(at)});
    }
    merge_tokens(pairs_, out, first);
  }

 private:
  static constexpr int kBytes = 256;

  [[nodiscard]] PairTable pairs_of(const std::vector<Ranked>& tokens,
                                   const std::string& where) const {
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (const Ranked& token : tokens) {
      if (!ids.emplace(token.bytes, static_cast<std::int32_t>(token.rank)).second)
        refuse_part(where, fmt::format("has the token of rank {} twice", token.rank));
    }
    std::vector<BpeModel::Merge> merges;
    std::vector<std::uint32_t> ranks;
    for (const Ranked& token : tokens) {
      const std::string_view bytes = token.bytes;
      for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = ids.find(bytes.substr(0, cut)), right = ids.find(bytes.substr(cut));
        if (left == ids.end() || right == ids.end()) continue;
        merges.push_back({left->second, right->second, static_cast<std::int32_t>(token.rank)});
        ranks.push_back(static_cast<std::uint32_t>(token.rank));
      }
      if (merges.size() > kMostMerges)
        refuse_part(where,
                    fmt::format("has tokens that are made in more than {} ways", kMostMerges));
    }
    return PairTable(merges, ranks);
  }

  PairTable pairs_;
  std::array<std::int32_t, kBytes> of_byte_{};
};

PreTokenizerPtr cut_by(const char* pattern, const std::string& where) {
  const json parts = {{"type", "Sequence"},
                      {"pretokenizers",
                       {{{"type", "Split"},
                         {"pattern", {{"Regex", pattern}}},
                         {"behavior", "Isolated"},
                         {"invert", false}},
                        {{"type", "ByteLevel"},
                         {"add_prefix_space", false},
                         {"trim_offsets", true},
                         {"use_regex", false}}}}};
  return read_pre_tokenizer(Part(parts, where));
}

/// Puts the token before every text.
PostProcessorPtr begin_with(const std::string& token, std::int32_t id, const std::string& where) {
  const auto special = [&] { return json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}}; };
  const auto text = [](const char* name) {
    return json{{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  const json parts = {{"type", "TemplateProcessing"},
                      {"single", json::array({special(), text("A")})},
                      {"pair", json::array({special(), text("A"), special(), text("B")})},
                      {"special_tokens",
                       {{token,
                         {{"id", token},
                          {"ids", json::array({static_cast<std::uint32_t>(id)})},
                          {"tokens", json::array({token})}}}}}};
  return read_post_processor(Part(parts, where));
}

void add_special(PipelineParts& parts, const SpecialTokens& tokens) {
  for (const auto& [content, id] : tokens) {
    AddedToken token;
    token.id = static_cast<std::int32_t>(id);
    token.content = content;
    token.normalized = false;
    token.special = true;
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

bool looks_like_tiktoken(std::string_view content) {
  const std::string_view line = content.substr(0, std::min(content.find('\n'), content.size()));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || line.size() > kLongestLine) return false;
  return line.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") == space &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos;
}

PipelineParts read_tiktoken(const fs::path& path, const Settings& settings) {
  const std::string where = path.string(), name = text::lower(path.stem().string());
  const std::vector<Ranked> tokens = read_ranks(read_small_file(path), where);
  const auto* const named = std::find_if(std::begin(kEncodings),
                                         std::end(kEncodings),
                                         [&](const auto& one) { return one.name == name; });
  const bool known = named != std::end(kEncodings);
  PipelineParts parts;
  parts.model = std::make_shared<RankedBytes>(tokens, where);
  parts.pre_tokenizer = cut_by(known ? named->pattern : kLlama3, where);
  const json bytes = {{"type", "ByteLevel"}};
  parts.decoder = read_decoder(Part(bytes, where));
  const std::int64_t ranks = parts.model->vocabulary().size();
  if (known) {
    add_special(parts, named->special(ranks));
    return parts;
  }
  std::vector<std::optional<std::string>> roles;
  for (const char* role : {"bos_token", "eos_token", "unk_token", "pad_token"})
    roles.push_back(settings.token(role));
  parts.added_tokens = settings.added_tokens(parts.model->vocabulary(), roles);
  if (ranks == kRanksOfLlama3 && parts.added_tokens.empty()) {
    add_special(parts, of_llama3(ranks));
    const AddedToken& begin = parts.added_tokens.front();
    parts.post_processor = begin_with(begin.content, begin.id, where);
    return parts;
  }
  const std::optional<std::string>& begin = roles.front();
  if (!begin || !settings.flag("add_bos_token").value_or(false)) return parts;
  const auto token = std::ranges::find(parts.added_tokens, *begin, &AddedToken::content);
  if (token == parts.added_tokens.end())
    refuse_part(where, fmt::format("has no token \"{}\", the bos_token of its settings", *begin));
  parts.post_processor = begin_with(token->content, token->id, where);
  return parts;
}

}  // namespace tessera::text::tokenizers
