// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/splits.h"

#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

/// Expressions as strings of JSON contain them.
constexpr const char* kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
constexpr const char* kOneDigit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
constexpr const char* kMarks =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
constexpr const char* kCased =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
constexpr const char* kTekken =
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+)"
    R"(|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*)"
    R"(|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
/// The line breaks of these are characters of the expression, not escapes.
constexpr const char* kLineBreak = R"([\r\n])";
constexpr const char* kDeepseekMain =
    R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)";
constexpr const char* kChinese = R"([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)";
constexpr const char* kChineseAndKorean = R"([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)";
/// A word of cased letters.
constexpr const char* kCasedLetters =
    R"(\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373)"
    R"(\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f)"
    R"(\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77)"
    R"(\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d)"
    R"(\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4)"
    R"(\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139)"
    R"(\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d)"
    R"(\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a)"
    R"(\uff41-\uff5a\ud801\udc00-\ud801\udc4f\ud801\udcb0-\ud801\udcd3\ud801\udcd8-\ud801\udcfb\ud803\udc80-)"
    R"(\ud803\udcb2\ud803\udcc0-\ud803\udcf2\ud806\udca0-\ud806\udcdf\ud83a\udd00-\ud83a\udd43]+)";
constexpr const char* kPunctuation =
    R"(\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+)";

enum class Digits : std::uint8_t { Ignored, Single, Together };

/// A text is split by each expression in turn, then at digits.
struct TokenizerSplit {
  const char* name;
  std::vector<const char*> expressions;
  Digits digits = Digits::Ignored;
  bool nfc = false, ignore_merges = false;
  /// The vocabulary has a merge for each of its words, so `ignore_merges` changes nothing. True for
  /// vocabularies of tiktoken.
  bool complete_merges = false;
};

/// The first entry of a name is read; the first entry that a tokenizer.json fits is written.
const std::vector<TokenizerSplit>& known_splits() {
  static const std::vector<TokenizerSplit> all = {
      {"gpt-2", {}},
      {"jais", {}},
      {"phi-2", {}},
      {"olmo", {}, Digits::Ignored, true},
      {"mpt", {}, Digits::Ignored, true},
      {"smollm", {}, Digits::Single},
      {"starcoder", {}, Digits::Single},
      {"refact", {}, Digits::Single},
      {"command-r", {}, Digits::Single, true},
      {"llama-bpe", {kThreeDigits}, Digits::Ignored, false, true},
      {"llama3", {kThreeDigits}, Digits::Ignored, false, true},
      {"llama-v3", {kThreeDigits}, Digits::Ignored, false, true},
      {"dbrx", {kThreeDigits}},
      {"smaug-bpe", {kThreeDigits}},
      {"qwen2", {kOneDigit}, Digits::Ignored, true},
      {"deepseek-r1-qwen", {kOneDigit}},
      {"stablelm2", {kOneDigit}},
      {"qwen35", {kMarks}, Digits::Ignored, true},
      {"gpt-4o", {kCased}, Digits::Ignored, false, true, true},
      {"llama4", {kCased}, Digits::Ignored, false, true, true},
      {"tekken", {kTekken}, Digits::Ignored, false, true},
      {"deepseek-llm",
       {kLineBreak, kCasedLetters, kPunctuation, R"(\\s+$)", kChineseAndKorean},
       Digits::Single},
      {"deepseek-llm",
       {kLineBreak, kCasedLetters, kPunctuation, R"(\\s+$)", kChineseAndKorean},
       Digits::Together},
      {"deepseek-coder",
       {kLineBreak, R"(\\s?\\p{L}+)", R"(\\s?\\p{P}+)", kChineseAndKorean},
       Digits::Single},
      {"deepseek-v3", {R"(\\p{N}{1,3})", kChinese, kDeepseekMain}},
  };
  return all;
}

json::Value text(const char* value) {
  return json::Value::string(value);
}
json::Value flag(bool value) {
  return json::Value::boolean(value);
}

bool is(const json::Value* value, const char* expected) {
  return value != nullptr && value->is_string() && value->as_string() == expected;
}
bool is_true(const json::Value* value) {
  return value != nullptr && value->is_bool() && value->as_bool();
}

