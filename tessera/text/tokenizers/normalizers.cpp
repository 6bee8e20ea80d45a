// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/normalizers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <utf8proc.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/base64.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

bool all_ascii(const std::string& text) {
  return ascii_length(text) == text.size();
}

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(UnicodeForm form) : form_(form) {}
  void apply(AlignedText& text) const override {
    if (all_ascii(text.str())) return;
    // NFC changes no character below U+0300, and most text consists of those.
    if (form_ == UnicodeForm::Nfc && std::all_of(text.str().begin(), text.str().end(), [](char c) {
          return static_cast<unsigned char>(c) < 0xCC;
        })) {
      return;
    }
    text.transform(unicode_changes(text.str(), form_));
  }

 private:
  UnicodeForm form_;
};

/// Replaces each character by zero, one or more characters.
class MapNormalizer final : public Normalizer {
 public:
  explicit MapNormalizer(CharacterMap map) : map_(std::move(map)) {
    for (char32_t c = 0; c < ascii_.size(); ++c) {
      std::vector<char32_t> written;
      map_(c, written);
      for (const char32_t each : written)
        append_utf8(ascii_[c], each);
    }
  }
  void apply(AlignedText& text) const override {
    if (!text.tracked()) {
      text.rewrite(mapped(text.str()));
      return;
    }
    std::vector<Change> changes;
    std::vector<char32_t> written;
    std::size_t skipped = 0;
    changes.reserve(text.str().size());
    for (std::size_t at = 0; at < text.str().size();) {
      const std::size_t begin = at;
      const char32_t c = next_character(text.str(), at);
      written.clear();
      map_(c, written);
      for (std::size_t i = 0; i < written.size(); ++i)
        changes.push_back({written[i], i == 0 ? 0 : 1});
      if (!written.empty()) continue;
      if (changes.empty()) {
        skipped += at - begin;
        continue;
      }
      // A removed character is attributed to the preceding one; among inserted characters, to the
      // first.
      std::size_t owner = changes.size() - 1;
      while (owner > 0 && changes[owner].delta > 0)
        --owner;
      changes[owner].delta -= 1;
    }
    text.transform(changes, skipped);
  }

 private:
  [[nodiscard]] std::string mapped(const std::string& text) const {
    std::string out;
    out.reserve(text.size());
    std::vector<char32_t> written;
    for (std::size_t at = 0; at < text.size();) {
      const char32_t c = next_character(text, at);
      if (c < ascii_.size()) {
        const std::string& s = ascii_[c];
        s.size() == 1 ? out.push_back(s.front()) : static_cast<void>(out += s);
        continue;
      }
      written.clear();
      map_(c, written);
      for (const char32_t each : written)
        append_utf8(out, each);
    }
    return out;
  }

  CharacterMap map_;
  std::array<std::string, 0x80> ascii_;  ///< what each ASCII character becomes
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(AlignedText& text) const override {
    const std::string& s = text.str();
    std::size_t begin = 0, end = s.size();
    for (std::size_t at = 0; left_ && at < s.size() && is_space(next_character(s, at));)
      begin = at;
    if (right_) {
      end = begin;
      for (std::size_t at = begin; at < s.size();) {
        if (!is_space(next_character(s, at))) end = at;
      }
    }
    if (begin > 0 || end < s.size()) text = text.slice(begin, end);
  }

 private:
  bool left_, right_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(PatternPtr pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(AlignedText& text) const override {
    Ranges found;
    pattern_->find(text.str(), found);
    text.replace(found, content_);
  }

 private:
  PatternPtr pattern_;
  std::string content_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string content) : content_(std::move(content)) {}
  void apply(AlignedText& text) const override { text.prepend(content_); }

 private:
  std::string content_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text.to_byte_characters(); }
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> parts) : parts_(std::move(parts)) {}
  void apply(AlignedText& text) const override {
    for (const NormalizerPtr& part : parts_)
      part->apply(text);
  }

 private:
  std::vector<NormalizerPtr> parts_;
};

