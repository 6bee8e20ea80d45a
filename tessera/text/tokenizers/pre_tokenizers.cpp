// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/pre_tokenizers.h"

#include <array>
#include <functional>

#include <fmt/format.h>

#include "tessera/text/tokenizers/bert_punctuation.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/normalizers.h"
#include "tessera/text/tokenizers/unicode_scripts.h"

namespace tessera::text::tokenizers {
namespace {

enum class Behavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

struct Section {
  std::size_t begin, end;
  bool match;
};

// The matches and the sections between them.
std::vector<Section> sections_of(std::size_t size, const Ranges& matches, bool invert) {
  std::vector<Section> out;
  std::size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) out.push_back({done, begin, invert});
    out.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) out.push_back({done, size, invert});
  return out;
}

std::vector<Section> merge_with_previous(const std::vector<Section>& in) {
  std::vector<Section> out;
  bool previous = false;
  for (const Section& section : in) {
    if (section.match && !previous && !out.empty()) {
      out.back().end = section.end;
    } else {
      out.push_back(section);
    }
    previous = section.match;
  }
  return out;
}

// A match joins the following section, unless that is a match too.
std::vector<Section> merge_with_next(const std::vector<Section>& in) {
  std::vector<Section> out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    out.push_back(in[i]);
    if (in[i].match && i + 1 < in.size() && !in[i + 1].match) out.back().end = in[++i].end;
  }
  return out;
}

std::vector<Section> merge_equal(const std::vector<Section>& in) {
  std::vector<Section> out;
  for (const Section& section : in) {
    if (!out.empty() && out.back().match == section.match) {
      out.back().end = section.end;
    } else {
      out.push_back(section);
    }
  }
  return out;
}

void split(const AlignedText& piece,
           const Ranges& matches,
           Behavior behavior,
           bool invert,
           std::vector<AlignedText>& out) {
  std::vector<Section> sections = sections_of(piece.str().size(), matches, invert);
  if (behavior == Behavior::MergedWithPrevious) sections = merge_with_previous(sections);
  if (behavior == Behavior::MergedWithNext) sections = merge_with_next(sections);
  if (behavior == Behavior::Contiguous) sections = merge_equal(sections);
  for (const Section& section : sections) {
    if (behavior == Behavior::Removed && section.match) continue;
    if (section.begin < section.end) out.push_back(piece.slice(section.begin, section.end));
  }
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(PatternPtr pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    Ranges matches;
    pattern_->find(piece.str(), matches);
    split(piece, matches, behavior_, invert_, out);
  }

 private:
  PatternPtr pattern_;
  Behavior behavior_;
  bool invert_;
};

/// A property of characters; that of ASCII characters is looked up in a table.
class CharacterTest {
 public:
  using Test = std::function<bool(char32_t)>;
  explicit CharacterTest(Test test) : test_(std::move(test)) {
    for (char32_t c = 0; c < ascii_.size(); ++c)
      ascii_[c] = test_(c);
  }
  bool operator()(char32_t c) const { return c < ascii_.size() ? ascii_[c] : test_(c); }

 private:
  Test test_;
  std::array<bool, 0x80> ascii_{};
};

/// Splits at single characters.
class CharacterSplit final : public PreTokenizer {
 public:
  CharacterSplit(CharacterTest test, Behavior behavior)
      : test_(std::move(test)), behavior_(behavior) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    Ranges matches;
    for (std::size_t at = 0; at < piece.str().size();) {
      const std::size_t begin = at;
      if (test_(next_character(piece.str(), at))) matches.emplace_back(begin, at);
    }
    split(piece, matches, behavior_, false, out);
  }

 private:
  CharacterTest test_;
  Behavior behavior_;
};

/// Words between spaces; each punctuation character is a piece of its own.
class BertPreTokenizer final : public PreTokenizer {
 public:
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    const std::string& s = piece.str();
    std::size_t begin = 0;
    const auto end_word = [&](std::size_t end) {
      if (begin < end) out.push_back(piece.slice(begin, end));
    };
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t here = at;
      const char32_t c = next_character(s, at);
      const bool space = is_space_(c);
      if (!space && !is_punctuation_(c)) continue;
      end_word(here);
      if (!space) out.push_back(piece.slice(here, at));
      begin = at;
    }
    end_word(s.size());
  }

 private:
  CharacterTest is_space_{is_space}, is_punctuation_{is_bert_punctuation};
};

