// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/training.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/normalizers.h"
#include "tessera/text/tokenizers/pre_tokenizers.h"
#include "tessera/text/tokenizers/unigram_training.h"

namespace tessera::text::tokenizers {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr std::array kBertSpecial = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr std::array kUnigramSpecial = {"<pad>", "</s>", "<unk>"};
constexpr const char* kInnerPrefix = "##";

OrderedJson byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}};
}
OrderedJson bert_normalizer(bool lowercase) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", true},
          {"strip_accents", nullptr},
          {"lowercase", lowercase}};
}

/// Sentencepiece's default rules: compatibility characters are normalized, and repeated spaces are
/// merged.
OrderedJson unigram_normalizer() {
  return {{"type", "Sequence"},
          {"normalizers",
           {{{"type", "Nmt"}},
            {{"type", "NFKC"}},
            {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}},
            {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}}};
}
OrderedJson metaspace() {
  return {{"type", "Metaspace"},
          {"replacement", "\u2581"},
          {"prepend_scheme", "always"},
          {"split", true}};
}

/// The normalizer and the pre-tokenizer of each kind.
OrderedJson normalizer_of(const TrainingOptions& options) {
  switch (options.kind) {
    case TrainedKind::Bpe:
      return nullptr;
    case TrainedKind::WordPiece:
      return bert_normalizer(options.lowercase);
    case TrainedKind::Unigram:
      break;
  }
  return unigram_normalizer();
}
OrderedJson pre_tokenizer_of(TrainedKind kind) {
  switch (kind) {
    case TrainedKind::Bpe:
      return byte_level();
    case TrainedKind::WordPiece:
      return {{"type", "BertPreTokenizer"}};
    case TrainedKind::Unigram:
      break;
  }
  return metaspace();
}

std::vector<char32_t> characters_of_bytes() {
  std::vector<char32_t> out;
  for (int byte = 0; byte < 256; ++byte) {
    std::size_t at = 0;
    out.push_back(next_character(byte_character(static_cast<unsigned char>(byte)), at));
  }
  return out;
}

OrderedJson added_token(const std::string& token, std::size_t id) {
  return {{"id", id},
          {"content", token},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

OrderedJson whole_file(const std::vector<std::string>& special) {
  OrderedJson added = OrderedJson::array();
  for (std::size_t id = 0; id < special.size(); ++id)
    added.push_back(added_token(special[id], id));
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)}};
}

OrderedJson vocabulary_of(const LearntMerges& learnt) {
  OrderedJson out = OrderedJson::object();
  for (std::size_t id = 0; id < learnt.tokens.size(); ++id)
    out[learnt.tokens[id]] = id;
  return out;
}

OrderedJson bpe_model(const LearntMerges& learnt) {
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : learnt.merges)
    merges.push_back({left, right});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocabulary_of(learnt)},
          {"merges", std::move(merges)}};
}

