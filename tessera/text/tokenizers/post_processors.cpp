// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/post_processors.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/models.h"

namespace tessera::text::tokenizers {
namespace {

constexpr char32_t kByteSpace = 0x120;  // the character of a space in byte-level BPE

// Excludes the white space at both ends of tokens from their offsets.
void trim_offsets(Encoding& encoding, bool prefix_space) {
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    const std::vector<char32_t> characters = characters_of(encoding.tokens[i]);
    const auto space = [](char32_t c) { return c == kByteSpace || is_space(c); };
    auto leading = static_cast<std::int64_t>(
        std::find_if_not(characters.begin(), characters.end(), space) - characters.begin());
    const auto trailing = static_cast<std::int64_t>(
        std::find_if_not(characters.rbegin(), characters.rend(), space) - characters.rbegin());
    auto& [begin, end] = encoding.offsets[i];
    if (leading > 0) {
      // A single space before the first token counts as the one that was added.
      if ((i == 0 || begin == 0) && prefix_space && leading == 1) leading = 0;
      begin = std::min(begin + leading, end);
    }
    if (trailing > 0 && end >= trailing) end = std::max(end - trailing, begin);
  }
}

class ByteLevelProcessor final : public PostProcessor {
 public:
  ByteLevelProcessor(bool trim, bool prefix_space) : trim_(trim), prefix_space_(prefix_space) {}
  void apply(std::vector<Encoding>& encodings, bool /*special*/) const override {
    if (!trim_) return;
    for (Encoding& encoding : encodings)
      trim_offsets(encoding, prefix_space_);
  }

 private:
  bool trim_, prefix_space_;
};

struct Special {
  std::string text;
  std::int32_t id = 0;
};

class BertProcessor final : public PostProcessor {
 public:
  /// RoBERTa has one more separator between two texts, and no types.
  BertProcessor(Special cls, Special sep, bool roberta)
      : cls_(std::move(cls)), sep_(std::move(sep)), roberta_(roberta) {}
  void apply(std::vector<Encoding>& encodings, bool special) const override {
    if (!special) return;
    for (std::size_t i = 0; i < encodings.size(); ++i) {
      const std::int32_t type = roberta_ || i == 0 ? 0 : 1;
      Encoding out;
      if (i == 0) {
        out.append(cls_.id, cls_.text, type);
      } else if (roberta_) {
        out.append(sep_.id, sep_.text, type);
      }
      std::fill(encodings[i].type_ids.begin(), encodings[i].type_ids.end(), type);
      out.append(encodings[i]);
      out.append(sep_.id, sep_.text, type);
      encodings[i] = std::move(out);
    }
  }

 private:
  Special cls_, sep_;
  bool roberta_;
};

class SequenceProcessor final : public PostProcessor {
 public:
  explicit SequenceProcessor(std::vector<PostProcessorPtr> parts) : parts_(std::move(parts)) {}
  void apply(std::vector<Encoding>& encodings, bool special) const override {
    for (const PostProcessorPtr& part : parts_)
      part->apply(encodings, special);
  }

 private:
  std::vector<PostProcessorPtr> parts_;
};

class TemplateProcessor final : public PostProcessor {
 public:
  explicit TemplateProcessor(const Part& part) {
    if (part.find("special_tokens") != nullptr) read_specials(part.part("special_tokens"));
    single_ = pieces_of(part, "single");
    pair_ = pieces_of(part, "pair");
  }
  void apply(std::vector<Encoding>& encodings, bool special) const override {
    const std::vector<Piece>& pieces = encodings.size() == 1 ? single_ : pair_;
    std::vector<Encoding> out;
    for (const Piece& piece : pieces) {
      if (piece.sequence >= 0) {
        Encoding encoding = encodings[static_cast<std::size_t>(piece.sequence)];
        std::fill(encoding.type_ids.begin(), encoding.type_ids.end(), piece.type);
        out.push_back(std::move(encoding));
        continue;
      }
      if (!special) continue;
      Encoding encoding;
      for (const Special& each : specials_.at(piece.special))
        encoding.append(each.id, each.text, piece.type);
      out.push_back(std::move(encoding));
    }
    encodings = std::move(out);
  }

 private:
  struct Piece {
    int sequence = -1;  // 0 for A, 1 for B
    std::string special;
    std::int32_t type = 0;
  };

  void read_specials(const Part& part) {
    for (const auto& [name, value] : part.object().items()) {
      const Part one(value, fmt::format("{}.{}", part.where(), name));
      const json &ids = one.at("ids"), &tokens = one.at("tokens");
      if (!ids.is_array() || !tokens.is_array() || ids.size() != tokens.size())
        refuse_part(one.where(), "has ids and tokens that do not match");
      std::vector<Special>& list = specials_[name];
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (!ids[i].is_number_unsigned() || ids[i].get<std::uint64_t>() > Vocabulary::kLargestId ||
            !tokens[i].is_string()) {
          refuse_part(one.where(), "has an id or a token of another kind");
        }
        list.push_back({tokens[i].get<std::string>(), ids[i].get<std::int32_t>()});
      }
    }
  }

