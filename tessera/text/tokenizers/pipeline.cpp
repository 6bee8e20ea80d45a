// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/pipeline.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/word_cache.h"

namespace tessera::text::tokenizers {
namespace {

// Spans are 32 bits wide, and byte-level text can be twice as long.
constexpr std::size_t kLongestText = std::size_t{1} << 30;

// The word cache of the tokenizer that the thread used last.
struct ThreadCache {
  std::uint64_t owner = 0;
  std::optional<WordCache> words;
};

WordCache& words_of(std::uint64_t owner) {
  thread_local ThreadCache cache;
  if (cache.owner != owner || !cache.words) {
    cache.words.emplace();
    cache.owner = owner;
  }
  return *cache.words;
}

std::uint64_t next_instance() {
  static std::atomic<std::uint64_t> count{0};
  return ++count;
}

/// Maps bytes of a text to its code points.
class CodePoints {
 public:
  explicit CodePoints(std::string_view text) {
    index_.reserve(text.size());
    std::uint32_t count = 0;
    for (std::size_t at = 0; at < text.size(); ++count) {
      const std::size_t length = character_length(text[at]);
      index_.insert(index_.end(), length, count);
      at += length;
    }
  }
  // An offset at the end of the text stays in bytes, as in the library.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> of(Span span) const {
    if (span.begin >= index_.size()) return {span.begin, span.end};
    const std::int64_t end = span.end < index_.size() ? index_[span.end]
                             : span.end > 0 && span.end <= index_.size()
                                 ? std::int64_t{index_[span.end - 1]} + 1
                                 : std::int64_t{index_[span.begin]} + 1;
    return {index_[span.begin], end};
  }

 private:
  std::vector<std::uint32_t> index_;
};

std::vector<AddedToken> read_added(const json& list, const std::string& where) {
  if (!list.is_array()) refuse_part(where, "has added_tokens that are not a list");
  std::vector<AddedToken> out;
  for (const json& item : list) {
    const Part part(item, fmt::format("{}: added_tokens[{}]", where, out.size()));
    AddedToken token;
    token.content = part.text("content");
    token.single_word = part.flag("single_word", false);
    token.lstrip = part.flag("lstrip", false);
    token.rstrip = part.flag("rstrip", false);
    token.special = part.flag("special", false);
    token.normalized = part.flag("normalized", !token.special);
    const std::int64_t id = part.integer("id", -1);
    if (id < 0 || id > Vocabulary::kLargestId)
      refuse_part(part.where(), fmt::format("has the id {}", id));
    token.id = static_cast<std::int32_t>(id);
    out.push_back(std::move(token));
  }
  return out;
}

}  // namespace

PipelineParts read_parts(const json& root, const std::string& where) {
  const Part file(root, where);
  PipelineParts out;
  out.model = read_model(file.part("model"));
  if (file.find("normalizer") != nullptr) out.normalizer = read_normalizer(file.part("normalizer"));
  if (file.find("pre_tokenizer") != nullptr)
    out.pre_tokenizer = read_pre_tokenizer(file.part("pre_tokenizer"));
  if (file.find("post_processor") != nullptr)
    out.post_processor = read_post_processor(file.part("post_processor"));
  if (file.find("decoder") != nullptr) out.decoder = read_decoder(file.part("decoder"));
  if (const json* added = file.find("added_tokens")) out.added_tokens = read_added(*added, where);
  out.limits = read_limits(file);
  return out;
}

Pipeline::Pipeline(const json& root, const std::string& where)
    : Pipeline(read_parts(root, where), where) {}

Pipeline::Pipeline(PipelineParts parts, const std::string& where)
    : parts_(std::move(parts)), instance_(next_instance()) {
  size_ = parts_.model->vocabulary().size();
  for (const AddedToken& token : parts_.added_tokens) {
    if (!added_.emplace(token.id, token).second)
      refuse_part(where, fmt::format("has two added tokens of the id {}", token.id));
    added_ids_.emplace(token.content, token.id);
    size_ = std::max(size_, std::int64_t{token.id} + 1);
    add_finders(token);
  }
  find_surroundings();
}

