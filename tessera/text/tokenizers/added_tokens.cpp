// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/added_tokens.h"

#include <algorithm>

#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

std::size_t character_before(std::string_view text, std::size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U)
    --at;
  return at;
}

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = character_before(text, at);
  return is_word(next_character(text, begin));
}

bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_character(text, at));
}

std::size_t spaces_begin(std::string_view text, std::size_t at) {
  while (at > 0) {
    const std::size_t begin = character_before(text, at);
    std::size_t from = begin;
    if (!is_space(next_character(text, from))) break;
    at = begin;
  }
  return at;
}

std::size_t spaces_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_space(next_character(text, next))) break;
    at = next;
  }
  return at;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, const std::string& pattern) {
  if (pattern.empty()) return;
  trie_.add(pattern, static_cast<std::int32_t>(tokens_.size()));
  first_bytes_[static_cast<unsigned char>(pattern[0])] = true;
  tokens_.push_back(token);
}

std::vector<AddedTokenFinder::Section> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Section> out;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    std::size_t length = 0;
    std::int32_t which = -1;
    if (first_bytes_[static_cast<unsigned char>(text[at])]) {
      trie_.prefixes(text.substr(at), [&](std::size_t size, std::int32_t value) {
        length = size;
        which = value;
      });
    }
    if (which < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(which)];
    std::size_t begin = at, end = at + length;
    at = end;
    // Skips text that the previous token has taken as its white space.
    if (begin < done) continue;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip) begin = std::max(spaces_begin(text, begin), done);
    if (token.rstrip) end = spaces_end(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace tessera::text::tokenizers
