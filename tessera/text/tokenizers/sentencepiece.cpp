// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/sentencepiece.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/token_merger.h"
#include "tessera/text/tokenizers/trie.h"

namespace tessera::text::tokenizers {
namespace {

using Type = SentencePieceModel::Type;
constexpr std::string_view kMark = "\u2581";
constexpr char32_t kMarkCharacter = 0x2581;
constexpr double kBonusLoss = 0.1;  // score of user-defined pieces
constexpr float kUnknownLoss = 10;
constexpr std::size_t kLongestSum = std::size_t{1}
                                    << 20;  // bytes; then the memory would grow large

Trie user_defined(const SentencePieceModel& model) {
  Trie out;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == Type::UserDefined)
      out.add(model.pieces[id].text, static_cast<std::int32_t>(id));
  }
  return out;
}

bool has_user_defined(const SentencePieceModel& model) {
  return std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == Type::UserDefined;
  });
}

std::size_t longest(const Trie& trie, std::string_view text) {
  std::size_t out = 0;
  trie.prefixes(text, [&](std::size_t length, std::int32_t) { out = length; });
  return out;
}

class SentencePieceNormalizer final : public Normalizer {
 public:
  SentencePieceNormalizer(const SentencePieceModel& model,
                          DummyPrefix dummy,
                          const std::string& where)
      : whole_(user_defined(model)),
        has_whole_(has_user_defined(model)),
        dummy_(model.add_dummy_prefix && dummy == DummyPrefix::AsTrained),
        first_(dummy == DummyPrefix::First),
        behind_(model.space_behind),
        remove_(model.remove_extra_spaces),
        escape_(model.escape_spaces) {
    if (!model.charsmap.empty()) charsmap_.emplace(model.charsmap, where);
  }

  void apply(AlignedText& text) const override {
    const std::string& s = text.str();
    std::size_t at = 0;
    while (remove_ && !first_ && at < s.size()) {
      const Prefix prefix = prefix_of(std::string_view(s).substr(at));
      if (prefix.written != " ") break;
      at += prefix.length;
    }
    if (at == s.size()) {
      text.transform({}, at);
      return;
    }
    const bool begins = first_ && text.at_start();
    // By the rules, the mark at the beginning of a text may be a space, which absorbs the following
    // ones.
    bool space = remove_ && (!first_ || (begins && prefix_of(kMark).written.ends_with(' ')));
    Changes out;
    for (out.skipped = at; at < s.size();) {
      const Prefix prefix = prefix_in(std::string_view(s).substr(at));
      std::string_view written = prefix.written;
      while (space && written.starts_with(' '))
        written.remove_prefix(1);
      if (!written.empty()) space = remove_ && written.ends_with(' ');
      out.write(std::string_view(s).substr(at, prefix.length), written, escape_);
      at += prefix.length;
    }
    text.transform(out.list, out.skipped);
    add_space(text, begins || (dummy_ && !behind_), /*before=*/true);
    if (remove_) strip_end(text);
    add_space(text, dummy_ && behind_, /*before=*/false);
  }

 private:
  struct Prefix {
    std::string_view written;
    std::size_t length;
  };
  [[nodiscard]] Prefix prefix_of(std::string_view text) const {
    if (has_whole_) {
      if (const std::size_t length = longest(whole_, text); length > 0)
        return {text.substr(0, length), length};
    }
    if (charsmap_) {
      const Charsmap::Match match = charsmap_->longest(text);
      const bool whole = match.length == text.size() ||
                         (static_cast<unsigned char>(text[match.length]) & 0xC0U) != 0x80U;
      if (match.length > 0 && whole) return {match.text, match.length};
    }
    const std::size_t length = character_length(text[0]);
    return {text.substr(0, length), length};
  }
  [[nodiscard]] Prefix prefix_in(std::string_view text) const {
    if (!first_ || !text.starts_with(kMark)) return prefix_of(text);
    return {prefix_of(" ").written, kMark.size()};
  }

  struct Changes {
    std::vector<Change> list;
    std::size_t skipped = 0;
    void write(std::string_view read, std::string_view written, bool escape) {
      const auto removed = static_cast<std::int32_t>(count_characters(read));
      std::int32_t count = 0;
      for (std::size_t at = 0; at < written.size(); ++count) {
        const char32_t c = next_character(written, at);
        list.push_back({escape && c == ' ' ? kMarkCharacter : c, count < removed ? 0 : 1});
      }
      if (count >= removed) return;
      // Removed characters are attributed to the preceding one; among inserted characters, to the
      // first.
      std::size_t owner = list.size();
      while (owner > 0 && list[owner - 1].delta > 0)
        --owner;
      if (owner == 0) {
        skipped += read.size();
      } else {
        list[owner - 1].delta += count - removed;
      }
    }
  };

