// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of characters, as in the tokenizers library.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/bpe.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/token_merger.h"

namespace tessera::text::tokenizers {
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
    if (!list.is_array()) refuse_part(part.where(), "has merges that are not a list");
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

  // A character with the prefix or suffix of its position in the word; `buffer` may hold it.
  [[nodiscard]] std::string_view symbol(std::string_view character,
                                        bool first,
                                        bool last,
                                        std::string& buffer) const {
    if ((first || prefix_.empty()) && (!last || suffix_.empty())) return character;
    buffer.clear();
    if (!first) buffer += prefix_;
    buffer += character;
    if (last) buffer += suffix_;
    return buffer;
  }

  // The tokens of a piece as characters. As in the library, a token's place follows from the bytes
  // that the tokens before it stand for: a character without a token shifts those behind it, and
  // the bytes of a symbol that falls back to bytes are those of its prefix and suffix too.
  void add_symbols(std::string_view piece, std::vector<Token>& out) const {
    const auto most = static_cast<std::uint32_t>(piece.size());
    std::uint32_t at = 0;
    const auto add = [&](std::int32_t id, std::uint32_t bytes) {
      out.push_back({id, std::min(at, most), std::min(at + bytes, most)});
      at += bytes;
    };
    std::uint32_t pending = 0;  // bytes of unknown characters that are not added yet
    const auto flush = [&] {
      if (pending > 0) add(*unknown_, pending);
      pending = 0;
    };
    std::string buffer;
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t end = begin + character_length(piece[begin]);
      const auto bytes = static_cast<std::uint32_t>(end - begin);
      const std::string_view name =
          symbol(piece.substr(begin, end - begin), begin == 0, end == piece.size(), buffer);
      if (const auto id = vocabulary_.find(name)) {
        flush();
        add(*id, bytes);
      } else if (has_all_bytes(name)) {
        for (const char c : name)
          add(id_of_byte(c), 1);
      } else if (unknown_) {
        if (!fuse_unknown_) flush();
        pending += bytes;
      }
      begin = end;
    }
    flush();
  }

  [[nodiscard]] std::int32_t id_of_byte(char c) const {
    return byte_ids_[static_cast<unsigned char>(c)];
  }
  [[nodiscard]] bool has_all_bytes(std::string_view name) const {
    return byte_fallback_ &&
           std::all_of(name.begin(), name.end(), [&](char c) { return id_of_byte(c) >= 0; });
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

}  // namespace tessera::text::tokenizers