/// Escapes the line breaks of an expression, which files have in both ways.
std::string escaped(const std::string& expression) {
  std::string out;
  for (const char c : expression) {
    if (c == '\r') {
      out += "\\r";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

/// Adds every default and uses one notation, so that two steps that compute the same are equal.
/// `covers`: the expressions match every part of a text, so to keep only the matches ("Removed"
/// with "invert") is to split at them.
json::Value complete(const json::Value& step, bool covers) {
  if (!step.is_object()) return step;
  json::Value out = json::Value::object();
  for (const auto& [key, value] : step.members()) {
    if (key == "trim_offsets") continue;
    if (key != "pretokenizers" || !value.is_array()) {
      out[key] = value;
      continue;
    }
    std::vector<json::Value> steps;
    for (const json::Value& one : value.items())
      steps.push_back(complete(one, covers));
    out[key] = json::Value::array(std::move(steps));
  }
  const auto otherwise = [&](const char* key, bool value) {
    if (out.find(key) == nullptr) out[key] = flag(value);
  };
  if (is(out.find("type"), "ByteLevel")) {
    otherwise("add_prefix_space", false);
    otherwise("use_regex", true);
  }
  if (is(out.find("type"), "Digits")) otherwise("individual_digits", false);
  if (!is(out.find("type"), "Split")) return out;
  otherwise("invert", false);
  if (covers && is_true(out.find("invert")) && is(out.find("behavior"), "Removed")) {
    out["invert"] = flag(false);
    out["behavior"] = text("Isolated");
  }
  json::Value* const pattern = out.find("pattern");
  json::Value* const regex =
      pattern != nullptr && pattern->is_object() ? pattern->find("Regex") : nullptr;
  if (regex != nullptr && regex->is_string())
    *regex = json::Value::string(escaped(regex->as_string()));
  return out;
}

/// The pre_tokenizer of a tokenizer.json, with the offset settings of the library's own files.
json::Value pattern_of(const TokenizerSplit& known) {
  std::vector<json::Value> steps;
  for (const char* const expression : known.expressions) {
    const json::Value regex = json::parse_strict('"' + std::string(expression) + '"', known.name);
    steps.push_back(json::Value::object({{"type", text("Split")},
                                         {"pattern", json::Value::object({{"Regex", regex}})},
                                         {"behavior", text("Isolated")},
                                         {"invert", flag(false)}}));
  }
  if (known.digits != Digits::Ignored) {
    steps.push_back(json::Value::object(
        {{"type", text("Digits")}, {"individual_digits", flag(known.digits == Digits::Single)}}));
  }
  steps.push_back(json::Value::object({{"type", text("ByteLevel")},
                                       {"add_prefix_space", flag(false)},
                                       {"trim_offsets", flag(true)},
                                       {"use_regex", flag(known.expressions.empty())}}));
  if (steps.size() == 1) return steps.front();
  return json::Value::object(
      {{"type", text("Sequence")}, {"pretokenizers", json::Value::array(std::move(steps))}});
}

/// Returns true for a normalizer that is NFC, false for none, and std::nullopt for any other.
std::optional<bool> has_nfc(const json::Value* normalizer) {
  if (normalizer == nullptr || normalizer->is_null()) return false;
  if (!normalizer->is_object()) return std::nullopt;
  if (is(normalizer->find("type"), "NFC")) return true;
  const json::Value* const all = normalizer->find("normalizers");
  if (!is(normalizer->find("type"), "Sequence") || all == nullptr || !all->is_array())
    return std::nullopt;
  bool nfc = false;
  for (const json::Value& one : all->items()) {
    const auto has = has_nfc(&one);
    if (!has) return std::nullopt;
    nfc = nfc || *has;
  }
  return nfc;
}

}  // namespace

std::optional<Split> find_split(std::string_view name) {
  for (const TokenizerSplit& known : known_splits()) {
    if (name == known.name) return Split{pattern_of(known), known.nfc, known.ignore_merges};
  }
  return std::nullopt;
}

std::optional<std::string> name_of_split(const json::Value& tokenizer) {
  const json::Value* pre = tokenizer.find("pre_tokenizer");
  const json::Value* model = tokenizer.find("model");
  if (pre == nullptr || model == nullptr || !model->is_object()) return std::nullopt;
  const auto nfc = has_nfc(tokenizer.find("normalizer"));
  if (!nfc) return std::nullopt;
  const bool ignores = is_true(model->find("ignore_merges"));
  for (const TokenizerSplit& known : known_splits()) {
    // Every set of one expression here matches all of a text.
    const bool covers = known.expressions.size() == 1;
    if (known.nfc == *nfc && (known.complete_merges || known.ignore_merges == ignores) &&
        complete(pattern_of(known), covers) == complete(*pre, covers))
      return known.name;
  }
  return std::nullopt;
}

}  // namespace tessera::interop