void Pipeline::add_finders(const AddedToken& token) {
  std::string pattern = token.content;
  if (token.normalized && parts_.normalizer) {
    AlignedText text(pattern, 0, /*tracked=*/false);
    parts_.normalizer->apply(text);
    pattern = text.str();
    // Decoded text has the token as it was matched.
    added_.at(token.id).content = pattern;
  }
  for (Finders* finders : {&all_, &ordinary_}) {
    if (finders == &ordinary_ && token.special) continue;
    (token.normalized ? finders->normalized : finders->raw).add(token, pattern);
  }
}

// A post-processor adds the same tokens to every text, so a text of one token reveals them.
void Pipeline::find_surroundings() {
  if (!parts_.post_processor) return;
  Encoding one, two;
  one.append(kFirst, "x", 0);
  two.append(kSecond, "y", 0);
  const Encoding out = finish({one}, /*special=*/true);
  const auto text = std::find(out.ids.begin(), out.ids.end(), kFirst);
  prefix_.assign(out.ids.begin(), text);
  if (text != out.ids.end()) suffix_.assign(text + 1, out.ids.end());
  const Encoding pair = finish({one, two}, /*special=*/true);
  pair_frame_.clear();
  for (std::size_t i = 0; i < pair.ids.size(); ++i)
    pair_frame_.emplace_back(pair.ids[i], pair.type_ids[i]);
}

std::vector<Pipeline::Piece> Pipeline::pieces_of(std::string_view text,
                                                 bool tracked,
                                                 bool special) const {
  const Finders& finders = special ? all_ : ordinary_;
  std::vector<Piece> out;
  std::vector<AlignedText> pieces;
  for (const auto& raw : finders.raw.split(text)) {
    AlignedText part(text.substr(raw.begin, raw.end - raw.begin), raw.begin, tracked);
    if (raw.id >= 0) {
      out.push_back({std::move(part), raw.id});
      continue;
    }
    if (parts_.normalizer) parts_.normalizer->apply(part);
    const auto sections = finders.normalized.split(part.str());
    for (const auto& section : sections) {
      const bool whole = section.begin == 0 && section.end == part.str().size();
      AlignedText slice = whole ? std::move(part) : part.slice(section.begin, section.end);
      if (section.id >= 0 || !parts_.pre_tokenizer) {
        out.push_back({std::move(slice), section.id});
      } else {
        pieces.clear();
        parts_.pre_tokenizer->apply(std::move(slice), pieces);
        for (AlignedText& piece : pieces)
          out.push_back({std::move(piece), -1});
      }
      if (whole) break;
    }
  }
  return out;
}

Encoding Pipeline::encode_one(std::string_view bytes) const {
  TESSERA_REQUIRE(bytes.size() <= kLongestText,
                  Data,
                  "a text of more than 1 GiB cannot be tokenized at once",
                  "cut it into documents");
  const std::string text = to_valid_utf8(bytes);
  const CodePoints points(text);
  Encoding out;
  std::vector<Token> tokens;
  const auto add = [&](const AlignedText& piece, const Token& token, std::string written) {
    out.ids.push_back(token.id);
    out.tokens.push_back(std::move(written));
    out.offsets.push_back(points.of(piece.original(token.begin, token.end)));
    out.type_ids.push_back(0);
  };
  for (const Piece& piece : pieces_of(text, /*tracked=*/true, /*special=*/true)) {
    const std::string& s = piece.text.str();
    if (piece.id >= 0) {
      add(piece.text, {piece.id, 0, static_cast<std::uint32_t>(s.size())}, s);
      continue;
    }
    tokens.clear();
    parts_.model->tokenize(s, tokens);
    for (const Token& token : tokens) {
      add(piece.text,
          token,
          token.unknown ? s.substr(token.begin, token.end - token.begin)
                        : parts_.model->vocabulary().text(token.id));
    }
  }
  return out;
}

