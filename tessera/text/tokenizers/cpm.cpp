// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/cpm.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/jieba.h"

namespace tessera::text::tokenizers {
namespace {

constexpr char32_t kSpace = U'\u2582', kLineBreak = U'\u2583';
constexpr std::pair<std::string_view, std::string_view> kRestored[] = {
    {" ", ""}, {"\u2581", ""}, {"\u2582", " "}, {"\u2583", "\n"}};

class WordsOfJieba final : public Normalizer {
 public:
  explicit WordsOfJieba(std::shared_ptr<const Jieba> jieba) : jieba_(std::move(jieba)) {}

  void apply(AlignedText& text) const override {
    const std::vector<char32_t> characters = characters_of(text.str());
    std::vector<Change> changes;
    std::size_t at = 0;
    for (const std::size_t end : jieba_->cut(characters)) {
      if (at > 0) changes.push_back({U' ', 1});
      for (; at < end; ++at) {
        const char32_t c = characters[at];
        changes.push_back({c == U' ' ? kSpace : c == U'\n' ? kLineBreak : c, 0});
      }
    }
    text.transform(changes);
  }

 private:
  std::shared_ptr<const Jieba> jieba_;
};

class CpmDecoder final : public Decoder {
 public:
  explicit CpmDecoder(DecoderPtr inner) : inner_(std::move(inner)) {}
  void apply(std::vector<std::string>& tokens) const override {
    if (inner_) inner_->apply(tokens);
    for (std::string& token : tokens)
      token = cpm_text(token);
  }

 private:
  DecoderPtr inner_;
};

}  // namespace

bool is_cpm(std::string_view tokenizer_class) {
  return tokenizer_class == "CpmTokenizer";
}

void add_cpm(PipelineParts& parts) {
  const auto jieba = std::make_shared<const Jieba>(Jieba::find());
  std::vector<NormalizerPtr> normalizers = {std::make_shared<WordsOfJieba>(jieba)};
  if (parts.normalizer) normalizers.push_back(parts.normalizer);
  parts.normalizer = normalize_in_sequence(std::move(normalizers));
  parts.decoder = std::make_shared<CpmDecoder>(parts.decoder);
  parts.outside += jieba->fingerprint();
}

std::string cpm_text(const std::string& piece) {
  std::string out;
  for (std::size_t at = 0; at < piece.size();) {
    const std::string_view rest = std::string_view(piece).substr(at);
    const auto* known = std::find_if(std::begin(kRestored),
                                     std::end(kRestored),
                                     [&](const auto& one) { return rest.starts_with(one.first); });
    if (known == std::end(kRestored)) {
      out += piece[at++];
      continue;
    }
    out += known->second;
    at += known->first.size();
  }
  return out;
}

}  // namespace tessera::text::tokenizers