  void add_space(AlignedText& text, bool wanted, bool before) const {
    if (!wanted) return;
    const std::string_view space = escape_ ? kMark : std::string_view(" ");
    if (text.empty()) {
      text.transform({{escape_ ? kMarkCharacter : U' ', 1}});
    } else if (before) {
      text.prepend(space);
    } else {
      std::vector<Change> changes;
      for (const char32_t c : characters_of(text.str()))
        changes.push_back({c, 0});
      changes.push_back({escape_ ? kMarkCharacter : U' ', 1});
      text.transform(changes);
    }
  }
  void strip_end(AlignedText& text) const {
    const std::string_view space = escape_ ? kMark : std::string_view(" ");
    std::string_view rest = text.str();
    while (rest.ends_with(space))
      rest.remove_suffix(space.size());
    if (rest.size() < text.str().size()) text = text.slice(0, rest.size());
  }

  Trie whole_;
  bool has_whole_;
  std::optional<Charsmap> charsmap_;
  bool dummy_, first_, behind_, remove_, escape_;
};

class SentencePieceSplit final : public PreTokenizer {
 public:
  /// Parts that end before a mark have at least `least` bytes.
  SentencePieceSplit(Trie whole, bool words, std::size_t least)
      : whole_(std::move(whole)), words_(words), least_(least) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    const std::string& s = piece.str();
    std::size_t begin = 0;
    const auto cut = [&](std::size_t end) {
      if (begin < end) out.push_back(piece.slice(begin, end));
      begin = end;
    };
    bool mark_before = true;
    for (std::size_t at = 0; at < s.size();) {
      if (const std::size_t length = longest(whole_, std::string_view(s).substr(at)); length > 0) {
        cut(at);
        at += length;
        cut(at);
        mark_before = true;
        continue;
      }
      const bool mark = s.compare(at, kMark.size(), kMark) == 0;
      if (words_ && mark && !mark_before && at - begin >= least_) cut(at);
      mark_before = mark;
      at += character_length(s[at]);
    }
    cut(s.size());
  }

 private:
  Trie whole_;
  bool words_;
  std::size_t least_;
};

/// True if no token crosses the position before a mark: no piece contains a mark after another
/// character, and the mark itself is a piece, so that an unknown neighbour does not absorb it.
bool words_stand_alone(const SentencePieceModel& model) {
  const bool known = std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == Type::Normal && piece.text == kMark;
  });
  return known && std::all_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
           if (piece.type != Type::Normal && piece.type != Type::UserDefined) return true;
           std::string_view text = piece.text;
           while (text.starts_with(kMark))
             text.remove_prefix(kMark.size());
           return text.find(kMark) == std::string_view::npos;
         });
}

