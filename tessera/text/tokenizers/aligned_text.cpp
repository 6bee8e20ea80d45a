// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/aligned_text.h"

#include <algorithm>
#include <array>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {

AlignedText::AlignedText(std::string_view text, std::size_t at, bool tracked)
    : text_(text), room_(budget::normalized(text.size())), tracked_(tracked), at_start_(at == 0) {
  if (!tracked) return;
  spans_.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text[i]);
    const Span span{static_cast<std::uint32_t>(at + i),
                    static_cast<std::uint32_t>(at + i + length)};
    spans_.insert(spans_.end(), length, span);
    i += length;
  }
}

AlignedText AlignedText::slice(std::size_t begin, std::size_t end) const {
  AlignedText out;
  out.text_ = text_.substr(begin, end - begin);
  out.room_ = room_;
  out.tracked_ = tracked_;
  out.at_start_ = at_start_ && begin == 0;
  if (tracked_) {
    out.spans_.assign(spans_.begin() + static_cast<std::ptrdiff_t>(begin),
                      spans_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return out;
}

Span AlignedText::original(std::size_t begin, std::size_t end) const {
  if (begin >= end || end > spans_.size()) {
    return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
  }
  return {spans_[begin].begin, spans_[end - 1].end};
}

void AlignedText::require_room(std::size_t bytes) const {
  budget::require_bytes(bytes,
                        room_,
                        "the tokenizer's normalizer",
                        "makes a text",
                        "look at the section normalizer of tokenizer.json: it inserts or repeats "
                        "text without an end");
}

void AlignedText::transform(const std::vector<Change>& changes, std::size_t skipped) {
  require_room(changes.size());
  std::string text;
  text.reserve(text_.size());
  std::vector<Span> spans;
  std::size_t at = skipped;
  for (const Change& change : changes) {
    const std::size_t before = text.size();
    append_utf8(text, change.character);
    if (!tracked_) continue;
    Span span{};
    if (change.delta > 0) {
      if (at > 0) span = spans_[std::min(at, spans_.size()) - 1];
    } else {
      if (at < spans_.size()) span = spans_[at];
      for (std::int32_t n = 0; n >= change.delta && at < text_.size(); --n)
        at += character_length(text_[at]);
    }
    spans.insert(spans.end(), text.size() - before, span);
  }
  text_ = std::move(text);
  spans_ = std::move(spans);
}

void AlignedText::rewrite(std::string text) {
  TESSERA_ASSERT(!tracked_);
  text_ = std::move(text);
}

void AlignedText::prepend(std::string_view inserted) {
  if (text_.empty()) return;
  require_room(text_.size() + inserted.size());
  text_.insert(0, inserted);
  if (tracked_) spans_.insert(spans_.begin(), inserted.size(), Span(spans_.front()));
}

void AlignedText::replace(const std::vector<std::pair<std::size_t, std::size_t>>& ranges,
                          std::string_view content) {
  if (ranges.empty()) return;
  // Neither factor exceeds 2^32, because texts have at most 2^30 bytes, and files 2^28.
  require_room(text_.size() + ranges.size() * content.size());
  std::string text;
  std::vector<Span> spans;
  std::size_t done = 0;
  const auto keep = [&](std::size_t to) {
    text.append(text_, done, to - done);
    if (tracked_) {
      spans.insert(spans.end(),
                   spans_.begin() + static_cast<std::ptrdiff_t>(done),
                   spans_.begin() + static_cast<std::ptrdiff_t>(to));
    }
  };
  for (const auto& [begin, end] : ranges) {
    keep(begin);
    text += content;
    if (tracked_) spans.insert(spans.end(), content.size(), end > 0 ? spans_[end - 1] : Span{});
    done = end;
  }
  keep(text_.size());
  text_ = std::move(text);
  spans_ = std::move(spans);
}

void AlignedText::to_byte_characters() {
  require_room(text_.size());
  std::string text;
  text.reserve(text_.size() * 2);
  std::vector<Span> spans;
  for (std::size_t i = 0; i < text_.size(); ++i) {
    const std::string& character = byte_character(static_cast<unsigned char>(text_[i]));
    text += character;
    if (tracked_) spans.insert(spans.end(), character.size(), spans_[i]);
  }
  text_ = std::move(text);
  spans_ = std::move(spans);
}

namespace {

bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct ByteCharacters {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes{};
  ByteCharacters() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      append_utf8(characters[byte], c);
      bytes[c] = static_cast<int>(byte);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

}  // namespace

const std::string& byte_character(unsigned char byte) {
  return byte_characters().characters[byte];
}

int byte_of_character(char32_t character) {
  const auto& bytes = byte_characters().bytes;
  return character < bytes.size() ? bytes[character] : -1;
}

}  // namespace tessera::text::tokenizers
