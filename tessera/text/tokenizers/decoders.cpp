// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/decoders.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/normalizers.h"

namespace tessera::text::tokenizers {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

void clean_up(std::string& text) {
  static const std::array<std::pair<std::string, std::string>, 11> kRules = {{{" .", "."},
                                                                              {" ?", "?"},
                                                                              {" !", "!"},
                                                                              {" ,", ","},
                                                                              {" ' ", "'"},
                                                                              {" n't", "n't"},
                                                                              {" 'm", "'m"},
                                                                              {" do not", " don't"},
                                                                              {" 's", "'s"},
                                                                              {" 've", "'ve"},
                                                                              {" 're", "'re"}}};
  for (const auto& [from, to] : kRules)
    replace_all(text, from, to);
}

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens)
      append(token, bytes);
    tokens.assign(1, to_valid_utf8(bytes));
  }

 private:
  // A token with other characters is literal text.
  static void append(const std::string& token, std::string& out) {
    const std::size_t before = out.size();
    for (std::size_t at = 0; at < token.size();) {
      const int byte = byte_of_character(next_character(token, at));
      if (byte < 0) {
        out.resize(before);
        out += token;
        return;
      }
      out.push_back(static_cast<char>(byte));
    }
  }
};

class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_valid_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_in(token); byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static int byte_in(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
    const int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class FuseDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens)
      text += token;
    tokens.assign(1, std::move(text));
  }
};

class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(char32_t replacement, bool prepended) : prepended_(prepended) {
    append_utf8(replacement_, replacement);
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], replacement_, i == 0 && prepended_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool prepended_;
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(PatternPtr pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    Ranges found;
    for (std::string& token : tokens) {
      found.clear();
      pattern_->find(token, found);
      if (found.empty()) continue;
      AlignedText text(token, 0, /*tracked=*/false);
      text.replace(found, content_);
      token = text.str();
    }
  }

 private:
  PatternPtr pattern_;
  std::string content_;
};

class StripDecoder final : public Decoder {
 public:
  StripDecoder(char32_t content, std::int64_t start, std::int64_t stop)
      : start_(start), stop_(stop) {
    append_utf8(content_, content);
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::size_t begin = 0, end = token.size();
      for (std::int64_t n = 0; n < start_ && token.compare(begin, content_.size(), content_) == 0;
           ++n) {
        begin += content_.size();
      }
      for (std::int64_t n = 0; n < stop_ && end >= begin + content_.size() &&
                               token.compare(end - content_.size(), content_.size(), content_) == 0;
           ++n) {
        end -= content_.size();
      }
      token = token.substr(begin, end - begin);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup)
      : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) {
        if (!prefix_.empty() && token.starts_with(prefix_)) {
          token.erase(0, prefix_.size());
        } else {
          token.insert(token.begin(), ' ');
        }
      }
      if (cleanup_) clean_up(token);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

class CtcDecoder final : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == tokens[i - 1]) continue;
      std::string token = tokens[i];
      replace_all(token, pad_, "");
      if (cleanup_) {
        clean_up(token);
        replace_all(token, delimiter_, " ");
      }
      if (!token.empty()) out.push_back(std::move(token));
    }
    tokens = std::move(out);
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class SequenceDecoder final : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<DecoderPtr> parts) : parts_(std::move(parts)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (const DecoderPtr& part : parts_)
      part->apply(tokens);
  }

 private:
  std::vector<DecoderPtr> parts_;
};

DecoderPtr sequence(const Part& part, int depth) {
  if (depth >= kDeepestSequence) refuse_part(part.where(), "is nested too deep");
  const json& list = part.at("decoders");
  if (!list.is_array()) refuse_part(part.where(), "has decoders that are not a list");
  std::vector<DecoderPtr> parts;
  for (const json& item : list) {
    parts.push_back(read_decoder(
        Part(item, fmt::format("{}.decoders[{}]", part.where(), parts.size())), depth + 1));
  }
  return std::make_shared<SequenceDecoder>(std::move(parts));
}

}  // namespace

DecoderPtr read_decoder(const Part& part, int depth) {
  const std::string type = part.type();
  if (type == "Sequence") return sequence(part, depth);
  if (type == "ByteLevel") return std::make_shared<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_shared<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_shared<FuseDecoder>();
  if (type == "Metaspace") {
    const bool old = part.flag("add_prefix_space", true);
    const std::string scheme = part.text("prepend_scheme", old ? "always" : "never");
    return std::make_shared<MetaspaceDecoder>(part.character("replacement"), scheme != "never");
  }
  if (type == "Replace") {
    return std::make_shared<ReplaceDecoder>(read_pattern(part.part("pattern")),
                                            part.text("content"));
  }
  if (type == "Strip") {
    return std::make_shared<StripDecoder>(
        part.character("content"), part.integer("start", 0), part.integer("stop", 0));
  }
  if (type == "WordPiece") {
    return std::make_shared<WordPieceDecoder>(part.text("prefix", "##"),
                                              part.flag("cleanup", true));
  }
  if (type == "BPEDecoder") return std::make_shared<BpeDecoder>(part.text("suffix", "</w>"));
  if (type == "CTC") {
    return std::make_shared<CtcDecoder>(part.text("pad_token", "<pad>"),
                                        part.text("word_delimiter_token", "|"),
                                        part.flag("cleanup", true));
  }
  unsupported_part(part.where(), fmt::format("is a decoder of the unknown type \"{}\"", type));
}

}  // namespace tessera::text::tokenizers