/// Merges in the order of the scores of the resulting pieces.
class SentencePieceBpe final : public Model {
 public:
  SentencePieceBpe(const SentencePieceModel& model,
                   const std::vector<std::int32_t>& ids,
                   const std::string& where)
      : byte_fallback_(model.byte_fallback),
        unknown_(ids[static_cast<std::size_t>(model.unknown)]) {
    read_pieces(model, ids, where);
    read_merges(model, where);
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    const auto size = static_cast<std::uint32_t>(piece.size());
    if (const auto whole = whole_.find(std::string(piece)); whole != whole_.end()) {
      out.push_back({whole->second, 0, size});
      return;
    }
    const std::size_t first = out.size();
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t end = at + character_length(piece[at]);
      out.push_back({symbol_of(piece.substr(at, end - at)),
                     static_cast<std::uint32_t>(at),
                     static_cast<std::uint32_t>(end)});
      at = end;
    }
    merge_tokens(pairs_, out, first);
    resolve(piece, first, out);
  }

 private:
  void read_pieces(const SentencePieceModel& model,
                   const std::vector<std::int32_t>& ids,
                   const std::string& where) {
    // If a reserved piece and another piece have the same text, the text means the reserved one.
    for (const bool reserved : {true, false}) {
      for (std::size_t i = 0; i < model.pieces.size(); ++i) {
        const auto& piece = model.pieces[i];
        const bool in_text = piece.type == Type::Normal || piece.type == Type::UserDefined;
        if (in_text == reserved || ids[i] < 0) continue;
        vocabulary_.add(piece.text, ids[i], where);
        if (piece.type == Type::UserDefined) whole_.emplace(piece.text, ids[i]);
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[static_cast<std::size_t>(byte)] =
          vocabulary_.find(byte_token(static_cast<unsigned char>(byte))).value_or(unknown_);
    }
  }

  // Symbols are the pieces, and the characters in them that are not pieces themselves.
  void read_merges(const SentencePieceModel& model, const std::string& where) {
    std::vector<float> scores;
    std::size_t work = 0;
    constexpr std::size_t kMostWork = std::size_t{1} << 30;
    for (const auto& piece : model.pieces) {
      if (piece.type == Type::Unused) unsupported_part(where, "has unused pieces of BPE");
      if (piece.type != Type::Normal) continue;
      work += piece.text.size() * piece.text.size();
      if (work > kMostWork) refuse_part(where, "has pieces that are too long");
      add_symbol(piece.text);
      for (std::size_t at = 0; at < piece.text.size();) {
        const std::size_t length = character_length(piece.text[at]);
        add_symbol(piece.text.substr(at, length));
        at += length;
      }
      scores.push_back(piece.score);
    }
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    std::vector<BpeModel::Merge> merges;
    std::vector<std::uint32_t> ranks;
    for (const auto& piece : model.pieces) {
      if (piece.type != Type::Normal) continue;
      const auto rank = static_cast<std::uint32_t>(
          std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>()) -
          scores.begin());
      const std::int32_t result = symbol_of(piece.text);
      for (std::size_t at = character_length(piece.text[0]); at < piece.text.size();
           at += character_length(piece.text[at])) {
        const std::int32_t left = symbol_of(std::string_view(piece.text).substr(0, at)),
                           right = symbol_of(std::string_view(piece.text).substr(at));
        if (left == kOther || right == kOther) continue;
        merges.push_back({left, right, result});
        ranks.push_back(rank);
      }
    }
    pairs_ = PairTable(merges, ranks);
  }

  static constexpr std::int32_t kOther = -2;  // a character that occurs in no piece

  void add_symbol(const std::string& text) {
    const auto id = vocabulary_.find(text).value_or(unknown_);
    if (symbols_.try_emplace(text, static_cast<std::int32_t>(symbol_ids_.size())).second)
      symbol_ids_.push_back(id);
  }
  [[nodiscard]] std::int32_t symbol_of(std::string_view text) const {
    const auto found = symbols_.find(text);
    return found == symbols_.end() ? kOther : found->second;
  }

  // Converts symbols to ids; a symbol without an id becomes bytes, or one unknown token together
  // with its neighbours.
  void resolve(std::string_view piece, std::size_t first, std::vector<Token>& out) const {
    const std::vector<Token> tokens(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    out.resize(first);
    bool after_unknown = false;
    for (const Token& token : tokens) {
      const std::string_view text = piece.substr(token.begin, token.end - token.begin);
      // A character that occurs in no piece may still be a reserved piece.
      const std::int32_t id = token.id == kOther ? vocabulary_.find(text).value_or(unknown_)
                                                 : symbol_ids_[static_cast<std::size_t>(token.id)];
      if (id != unknown_) {
        out.push_back({id, token.begin, token.end});
      } else if (byte_fallback_) {
        for (const char c : text)
          out.push_back({byte_ids_[static_cast<unsigned char>(c)], token.begin, token.end});
      } else if (after_unknown) {
        out.back().end = token.end;
      } else {
        out.push_back({id, token.begin, token.end, true});
      }
      after_unknown = id == unknown_ && !byte_fallback_;
    }
  }

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> symbols_;
  std::vector<std::int32_t> symbol_ids_;
  std::unordered_map<std::string, std::int32_t> whole_;
  std::array<std::int32_t, 256> byte_ids_{};
  PairTable pairs_;
  bool byte_fallback_;
  std::int32_t unknown_;
};

ModelPtr unigram(const SentencePieceModel& model,
                 const std::vector<std::int32_t>& ids,
                 const std::string& where) {
  UnigramPieces out;
  out.unknown = ids[static_cast<std::size_t>(model.unknown)];
  out.byte_fallback = model.byte_fallback;
  out.as_sentencepiece = true;
  float least = FLT_MAX;
  float most = FLT_MIN;  // the smallest positive value, as in sentencepiece
  for (const auto& piece : model.pieces) {
    if (piece.type != Type::Normal) continue;
    least = std::min(least, piece.score);
    most = std::max(most, piece.score);
  }
  out.unknown_score = static_cast<double>(least - kUnknownLoss);
  for (const bool reserved : {true, false}) {
    for (std::size_t i = 0; i < model.pieces.size(); ++i) {
      const auto& piece = model.pieces[i];
      const bool in_text = piece.type == Type::Normal || piece.type == Type::UserDefined;
      if (in_text == reserved || ids[i] < 0) continue;
      auto score = static_cast<double>(piece.score);
      if (piece.type == Type::UserDefined) {
        const float bonus = static_cast<float>(piece.text.size()) * most;
        score = static_cast<double>(bonus) - kBonusLoss;
      }
      out.pieces.push_back({piece.text, score, ids[i], in_text});
    }
  }
  return make_unigram_model(std::move(out), where);
}