/// `\w+|[^\w\s]+`: words, and runs of characters that are neither word characters nor spaces.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    const std::string& s = piece.str();
    const auto kind_of = [](char32_t c) { return is_word(c) ? 1 : is_space(c) ? 0 : 2; };
    std::size_t begin = 0;
    int kind = 0;
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t here = at;
      const int next = kind_of(next_character(s, at));
      if (next == kind) continue;
      if (kind != 0) out.push_back(piece.slice(begin, here));
      begin = here;
      kind = next;
    }
    if (kind != 0) out.push_back(piece.slice(begin, s.size()));
  }
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool prefix_space, bool use_regex)
      : prefix_space_(prefix_space),
        pattern_(
            use_regex
                ? regex_pattern(
                      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
                : nullptr) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    if (prefix_space_ && !piece.str().starts_with(' ')) piece.prepend(" ");
    const std::size_t first = out.size();
    if (pattern_) {
      Ranges matches;
      pattern_->find(piece.str(), matches);
      split(piece, matches, Behavior::Isolated, false, out);
    } else if (!piece.empty()) {
      out.push_back(std::move(piece));
    }
    for (std::size_t i = first; i < out.size(); ++i)
      out[i].to_byte_characters();
  }

 private:
  bool prefix_space_;
  PatternPtr pattern_;
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  enum class Scheme { First, Always, Never };
  MetaspacePreTokenizer(const std::string& replacement, Scheme scheme, bool split)
      : replacement_(replacement),
        spaces_(string_pattern(" ")),
        marks_(string_pattern(replacement)),
        scheme_(scheme),
        split_(split) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    Ranges found;
    spaces_->find(piece.str(), found);
    piece.replace(found, replacement_);
    const bool wanted = scheme_ == Scheme::Always || (scheme_ == Scheme::First && piece.at_start());
    if (wanted && !piece.str().starts_with(replacement_)) piece.prepend(replacement_);
    if (!split_) {
      if (!piece.empty()) out.push_back(std::move(piece));
      return;
    }
    found.clear();
    marks_->find(piece.str(), found);
    split(piece, found, Behavior::MergedWithNext, false, out);
  }

 private:
  std::string replacement_;
  PatternPtr spaces_, marks_;
  Scheme scheme_;
  bool split_;
};

/// Splits where the script changes. Characters of any script continue a piece; at the beginning of
/// the text they are removed, as in the library.
class ScriptsPreTokenizer final : public PreTokenizer {
 public:
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    const std::string& s = piece.str();
    std::size_t begin = 0;
    int script = 0;
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t here = at;
      const int next = script_of(next_character(s, at));
      if (next == 0 || next == script) continue;
      if (script != 0) out.push_back(piece.slice(begin, here));
      begin = here;
      script = next;
    }
    if (script != 0) out.push_back(piece.slice(begin, s.size()));
  }
};

/// Pieces of `length` characters, and a shorter last one.
class FixedLengthPreTokenizer final : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(std::size_t length) : length_(length) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    const std::string& s = piece.str();
    for (std::size_t begin = 0; begin < s.size();) {
      std::size_t end = begin;
      for (std::size_t n = 0; n < length_ && end < s.size(); ++n)
        end += character_length(s[end]);
      out.push_back(piece.slice(begin, end));
      begin = end;
    }
  }

 private:
  std::size_t length_;
};

class SequencePreTokenizer final : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<PreTokenizerPtr> parts) : parts_(std::move(parts)) {}
  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    std::vector<AlignedText> pieces;
    pieces.push_back(std::move(piece));
    for (const PreTokenizerPtr& part : parts_) {
      std::vector<AlignedText> next;
      for (AlignedText& each : pieces)
        part->apply(std::move(each), next);
      pieces = std::move(next);
    }
    for (AlignedText& each : pieces)
      out.push_back(std::move(each));
  }

 private:
  std::vector<PreTokenizerPtr> parts_;
};