/// [CLS] A [SEP], and [CLS] A [SEP] B [SEP] with type 1 after the first [SEP].
OrderedJson bert_frame(const std::vector<std::string>& special) {
  const auto token = [](const char* name, int type) {
    return OrderedJson{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return OrderedJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  OrderedJson tokens = OrderedJson::object();
  for (const char* name : {"[CLS]", "[SEP]"}) {
    const auto id = std::ranges::find(special, name) - special.begin();
    tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  }
  return {{"type", "TemplateProcessing"},
          {"single", {token("[CLS]", 0), text("A", 0), token("[SEP]", 0)}},
          {"pair",
           {token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)}},
          {"special_tokens", std::move(tokens)}};
}

OrderedJson word_piece_model(const LearntMerges& learnt) {
  return {{"type", "WordPiece"},
          {"unk_token", "[UNK]"},
          {"continuing_subword_prefix", kInnerPrefix},
          {"max_input_chars_per_word", 100},
          {"vocab", vocabulary_of(learnt)}};
}

OrderedJson unigram_model(const std::vector<ScoredPiece>& pieces,
                          const std::vector<std::string>& special) {
  OrderedJson vocabulary = OrderedJson::array();
  for (const std::string& token : special)
    vocabulary.push_back({token, 0.0});
  for (const auto& [piece, score] : pieces)
    vocabulary.push_back({piece, score});
  return {{"type", "Unigram"},
          {"unk_id", std::ranges::find(special, "<unk>") - special.begin()},
          {"vocab", std::move(vocabulary)},
          {"byte_fallback", false}};
}

/// Returns the whole file for a model.
OrderedJson file_of(OrderedJson model,
                    const std::vector<std::string>& special,
                    const TrainingOptions& options) {
  OrderedJson out = whole_file(special);
  out["normalizer"] = normalizer_of(options);
  out["pre_tokenizer"] = pre_tokenizer_of(options.kind);
  switch (options.kind) {
    case TrainedKind::Bpe:
      out["post_processor"] = out["decoder"] = byte_level();
      break;
    case TrainedKind::WordPiece:
      out["post_processor"] = bert_frame(special);
      out["decoder"] = {{"type", "WordPiece"}, {"prefix", kInnerPrefix}, {"cleanup", true}};
      break;
    case TrainedKind::Unigram:
      out["post_processor"] = nullptr;
      out["decoder"] = metaspace();
  }
  out["model"] = std::move(model);
  return out;
}

OrderedJson settings_of(const std::vector<std::string>& special, TrainedKind kind) {
  OrderedJson out = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  using Roles = std::vector<std::pair<const char*, std::string>>;
  Roles roles = {{"eos_token", special.front()}};
  if (kind == TrainedKind::WordPiece) {
    roles = {{"pad_token", "[PAD]"},
             {"unk_token", "[UNK]"},
             {"cls_token", "[CLS]"},
             {"sep_token", "[SEP]"},
             {"mask_token", "[MASK]"}};
  } else if (kind == TrainedKind::Unigram) {
    roles = {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  }
  for (const auto& [key, token] : roles) {
    if (std::ranges::find(special, token) != special.end()) out[key] = token;
  }
  return out;
}

/// The default special tokens, and those that the kind requires.
std::vector<std::string> usual_special(TrainedKind kind) {
  switch (kind) {
    case TrainedKind::Bpe:
      return {kEndOfText};
    case TrainedKind::WordPiece:
      return {kBertSpecial.begin(), kBertSpecial.end()};
    case TrainedKind::Unigram:
      break;
  }
  return {kUnigramSpecial.begin(), kUnigramSpecial.end()};
}
std::vector<std::string> needed_special(TrainedKind kind) {
  if (kind == TrainedKind::Bpe) return {};
  if (kind == TrainedKind::WordPiece) return {"[UNK]", "[CLS]", "[SEP]"};
  return {"</s>", "<unk>"};
}

/// A model and the number of its tokens.
struct Learnt {
  OrderedJson model;
  std::int64_t tokens = 0;
};

Learnt learn_model(const PieceCounts& pieces,
                   const std::vector<std::string>& special,
                   const TrainingOptions& options) {
  const auto taken = static_cast<std::int64_t>(special.size());
  if (options.kind == TrainedKind::Unigram) {
    const auto learnt =
        learn_unigram(pieces,
                      {.pieces = std::max<std::int64_t>(0, options.vocab_size - taken),
                       .threads = options.threads,
                       .poll = options.poll});
    return {unigram_model(learnt, special), taken + static_cast<std::int64_t>(learnt.size())};
  }
  MergeOptions how{.vocab_size = options.vocab_size,
                   .min_frequency = options.min_frequency,
                   .special = special,
                   .poll = options.poll};
  const bool bytes = options.kind == TrainedKind::Bpe;
  if (bytes) {
    how.alphabet = characters_of_bytes();
  } else {
    how.inner_prefix = kInnerPrefix;
  }
  const LearntMerges learnt = learn_merges(pieces, how);
  return {bytes ? bpe_model(learnt) : word_piece_model(learnt),
          static_cast<std::int64_t>(learnt.tokens.size())};
}

}  // namespace

PieceCounter::PieceCounter(const TrainingOptions& options) {
  const json pieces(pre_tokenizer_of(options.kind)), normalizer(normalizer_of(options));
  pieces_ = read_pre_tokenizer(Part(pieces, "pre_tokenizer"));
  if (!normalizer.is_null()) normalizer_ = read_normalizer(Part(normalizer, "normalizer"));
}

void PieceCounter::count(std::string_view text,
                         std::unordered_map<std::string, std::int64_t>& counts) const {
  if (text.empty()) return;
  AlignedText whole(text, 0, /*tracked=*/false);
  if (normalizer_) normalizer_->apply(whole);
  std::vector<AlignedText> pieces;
  pieces_->apply(std::move(whole), pieces);
  for (const AlignedText& piece : pieces)
    ++counts[piece.str()];
}

std::vector<std::string> special_tokens(const TrainingOptions& options) {
  const std::vector<std::string>& out = options.special;
  if (out.empty()) return usual_special(options.kind);
  for (const std::string& token : out) {
    TESSERA_REQUIRE(
        !token.empty() && is_valid_utf8(token) && std::ranges::count(out, token) == 1,
        Config,
        fmt::format("the special token \"{}\" is empty, no UTF-8, or stands twice", token),
        "name every special token once");
  }
  for (const std::string& needed : needed_special(options.kind)) {
    TESSERA_REQUIRE(std::ranges::find(out, needed) != out.end(),
                    Config,
                    fmt::format("a {} tokenizer has no special token {}",
                                options.kind == TrainedKind::WordPiece ? "WordPiece" : "Unigram",
                                needed),
                    fmt::format("add it to the special tokens, or name none: then they are {}",
                                text::join(usual_special(options.kind), ", ")));
  }
  return out;
}

TrainedTokenizer train_tokenizer(const PieceCounts& pieces, const TrainingOptions& options) {
  const std::vector<std::string> special = special_tokens(options);
  TESSERA_REQUIRE(!pieces.empty(), Data, "there is no text to learn from", "name files with text");
  Learnt learnt = learn_model(pieces, special, options);
  TESSERA_REQUIRE(
      learnt.tokens <= options.vocab_size,
      Config,
      fmt::format("{} tokens are too few: special tokens and the characters of the text "
                  "are {}",
                  options.vocab_size,
                  learnt.tokens),
      fmt::format("ask for at least {}", learnt.tokens));
  const OrderedJson file = file_of(std::move(learnt.model), special, options);
  return {.tokenizer_json = file.dump(2) + "\n",
          .config_json = settings_of(special, options.kind).dump(2) + "\n",
          .tokens = learnt.tokens,
          .pieces = static_cast<std::int64_t>(pieces.size())};
}

}  // namespace tessera::text::tokenizers