class SentencePieceDecoder final : public Decoder {
 public:
  SentencePieceDecoder(const SentencePieceModel& model, const std::vector<AddedToken>& added)
      : unknown_(model.pieces[static_cast<std::size_t>(model.unknown)].text),
        unknown_surface_(model.unknown_surface),
        strips_first_(model.add_dummy_prefix || model.remove_extra_spaces),
        strips_all_(model.remove_extra_spaces),
        byte_fallback_(model.byte_fallback) {
    for (const AddedToken& token : added)
      if (token.special && token.content != unknown_) special_.insert(token.content);
  }

  void apply(std::vector<std::string>& tokens) const override {
    std::string text, bytes;
    // True once text has begun, and once its first space was removed.
    bool begun = false, taken = false;
    const auto flush = [&] {
      if (!bytes.empty()) begun = true;
      append_bytes(bytes, text);
      bytes.clear();
    };
    for (const std::string& token : tokens) {
      if (const int byte = byte_fallback_ ? byte_in(token) : -1; byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      if (special_.contains(token)) {
        text += token;
        continue;
      }
      if (token == unknown_) {
        text += unknown_surface_;
        begun = begun || !unknown_surface_.empty();
        continue;
      }
      std::string_view rest = token;
      if (!begun && !taken && strips_first_ && rest.starts_with(kMark)) {
        rest.remove_prefix(kMark.size());
        taken = !strips_all_;
      }
      if (!rest.empty()) begun = true;
      append_text(rest, text);
    }
    flush();
    tokens.assign(1, std::move(text));
  }

 private:
  static void append_text(std::string_view piece, std::string& out) {
    for (std::size_t at = 0; at < piece.size();) {
      const bool mark = piece.substr(at).starts_with(kMark);
      out += mark ? ' ' : piece[at];
      at += mark ? kMark.size() : 1;
    }
  }
  // A byte that is not part of a character becomes U+FFFD.
  static void append_bytes(std::string_view bytes, std::string& out) {
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t length = std::min(character_length(bytes[at]), bytes.size() - at);
      const std::string_view character = bytes.substr(at, length);
      const bool valid = is_valid_utf8(character);
      out += valid ? character : std::string_view("\uFFFD");
      at += valid ? length : 1;
    }
  }
  static int byte_in(const std::string& token) {
    static const std::unordered_map<std::string, int> kBytes = [] {
      std::unordered_map<std::string, int> out;
      for (int byte = 0; byte < 256; ++byte)
        out.emplace(byte_token(static_cast<unsigned char>(byte)), byte);
      return out;
    }();
    const auto found = kBytes.find(token);
    return found == kBytes.end() ? -1 : found->second;
  }

  std::string unknown_, unknown_surface_;
  bool strips_first_, strips_all_, byte_fallback_;
  std::set<std::string> special_;
};

}  // namespace

NormalizerPtr sentencepiece_normalizer(const SentencePieceModel& model,
                                       DummyPrefix dummy,
                                       const std::string& where) {
  return std::make_shared<SentencePieceNormalizer>(model, dummy, where);
}

PreTokenizerPtr sentencepiece_split(const SentencePieceModel& model) {
  const bool words = words_stand_alone(model) && model.escape_spaces;
  if (model.algorithm == SentencePieceModel::Algorithm::Bpe)
    return std::make_shared<SentencePieceSplit>(user_defined(model), words, 0);
  // The rounding of a whole text's score decides between equal segmentations. User-defined pieces
  // compete with others.
  return std::make_shared<SentencePieceSplit>(Trie(), words, kLongestSum);
}

ModelPtr sentencepiece_model(const SentencePieceModel& model,
                             const std::vector<std::int32_t>& ids,
                             const std::string& where) {
  if (model.algorithm == SentencePieceModel::Algorithm::Bpe)
    return std::make_shared<SentencePieceBpe>(model, ids, where);
  return unigram(model, ids, where);
}

DecoderPtr sentencepiece_decoder(const SentencePieceModel& model,
                                 const std::vector<AddedToken>& added) {
  return std::make_shared<SentencePieceDecoder>(model, added);
}

}  // namespace tessera::text::tokenizers