  std::vector<Piece> pieces_of(const Part& part, const char* key) const {
    std::vector<Piece> pieces;
    const json& list = part.at(key);
    if (!list.is_array())
      refuse_part(part.where(), fmt::format("has a \"{}\" that is not a list", key));
    for (const json& item : list) {
      const Part one(item, fmt::format("{}.{}[{}]", part.where(), key, pieces.size()));
      const bool special = one.find("SpecialToken") != nullptr;
      const Part inner = one.part(special ? "SpecialToken" : "Sequence");
      Piece piece;
      piece.type = static_cast<std::int32_t>(std::clamp<std::int64_t>(
          inner.integer("type_id", 0), 0, std::numeric_limits<std::int32_t>::max()));
      const std::string id = inner.text("id");
      if (special) {
        if (!specials_.contains(id))
          refuse_part(one.where(),
                      fmt::format("names the special token \"{}\", which is not there", id));
        piece.special = id;
      } else {
        const bool second = id == "B";
        if ((!second && id != "A") || (second && std::string_view(key) == "single"))
          refuse_part(one.where(), fmt::format("names the sequence \"{}\"", id));
        piece.sequence = second ? 1 : 0;
      }
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  std::map<std::string, std::vector<Special>> specials_;
  std::vector<Piece> single_, pair_;
};

// ["[CLS]", 101]
Special special_of(const Part& part, const char* key) {
  const json& value = part.at(key);
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() ||
      !value[1].is_number_unsigned() || value[1].get<std::uint64_t>() > Vocabulary::kLargestId) {
    refuse_part(part.where(), fmt::format("has a \"{}\" that is not [token, id]", key));
  }
  return {value[0].get<std::string>(), value[1].get<std::int32_t>()};
}

PostProcessorPtr sequence(const Part& part, int depth) {
  if (depth >= kDeepestSequence) refuse_part(part.where(), "is nested too deep");
  const json& list = part.at("processors");
  if (!list.is_array()) refuse_part(part.where(), "has processors that are not a list");
  std::vector<PostProcessorPtr> parts;
  for (const json& item : list) {
    parts.push_back(read_post_processor(
        Part(item, fmt::format("{}.processors[{}]", part.where(), parts.size())), depth + 1));
  }
  // The tokenizers library chooses a template by the number of texts; a second post-processor would
  // get its pieces.
  const auto templates = std::count_if(list.begin(), list.end(), [](const json& item) {
    return item.is_object() && item.value("type", "") == "TemplateProcessing";
  });
  if (templates > 1) unsupported_part(part.where(), "has more than one TemplateProcessing");
  return std::make_shared<SequenceProcessor>(std::move(parts));
}

}  // namespace

void Encoding::append(const Encoding& other) {
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
  offsets.insert(offsets.end(), other.offsets.begin(), other.offsets.end());
  type_ids.insert(type_ids.end(), other.type_ids.begin(), other.type_ids.end());
}

void Encoding::append(std::int32_t id, const std::string& token, std::int32_t type_id) {
  ids.push_back(id);
  tokens.push_back(token);
  offsets.emplace_back(0, 0);
  type_ids.push_back(type_id);
}

PostProcessorPtr read_post_processor(const Part& part, int depth) {
  const std::string type = part.type();
  if (type == "Sequence") return sequence(part, depth);
  if (type == "ByteLevel") {
    return std::make_shared<ByteLevelProcessor>(part.flag("trim_offsets", true),
                                                part.flag("add_prefix_space", true));
  }
  if (type == "TemplateProcessing") return std::make_shared<TemplateProcessor>(part);
  if (type == "BertProcessing") {
    return std::make_shared<BertProcessor>(special_of(part, "cls"), special_of(part, "sep"), false);
  }
  if (type == "RobertaProcessing") {
    std::vector<PostProcessorPtr> parts;
    parts.push_back(std::make_shared<ByteLevelProcessor>(part.flag("trim_offsets", true),
                                                         part.flag("add_prefix_space", true)));
    parts.push_back(
        std::make_shared<BertProcessor>(special_of(part, "cls"), special_of(part, "sep"), true));
    return std::make_shared<SequenceProcessor>(std::move(parts));
  }
  unsupported_part(part.where(),
                   fmt::format("is a post-processor of the unknown type \"{}\"", type));
}

}  // namespace tessera::text::tokenizers
