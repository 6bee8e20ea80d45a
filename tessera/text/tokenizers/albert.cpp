// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/albert.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <utf8proc.h>

#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::string_view kMark = "\u2581";

/// Joins runs of white space to one space each and strips both ends.
class JoinSpaces final : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    const std::string& s = text.str();
    std::vector<Change> changes;
    std::size_t skipped = 0;
    std::int32_t pending = 0;  // spaces since the last word
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t begin = at;
      const char32_t c = next_character(s, at);
      // The characters at which Python's str.split() splits.
      if (is_space(c) || (c >= 0x1C && c <= 0x1F)) {
        if (changes.empty()) {
          skipped += at - begin;
        } else {
          ++pending;
        }
        continue;
      }
      if (pending > 0) changes.push_back({U' ', 1 - pending});
      pending = 0;
      changes.push_back({c, 0});
    }
    text.transform(changes, skipped);
  }
};

bool combines(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0;
}

// Python's str.isdigit(): decimal digits, and other characters for a digit.
bool is_digit(char32_t c) {
  if (utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND) return true;
  return c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) ||
         (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490);
}

class AlbertModel final : public Model {
 public:
  AlbertModel(ModelPtr model, NormalizerPtr normalizer)
      : model_(std::move(model)), normalizer_(std::move(normalizer)) {
    vocabulary_ = model_->vocabulary();
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    std::vector<Token> tokens;
    model_->tokenize(piece, tokens);
    for (const Token& token : tokens) {
      const std::string_view text = piece.substr(token.begin, token.end - token.begin);
      if (!ends_with_digit_and_comma(text)) {
        out.push_back(token);
        continue;
      }
      split(text, token, out);
    }
  }

 private:
  static bool ends_with_digit_and_comma(std::string_view text) {
    if (text.size() < 2 || text.back() != ',') return false;
    const std::vector<char32_t> characters = characters_of(text);
    return characters.size() > 1 && is_digit(characters[characters.size() - 2]);
  }

  void split(std::string_view text, const Token& token, std::vector<Token>& out) const {
    std::string number;
    for (std::size_t at = 0; at + 1 < text.size();) {
      const bool mark = text.substr(at).starts_with(kMark);
      if (!mark) number += text[at];
      at += mark ? kMark.size() : 1;
    }
    AlignedText again(number, 0, /*tracked=*/false);
    normalizer_->apply(again);
    std::vector<Token> parts;
    if (!again.empty()) model_->tokenize(again.str(), parts);
    if (!text.starts_with(kMark) && !parts.empty()) {
      const std::string first = again.str().substr(parts[0].begin, parts[0].end - parts[0].begin);
      if (first == kMark) {
        parts.erase(parts.begin());
      } else if (first.starts_with(kMark)) {
        // Without its mark, the first part may be another piece.
        parts[0].id = vocabulary_.find(first.substr(kMark.size())).value_or(unknown());
      }
    }
    for (const Token& part : parts)
      out.push_back({part.id, token.begin, token.end - 1});
    out.push_back({vocabulary_.find(",").value_or(unknown()), token.end - 1, token.end});
  }
  [[nodiscard]] std::int32_t unknown() const { return vocabulary_.find("<unk>").value_or(0); }

  ModelPtr model_;
  NormalizerPtr normalizer_;
};

}  // namespace

NormalizerPtr albert_normalizer(const Settings& settings, bool lower) {
  lower = settings.flag("do_lower_case").value_or(lower);
  const auto lowered = map_characters([](char32_t c, auto& out) { append_lower(out, c); });
  std::vector<NormalizerPtr> parts;
  if (lower) parts.push_back(lowered);
  if (settings.flag("remove_space").value_or(true)) parts.push_back(std::make_shared<JoinSpaces>());
  for (const char* quotes : {"``", "''"}) {
    const json replace = {
        {"type", "Replace"}, {"pattern", {{"String", quotes}}}, {"content", "\""}};
    parts.push_back(read_normalizer(Part(replace, "albert")));
  }
  if (!settings.flag("keep_accents").value_or(false)) {
    parts.push_back(normalize_to(UnicodeForm::Nfkd));
    parts.push_back(map_characters([](char32_t c, auto& out) {
      if (!combines(c)) out.push_back(c);
    }));
  }
  if (lower) parts.push_back(lowered);
  return normalize_in_sequence(std::move(parts));
}

ModelPtr albert_model(ModelPtr model, NormalizerPtr normalizer) {
  return std::make_shared<AlbertModel>(std::move(model), std::move(normalizer));
}

}  // namespace tessera::text::tokenizers