/// Replaces graphemes of fewer than six bytes that are in the table, else single characters.
class PrecompiledNormalizer final : public Normalizer {
 public:
  explicit PrecompiledNormalizer(Charsmap map) : map_(std::move(map)) {}
  void apply(AlignedText& text) const override {
    const std::string& s = text.str();
    std::vector<Change> changes;
    changes.reserve(s.size());
    for (std::size_t begin = 0; begin < s.size();) {
      const std::size_t end = grapheme_end(s, begin);
      const std::string_view grapheme = std::string_view(s).substr(begin, end - begin);
      if (grapheme.size() >= 6 || !rewrite(grapheme, changes)) {
        for (std::size_t at = 0; at < grapheme.size();) {
          const std::size_t from = at;
          const char32_t c = next_character(grapheme, at);
          if (!rewrite(grapheme.substr(from, at - from), changes)) changes.push_back({c, 0});
        }
      }
      begin = end;
      text.require_room(changes.size());
    }
    text.transform(changes);
  }

 private:
  static std::size_t grapheme_end(std::string_view text, std::size_t at) {
    utf8proc_int32_t state = 0;
    char32_t before = next_character(text, at);
    while (at < text.size()) {
      std::size_t next = at;
      const char32_t c = next_character(text, next);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                           static_cast<utf8proc_int32_t>(c),
                                           &state) != 0) {
        break;
      }
      before = c;
      at = next;
    }
    return at;
  }
  bool rewrite(std::string_view old, std::vector<Change>& changes) const {
    const Charsmap::Match match = map_.shortest(old);
    if (match.length == 0) return false;
    const auto removed = static_cast<std::int32_t>(count_characters(old));
    const std::vector<char32_t> written = characters_of(match.text);
    const auto count = static_cast<std::int32_t>(written.size());
    for (std::int32_t i = 0; i < count; ++i)
      changes.push_back({written[static_cast<std::size_t>(i)], i < removed ? 0 : 1});
    if (count < removed && !changes.empty()) changes.back().delta += count - removed;
    return true;
  }
  Charsmap map_;
};

void map_nmt(char32_t c, std::vector<char32_t>& out) {
  if ((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
      c == 0x9F) {
    return;
  }
  const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  out.push_back(space ? U' ' : c);
}

void map_bert_clean(char32_t c, std::vector<char32_t>& out) {
  if (c == '\t' || c == '\n' || c == '\r') {
    out.push_back(U' ');
  } else if (c != 0 && c != 0xFFFD && !is_control(c)) {
    out.push_back(is_space(c) ? U' ' : c);
  }
}

/// Puts spaces around Chinese characters, because each is a word.
class CjkSpaces final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    if (all_ascii(text.str())) return;
    std::vector<Change> changes;
    for (const char32_t c : characters_of(text.str())) {
      if (!is_cjk(c)) {
        changes.push_back({c, 0});
        continue;
      }
      changes.push_back({U' ', 0});
      changes.push_back({c, 1});
      changes.push_back({U' ', 1});
    }
    text.transform(changes);
  }
};

NormalizerPtr bert_normalizer(const Part& part) {
  const bool lower = part.flag("lowercase", true);
  std::vector<NormalizerPtr> parts;
  if (part.flag("clean_text", true)) parts.push_back(map_characters(map_bert_clean));
  if (part.flag("handle_chinese_chars", true)) parts.push_back(std::make_shared<CjkSpaces>());
  if (part.flag("strip_accents", lower)) {
    parts.push_back(std::make_shared<UnicodeNormalizer>(UnicodeForm::Nfd));
    parts.push_back(map_characters([](char32_t c, std::vector<char32_t>& out) {
      if (!is_nonspacing_mark(c)) out.push_back(c);
    }));
  }
  if (lower) parts.push_back(map_characters([](char32_t c, auto& out) { append_lower(out, c); }));
  return std::make_shared<SequenceNormalizer>(std::move(parts));
}

NormalizerPtr sequence(const Part& part, int depth) {
  if (depth >= kDeepestSequence) refuse_part(part.where(), "is nested too deep");
  const json& list = part.at("normalizers");
  if (!list.is_array()) refuse_part(part.where(), "has normalizers that are not a list");
  std::vector<NormalizerPtr> parts;
  for (const json& item : list) {
    parts.push_back(read_normalizer(
        Part(item, fmt::format("{}.normalizers[{}]", part.where(), parts.size())), depth + 1));
  }
  return std::make_shared<SequenceNormalizer>(std::move(parts));
}

}  // namespace

