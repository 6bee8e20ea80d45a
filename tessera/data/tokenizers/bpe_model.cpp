// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of characters, as in the tokenizers library.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/data/bpe.h"
#include "tessera/data/tokenizers/characters.h"
#include "tessera/data/tokenizers/models.h"
#include "tessera/data/tokenizers/token_merger.h"

namespace tessera::data::tokenizers {
namespace {

class BpeTokens final : public Model {
 public:
  explicit BpeTokens(const Part& part)
      : prefix_(part.text("continuing_subword_prefix", "")),
        suffix_(part.text("end_of_word_suffix", "")),
        fuse_unknown_(part.flag("fuse_unk", false)),
        byte_fallback_(part.flag("byte_fallback", false)),
        ignore_merges_(part.flag("ignore_merges", false)) {
    if (const json* dropout = part.find("dropout");
        dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
      unsupported_part(part.where(), "has a dropout, with which ids are random");
    }
    read_vocabulary(part.at("vocab"), part.where(), vocabulary_);
    if (part.find("unk_token") != nullptr) {
      const std::string name = part.text("unk_token");
      unknown_ = vocabulary_.find(name);
      if (!unknown_) refuse_part(part.where(), fmt::format("has no token \"{}\"", name));
    }
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[static_cast<std::size_t>(byte)] =
          vocabulary_.find(byte_token(static_cast<unsigned char>(byte))).value_or(-1);
    }
    pairs_ = PairTable(read_merges(part));
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    if (ignore_merges_) {
      if (const auto id = vocabulary_.find(piece)) {
        out.push_back({*id, 0, static_cast<std::uint32_t>(piece.size())});
        return;
      }
    }
    const std::size_t first = out.size();
    add_symbols(piece, out);
    merge_tokens(pairs_, out, first);
  }

 private:
  [[nodiscard]] std::vector<BpeModel::Merge> read_merges(const Part& part) const {
    const json& list = part.at("merges");
    if (!list.is_array()) refuse_part(part.where(), "has merges that are no list");
    std::vector<BpeModel::Merge> merges;
    merges.reserve(list.size());
    for (const json& item : list) {
      const std::string where = fmt::format("{}.merges[{}]", part.where(), merges.size());
      std::string left, right;
      if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
        left = item[0].get<std::string>();
        right = item[1].get<std::string>();
      } else if (item.is_string()) {
        const auto line = item.get<std::string>();
        const std::size_t space = line.find(' ');
        if (space == std::string::npos)
          refuse_part(where, "is not two tokens with a space between");
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else {
        refuse_part(where, "is neither a string nor a pair of strings");
      }
      const std::size_t skip = right.starts_with(prefix_) ? prefix_.size() : 0;
      merges.push_back(
          {id_of(left, where), id_of(right, where), id_of(left + right.substr(skip), where)});
    }
    return merges;
  }
  [[nodiscard]] std::int32_t id_of(const std::string& token, const std::string& where) const {
    const auto id = vocabulary_.find(token);
    if (!id) refuse_part(where, fmt::format("needs the token \"{}\", which is not there", token));
    return *id;
  }

  // The token of a character at its position in the word.
  [[nodiscard]] std::optional<std::int32_t> symbol(std::string_view character,
                                                   bool first,
                                                   bool last,
                                                   std::string& buffer) const {
    if ((first || prefix_.empty()) && (!last || suffix_.empty()))
      return vocabulary_.find(character);
    buffer.clear();
    if (!first) buffer += prefix_;
    buffer += character;
    if (last) buffer += suffix_;
    return vocabulary_.find(buffer);
  }

  bool add_bytes(std::string_view character, std::uint32_t at, std::vector<Token>& out) const {
    const auto id_of_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (!byte_fallback_ || std::any_of(character.begin(), character.end(), [&](char c) {
          return id_of_byte(c) < 0;
        })) {
      return false;
    }
    for (const char c : character) {
      out.push_back({id_of_byte(c), at, at + 1});
      ++at;
    }
    return true;
  }

  void add_symbols(std::string_view piece, std::vector<Token>& out) const {
    std::optional<Token> pending;  // pending unknown characters
    const auto flush = [&] {
      if (pending) out.push_back(*pending);
      pending.reset();
    };
    std::string buffer;
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t end = begin + character_length(piece[begin]);
      const auto from = static_cast<std::uint32_t>(begin), to = static_cast<std::uint32_t>(end);
      const std::string_view character = piece.substr(begin, end - begin);
      if (const auto id = symbol(character, begin == 0, end == piece.size(), buffer)) {
        flush();
        out.push_back({*id, from, to});
      } else if (!add_bytes(character, from, out) && unknown_) {
        if (!fuse_unknown_) flush();
        pending = Token{*unknown_, pending ? pending->begin : from, to};
      }
      begin = end;
    }
    flush();
  }

  std::string prefix_, suffix_;
  bool fuse_unknown_, byte_fallback_, ignore_merges_;
  std::optional<std::int32_t> unknown_;
  std::array<std::int32_t, 256> byte_ids_{};
  PairTable pairs_;
};

}  // namespace

ModelPtr read_bpe_model(const Part& part) {
  return std::make_shared<BpeTokens>(part);
}

}  // namespace tessera::data::tokenizers
