// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/models.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

class WordLevelModel final : public Model {
 public:
  explicit WordLevelModel(const Part& part) {
    read_vocabulary(part.at("vocab"), part.where(), vocabulary_);
    unknown_ = vocabulary_.find(part.text("unk_token", ""));
  }
  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    auto id = vocabulary_.find(piece);
    if (!id) id = unknown_;
    TESSERA_REQUIRE(
        id.has_value(),
        Data,
        fmt::format("\"{}\" has no token, and the tokenizer has none for the unknown", piece),
        "use a tokenizer with an unk_token");
    out.push_back({*id, 0, static_cast<std::uint32_t>(piece.size())});
  }

 private:
  std::optional<std::int32_t> unknown_;
};

/// Takes the longest token first; a word with a part that is not a token is unknown as a whole.
class WordPieceModel final : public Model {
 public:
  WordPieceModel(Vocabulary vocabulary,
                 std::int32_t unknown,
                 std::string prefix,
                 std::int64_t most_characters)
      : prefix_(std::move(prefix)), most_characters_(most_characters), unknown_(unknown) {
    vocabulary_ = std::move(vocabulary);
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id)
      longest_ = std::max(longest_, vocabulary_.text(id).size());
  }
  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    const std::size_t first = out.size();
    const Token whole{unknown_, 0, static_cast<std::uint32_t>(piece.size())};
    if (static_cast<std::int64_t>(count_characters(piece)) > most_characters_) {
      out.push_back(whole);
      return;
    }
    std::string buffer = prefix_;
    for (std::size_t begin = 0; begin < piece.size();) {
      std::size_t end = std::min(piece.size(), begin + longest_);
      while (end < piece.size() && is_inside(piece[end]))
        --end;
      std::optional<std::int32_t> id;
      for (; end > begin; end = before(piece, end)) {
        std::string_view part = piece.substr(begin, end - begin);
        if (begin > 0) {
          buffer.resize(prefix_.size());
          part = buffer.append(part);
        }
        id = vocabulary_.find(part);
        if (id) break;
      }
      if (!id) {
        out.resize(first);
        out.push_back(whole);
        return;
      }
      out.push_back({*id, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
      begin = end;
    }
  }

 private:
  static bool is_inside(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }
  static std::size_t before(std::string_view text, std::size_t end) {
    --end;
    while (end > 0 && is_inside(text[end]))
      --end;
    return end;
  }
  std::string prefix_;
  std::int64_t most_characters_;
  std::int32_t unknown_;
  std::size_t longest_ = 1;
};

ModelPtr read_word_piece_model(const Part& part) {
  Vocabulary vocabulary;
  read_vocabulary(part.at("vocab"), part.where(), vocabulary);
  const std::string name = part.text("unk_token", "[UNK]");
  const auto unknown = vocabulary.find(name);
  if (!unknown) refuse_part(part.where(), fmt::format("has no token \"{}\"", name));
  return make_word_piece_model(std::move(vocabulary),
                               *unknown,
                               part.text("continuing_subword_prefix", "##"),
                               part.integer("max_input_chars_per_word", 100));
}

}  // namespace

void Vocabulary::add(const std::string& text, std::int64_t id, const std::string& where) {
  if (id < 0 || id > kLargestId)
    refuse_part(where, fmt::format("gives \"{}\" the id {}", text, id));
  if (text.size() > budget::kTokenBytes)
    refuse_part(where, fmt::format("has a token of {} bytes with the id {}", text.size(), id));
  const auto index = static_cast<std::size_t>(id);
  if (texts_.size() <= index) {
    texts_.resize(index + 1);
    present_.resize(index + 1);
  }
  if (present_[index] && texts_[index] != text)
    refuse_part(where, fmt::format("has two tokens of the id {}", id));
  texts_[index] = text;
  present_[index] = true;
  ids_.emplace(text, static_cast<std::int32_t>(id));
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool Vocabulary::has(std::int32_t id) const {
  return id >= 0 && id < size() && present_[static_cast<std::size_t>(id)];
}

const std::string& Vocabulary::text(std::int32_t id) const {
  static const std::string none;
  return has(id) ? texts_[static_cast<std::size_t>(id)] : none;
}

void read_vocabulary(const json& object, const std::string& where, Vocabulary& out) {
  if (!object.is_object()) refuse_part(where, "has a vocab that is not an object {token: id}");
  for (const auto& [token, id] : object.items()) {
    if (!id.is_number_integer())
      refuse_part(where, fmt::format("gives \"{}\" an id that is not an integer", token));
    out.add(token, id.get<std::int64_t>(), where);
  }
}

ModelPtr make_word_piece_model(Vocabulary vocabulary,
                               std::int32_t unknown,
                               std::string prefix,
                               std::int64_t most_characters) {
  return std::make_shared<WordPieceModel>(
      std::move(vocabulary), unknown, std::move(prefix), most_characters);
}

std::string byte_token(unsigned char byte) {
  return fmt::format("<0x{:02X}>", byte);
}

ModelPtr read_model(const Part& part) {
  std::string type = part.text("type", "");
  if (type.empty()) {
    const json* vocab = part.find("vocab");
    type = part.find("merges") != nullptr                     ? "BPE"
           : vocab != nullptr && vocab->is_array()            ? "Unigram"
           : part.find("max_input_chars_per_word") != nullptr ? "WordPiece"
                                                              : "WordLevel";
  }
  if (type == "BPE") return read_bpe_model(part);
  if (type == "Unigram") return read_unigram_model(part);
  if (type == "WordPiece") return read_word_piece_model(part);
  if (type == "WordLevel") return std::make_shared<WordLevelModel>(part);
  unsupported_part(part.where(), fmt::format("is a model of the unknown type \"{}\"", type));
}

}  // namespace tessera::text::tokenizers