NormalizerPtr map_characters(CharacterMap map) {
  return std::make_shared<MapNormalizer>(std::move(map));
}

NormalizerPtr normalize_in_sequence(std::vector<NormalizerPtr> parts) {
  return std::make_shared<SequenceNormalizer>(std::move(parts));
}

NormalizerPtr normalize_to(UnicodeForm form) {
  return std::make_shared<UnicodeNormalizer>(form);
}

PatternPtr read_pattern(const Part& part) {
  if (part.find("String") != nullptr) return string_pattern(part.text("String"));
  return regex_pattern(part.text("Regex"));
}

NormalizerPtr read_normalizer(const Part& part, int depth) {
  const std::string type = part.type();
  if (type == "Sequence") return sequence(part, depth);
  if (type == "NFC") return normalize_to(UnicodeForm::Nfc);
  if (type == "NFD") return normalize_to(UnicodeForm::Nfd);
  if (type == "NFKC") return normalize_to(UnicodeForm::Nfkc);
  if (type == "NFKD") return normalize_to(UnicodeForm::Nfkd);
  if (type == "Lowercase")
    return map_characters([](char32_t c, auto& out) { append_lower(out, c); });
  if (type == "StripAccents") {
    return map_characters([](char32_t c, auto& out) {
      if (!is_mark(c)) out.push_back(c);
    });
  }
  if (type == "Strip") {
    return std::make_shared<StripNormalizer>(part.flag("strip_left", true),
                                             part.flag("strip_right", true));
  }
  if (type == "Replace") {
    return std::make_shared<ReplaceNormalizer>(read_pattern(part.part("pattern")),
                                               part.text("content"));
  }
  if (type == "Prepend") return std::make_shared<PrependNormalizer>(part.text("prepend"));
  if (type == "ByteLevel") return std::make_shared<ByteLevelNormalizer>();
  if (type == "Nmt") return map_characters(map_nmt);
  if (type == "BertNormalizer") return bert_normalizer(part);
  if (type == "Precompiled") {
    const std::string blob = from_base64(part.text("precompiled_charsmap"), part.where());
    if (blob.empty()) return std::make_shared<SequenceNormalizer>(std::vector<NormalizerPtr>());
    return std::make_shared<PrecompiledNormalizer>(Charsmap(blob, part.where()));
  }
  unsupported_part(part.where(), fmt::format("is a normalizer of the unknown type \"{}\"", type));
}

Charsmap::Charsmap(const std::string& blob, const std::string& where) {
  std::uint32_t bytes = 0;
  if (blob.size() >= sizeof bytes) std::memcpy(&bytes, blob.data(), sizeof bytes);
  if (blob.size() < sizeof bytes || bytes % 4 != 0 || bytes == 0 ||
      bytes > blob.size() - sizeof bytes) {
    refuse_part(where, "has a charsmap whose size does not fit");
  }
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), blob.data() + sizeof bytes, bytes);
  texts_ = blob.substr(sizeof bytes + bytes);
  if (!is_valid_utf8(texts_)) refuse_part(where, "has a charsmap whose texts are not UTF-8");
}

// The format of darts-clone. Every index is checked, because the array comes from outside.
Charsmap::Match Charsmap::find(std::string_view text, bool first) const {
  const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); };
  Match best;
  std::size_t position = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    position ^= byte;
    if (position >= units_.size()) break;
    const std::uint32_t unit = units_[position];
    if ((unit & ((1U << 31) | 0xFFU)) != byte) break;
    position ^= offset(unit);
    if ((unit >> 8 & 1U) == 0) continue;
    if (position >= units_.size()) break;
    const std::size_t at = units_[position] & ((1U << 31) - 1);
    if (at >= texts_.size()) break;
    const std::size_t end = std::min(texts_.find('\0', at), texts_.size());
    best = {i + 1, std::string_view(texts_).substr(at, end - at)};
    // A value may point into the middle of a character.
    if (!is_valid_utf8(best.text)) best = {};
    if (first) break;
  }
  return best;
}

}  // namespace tessera::text::tokenizers
