// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/bert_vocabulary.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/bert_punctuation.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::int64_t kLongestWord = 100;

/// transformers classes with the rules of BertTokenizer.
constexpr std::array<std::string_view, 10> kClasses = {"BertTokenizer",
                                                       "ConvBertTokenizer",
                                                       "DistilBertTokenizer",
                                                       "DPRQuestionEncoderTokenizer",
                                                       "DPRContextEncoderTokenizer",
                                                       "ElectraTokenizer",
                                                       "LayoutLMTokenizer",
                                                       "LxmertTokenizer",
                                                       "MobileBertTokenizer",
                                                       "SqueezeBertTokenizer"};

Vocabulary read_lines(const std::string& text, const std::string& where) {
  if (!is_valid_utf8(text)) refuse_part(where, "is not UTF-8");
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    lines.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end + (std::string_view(text).substr(end, 2) == "\r\n" ? 2 : 1);
  }
  // If a token occurs twice, the last line counts, and of added tokens the first.
  Vocabulary out;
  for (std::size_t id = lines.size(); id-- > 0;)
    out.add(std::string(lines[id]), static_cast<std::int64_t>(id), where);
  return out;
}

// Unlike the tokenizers library, this drops unassigned characters.
void clean(char32_t c, std::vector<char32_t>& out) {
  if (c == '\t' || c == '\n' || c == '\r') {
    out.push_back(U' ');
  } else if (c != 0 && c != 0xFFFD && !is_control(c) && !is_unassigned(c)) {
    out.push_back(c);
  }
}

void put_chinese_apart(char32_t c, std::vector<char32_t>& out) {
  // The tokenizers library omits the first 256 characters of this block.
  const bool chinese = is_cjk(c) || (c >= 0x2B820 && c < 0x2B920);
  if (chinese) out.push_back(U' ');
  out.push_back(c);
  if (chinese) out.push_back(U' ');
}

void lower(char32_t c, std::vector<char32_t>& out) {
  append_lower(out, c);
}

void drop_marks(char32_t c, std::vector<char32_t>& out) {
  if (!is_nonspacing_mark(c)) out.push_back(c);
}

/// Splits at white space and around punctuation. Words that are never split keep their accents.
class BertWords final : public PreTokenizer {
 public:
  BertWords(NormalizerPtr each_word, std::set<std::string, std::less<>> whole, bool punctuation)
      : each_word_(std::move(each_word)), whole_(std::move(whole)), punctuation_(punctuation) {}

  void apply(AlignedText piece, std::vector<AlignedText>& out) const override {
    for_each_run(piece, is_space, [&](AlignedText word, bool space) {
      if (space) return;
      if (each_word_ && !whole_.contains(word.str())) each_word_->apply(word);
      if (word.empty()) return;
      if (!punctuation_ || whole_.contains(word.str())) {
        out.push_back(std::move(word));
        return;
      }
      for_each_run(word, is_bert_punctuation, [&](AlignedText part, bool /*mark*/) {
        out.push_back(std::move(part));
      });
    });
  }

 private:
  // Calls fn for each character that passes the test, and for each run of others.
  template <class Fn>
  static void for_each_run(const AlignedText& text, bool (*test)(char32_t), const Fn& fn) {
    const std::string& s = text.str();
    std::size_t begin = 0;
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t here = at;
      if (!test(next_character(s, at))) continue;
      if (begin < here) fn(text.slice(begin, here), false);
      fn(text.slice(here, at), true);
      begin = at;
    }
    if (begin < s.size()) fn(text.slice(begin, s.size()), false);
  }

  NormalizerPtr each_word_;
  std::set<std::string, std::less<>> whole_;
  bool punctuation_;
};

NormalizerPtr normalizer_of(const Settings& settings) {
  std::vector<NormalizerPtr> parts;
  if (settings.flag("do_lower_case").value_or(true)) parts.push_back(map_characters(lower));
  if (settings.flag("do_basic_tokenize").value_or(true)) {
    parts.push_back(map_characters(clean));
    if (settings.flag("tokenize_chinese_chars").value_or(true))
      parts.push_back(map_characters(put_chinese_apart));
    parts.push_back(normalize_to(UnicodeForm::Nfc));
  }
  return normalize_in_sequence(std::move(parts));
}

PreTokenizerPtr pre_tokenizer_of(const Settings& settings,
                                 const std::vector<AddedToken>& added,
                                 const Vocabulary& vocabulary,
                                 const std::string& where) {
  if (!settings.flag("do_basic_tokenize").value_or(true))
    return std::make_shared<BertWords>(nullptr, std::set<std::string, std::less<>>(), false);
  std::set<std::string, std::less<>> whole;
  for (const AddedToken& token : added) {
    if (token.special) whole.insert(token.content);
  }
  for (const std::string& word : settings.texts("never_split")) {
    if (!vocabulary.find(word))
      unsupported_part(where, fmt::format("has no token \"{}\", which never_split names", word));
    whole.insert(word);
  }
  NormalizerPtr each_word;
  if (settings.flag("strip_accents").value_or(settings.flag("do_lower_case").value_or(true)))
    each_word = normalize_in_sequence({normalize_to(UnicodeForm::Nfd), map_characters(drop_marks)});
  return std::make_shared<BertWords>(std::move(each_word), std::move(whole), true);
}

}  // namespace

PipelineParts read_bert_vocabulary(const std::filesystem::path& path, const Settings& settings) {
  const std::string where = path.string(), type = settings.tokenizer_class();
  if (!type.empty() && std::find(kClasses.begin(), kClasses.end(), type) == kClasses.end())
    unsupported_part(where, fmt::format("belongs to the tokenizer_class \"{}\"", type));
  Vocabulary vocabulary = read_lines(read_small_file(path), where);
  const auto role = [&](const char* name, const char* otherwise) {
    return settings.token(name, otherwise);
  };
  const auto unknown = role("unk_token", "[UNK]"), separator = role("sep_token", "[SEP]"),
             begin = role("cls_token", "[CLS]");
  const auto id_of = [&](const std::optional<std::string>& token, const char* name) {
    const auto id = token ? vocabulary.find(*token) : std::nullopt;
    if (!id)
      refuse_part(where, fmt::format("has no line \"{}\", its {}", token.value_or(""), name));
    return static_cast<std::uint32_t>(*id);
  };
  const auto unknown_id = static_cast<std::int32_t>(id_of(unknown, "unk_token"));
  const json processor = {{"type", "BertProcessing"},
                          {"sep", {*separator, id_of(separator, "sep_token")}},
                          {"cls", {*begin, id_of(begin, "cls_token")}}};
  const json decoder = {{"type", "WordPiece"},
                        {"prefix", "##"},
                        {"cleanup", settings.flag("clean_up_tokenization_spaces").value_or(true)}};
  PipelineParts out;
  // Tokens that no file names may be absent.
  const auto usual = [&](const char* name, const char* token) {
    return role(name, vocabulary.find(token) ? token : "");
  };
  out.added_tokens = settings.added_tokens(
      vocabulary,
      {unknown, separator, usual("pad_token", "[PAD]"), begin, usual("mask_token", "[MASK]")});
  out.normalizer = normalizer_of(settings);
  out.pre_tokenizer = pre_tokenizer_of(settings, out.added_tokens, vocabulary, where);
  out.post_processor = read_post_processor(Part(processor, where));
  out.decoder = read_decoder(Part(decoder, where));
  out.model = make_word_piece_model(std::move(vocabulary), unknown_id, "##", kLongestWord);
  return out;
}

}  // namespace tessera::text::tokenizers