Behavior behavior_of(const Part& part, const std::string& name) {
  if (name == "Removed") return Behavior::Removed;
  if (name == "Isolated") return Behavior::Isolated;
  if (name == "MergedWithPrevious") return Behavior::MergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::MergedWithNext;
  if (name == "Contiguous") return Behavior::Contiguous;
  unsupported_part(part.where(), fmt::format("has the unknown behavior \"{}\"", name));
}

PreTokenizerPtr metaspace(const Part& part) {
  std::string replacement;
  append_utf8(replacement, part.character("replacement"));
  using Scheme = MetaspacePreTokenizer::Scheme;
  Scheme scheme = part.flag("add_prefix_space", true) ? Scheme::Always : Scheme::Never;
  if (part.find("prepend_scheme") != nullptr) {
    const std::string name = part.text("prepend_scheme");
    if (name == "first") {
      scheme = Scheme::First;
    } else if (name == "always") {
      scheme = Scheme::Always;
    } else if (name == "never") {
      scheme = Scheme::Never;
    } else {
      unsupported_part(part.where(), fmt::format("has the unknown prepend_scheme \"{}\"", name));
    }
  }
  return std::make_shared<MetaspacePreTokenizer>(replacement, scheme, part.flag("split", true));
}

std::size_t length_of(const Part& part) {
  const std::int64_t length = part.integer("length", 5);
  if (length < 1) refuse_part(part.where(), fmt::format("has pieces of {} characters", length));
  return static_cast<std::size_t>(length);
}

PreTokenizerPtr at_characters(CharacterTest::Test test, Behavior behavior) {
  return std::make_shared<CharacterSplit>(CharacterTest(std::move(test)), behavior);
}

PreTokenizerPtr sequence(const Part& part, int depth) {
  if (depth >= kDeepestSequence) refuse_part(part.where(), "is nested too deep");
  const json& list = part.at("pretokenizers");
  if (!list.is_array()) refuse_part(part.where(), "has pretokenizers that are not a list");
  std::vector<PreTokenizerPtr> parts;
  for (const json& item : list) {
    parts.push_back(read_pre_tokenizer(
        Part(item, fmt::format("{}.pretokenizers[{}]", part.where(), parts.size())), depth + 1));
  }
  return std::make_shared<SequencePreTokenizer>(std::move(parts));
}

}  // namespace

PreTokenizerPtr read_pre_tokenizer(const Part& part, int depth) {
  const std::string type = part.type();
  if (type == "Sequence") return sequence(part, depth);
  if (type == "ByteLevel") {
    return std::make_shared<ByteLevelPreTokenizer>(part.flag("add_prefix_space", true),
                                                   part.flag("use_regex", true));
  }
  if (type == "Split") {
    return std::make_shared<SplitPreTokenizer>(read_pattern(part.part("pattern")),
                                               behavior_of(part, part.text("behavior")),
                                               part.flag("invert", false));
  }
  if (type == "Whitespace") return std::make_shared<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit") return at_characters(is_space, Behavior::Removed);
  if (type == "BertPreTokenizer") return std::make_shared<BertPreTokenizer>();
  if (type == "Metaspace") return metaspace(part);
  if (type == "Digits") {
    return at_characters(
        is_number,
        part.flag("individual_digits", false) ? Behavior::Isolated : Behavior::Contiguous);
  }
  if (type == "Punctuation") {
    return at_characters(is_bert_punctuation, behavior_of(part, part.text("behavior", "Isolated")));
  }
  if (type == "UnicodeScripts") {
    return std::make_shared<ScriptsPreTokenizer>();
  }
  if (type == "FixedLength") {
    return std::make_shared<FixedLengthPreTokenizer>(length_of(part));
  }
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = part.character("delimiter");
    return at_characters([delimiter](char32_t c) { return c == delimiter; }, Behavior::Removed);
  }
  unsupported_part(part.where(),
                   fmt::format("is a pre-tokenizer of the unknown type \"{}\"", type));
}

}  // namespace tessera::text::tokenizers