Encoding Pipeline::finish(std::vector<Encoding> encodings, bool special) const {
  for (std::size_t i = 0; i < encodings.size(); ++i)
    std::fill(encodings[i].type_ids.begin(), encodings[i].type_ids.end(), i == 0 ? 0 : 1);
  if (parts_.post_processor) parts_.post_processor->apply(encodings, special);
  Encoding out;
  for (const Encoding& encoding : encodings)
    out.append(encoding);
  return out;
}

Encoding Pipeline::encode(std::string_view text, bool special) const {
  return finish({encode_one(text)}, special);
}

Encoding Pipeline::encode_pair(std::string_view first,
                               std::string_view second,
                               bool special) const {
  return finish({encode_one(first), encode_one(second)}, special);
}

Pipeline::Limited Pipeline::finish_limited(std::vector<Encoding> encodings, bool special) const {
  if (const auto& truncation = parts_.limits.truncation) {
    const std::size_t added = encodings.size() == 1 ? prefix_.size() + suffix_.size()
                                                    : pair_frame_.size() - encodings.size();
    truncate(encodings, *truncation, special ? static_cast<std::int64_t>(added) : 0);
  }
  Limited out{finish(std::move(encodings), special)};
  out.attention_mask = pad(out.encoding, parts_.limits.padding);
  return out;
}

Pipeline::Limited Pipeline::encode_limited(std::string_view text, bool special) const {
  return finish_limited({encode_one(text)}, special);
}

Pipeline::Limited Pipeline::encode_pair_limited(std::string_view first,
                                                std::string_view second,
                                                bool special) const {
  return finish_limited({encode_one(first), encode_one(second)}, special);
}

void Pipeline::encode_ids(std::string_view bytes,
                          std::vector<std::int32_t>& out,
                          bool special) const {
  TESSERA_REQUIRE(bytes.size() <= kLongestText,
                  Data,
                  "a text of more than 1 GiB cannot be tokenized at once",
                  "cut it into documents");
  std::string valid;
  if (!is_valid_utf8(bytes)) {
    valid = to_valid_utf8(bytes);
    bytes = valid;
  }
  WordCache& words = words_of(instance_);
  std::vector<Token> tokens;
  std::vector<std::int32_t> ids;
  for (const Piece& piece : pieces_of(bytes, /*tracked=*/false, special)) {
    if (piece.id >= 0) {
      out.push_back(piece.id);
      continue;
    }
    const std::string& s = piece.text.str();
    WordCache::Key key{};
    WordCache::Entry* entry = nullptr;
    if (!s.empty() && s.size() <= WordCache::kLongestWord) {
      key = WordCache::key_of(s.data(), s.size(), s.data() + s.size());
      entry = &words.entry(key);
      if (entry->key == key) {
        out.insert(out.end(), entry->ids, entry->ids + entry->count);
        continue;
      }
    }
    tokens.clear();
    ids.clear();
    parts_.model->tokenize(s, tokens);
    for (const Token& token : tokens)
      ids.push_back(token.id);
    if (entry != nullptr) WordCache::store(*entry, key, ids);
    out.insert(out.end(), ids.begin(), ids.end());
  }
}

std::string Pipeline::decode(const std::vector<std::int32_t>& ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const auto added = added_.find(id);
    if (added == added_.end() && !parts_.model->vocabulary().has(id)) continue;
    if (skip_special && is_special(id)) continue;
    tokens.push_back(token_of(id));
  }
  std::string out;
  if (parts_.decoder) parts_.decoder->apply(tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!parts_.decoder && i > 0) out += ' ';
    out += tokens[i];
  }
  return out;
}

std::optional<std::int32_t> Pipeline::id_of(std::string_view token) const {
  const auto added = added_ids_.find(std::string(token));
  return added != added_ids_.end() ? added->second : parts_.model->vocabulary().find(token);
}

const std::string& Pipeline::token_of(std::int32_t id) const {
  const auto added = added_.find(id);
  return added != added_.end() ? added->second.content : parts_.model->vocabulary().text(id);
}

// Compares texts, as the library does: a token with the same text under another id counts too.
bool Pipeline::is_special(std::int32_t id) const {
  const auto found = added_ids_.find(token_of(id));
  return found != added_ids_.end() && added_.at(found->second).special;
}

}  // namespace tessera::text::tokenizers
