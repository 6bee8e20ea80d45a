// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/splits.h"

#include <vector>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

/// Patterns as JSON.
constexpr const char* kPlain = R"({"type": "ByteLevel"})";
constexpr const char* kDigits = R"({"type": "Sequence", "pretokenizers": [
  {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel"}]})";
constexpr const char* kThreeDigits = R"({"type": "Sequence", "pretokenizers": [
  {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
   "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
  {"type": "ByteLevel", "use_regex": false}]})";
constexpr const char* kOneDigit = R"({"type": "Sequence", "pretokenizers": [
  {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
   "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
  {"type": "ByteLevel", "use_regex": false}]})";

/// The first name of a split is the one that is written.
struct TokenizerSplit {
  const char* name;
  const char* pattern;
  bool nfc = false, ignore_merges = false;
};
constexpr std::array kKnown = {
    TokenizerSplit{"gpt-2", kPlain},
    TokenizerSplit{"olmo", kPlain},
    TokenizerSplit{"jais", kPlain},
    TokenizerSplit{"phi-2", kPlain},
    TokenizerSplit{"smollm", kDigits},
    TokenizerSplit{"starcoder", kDigits},
    TokenizerSplit{"refact", kDigits},
    TokenizerSplit{"llama-bpe", kThreeDigits, false, true},
    TokenizerSplit{"llama3", kThreeDigits, false, true},
    TokenizerSplit{"qwen2", kOneDigit, true},
};

bool is(const json::Value* value, const char* text) {
  return value != nullptr && value->is_string() && value->as_string() == text;
}

/// Adds every default, so that two steps that compute the same are equal.
json::Value complete(const json::Value& step) {
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
      steps.push_back(complete(one));
    out[key] = json::Value::array(std::move(steps));
  }
  const auto otherwise = [&](const char* key, bool value) {
    if (out.find(key) == nullptr) out[key] = json::Value::boolean(value);
  };
  if (is(out.find("type"), "ByteLevel")) {
    otherwise("add_prefix_space", false);
    otherwise("use_regex", true);
  }
  if (is(out.find("type"), "Split")) otherwise("invert", false);
  return out;
}

json::Value pattern_of(const TokenizerSplit& known) {
  return complete(json::parse_strict(known.pattern, known.name));
}

/// The written form: as `complete`, with the offset settings of the library's own files.
json::Value with_offsets(json::Value step) {
  if (json::Value* steps = step.find("pretokenizers")) {
    for (json::Value& one : steps->items())
      one = with_offsets(one);
  }
  if (is(step.find("type"), "ByteLevel")) step["trim_offsets"] = json::Value::boolean(true);
  return step;
}

}  // namespace

std::optional<Split> find_split(std::string_view name) {
  for (const TokenizerSplit& known : kKnown) {
    if (name == known.name)
      return Split{with_offsets(pattern_of(known)), known.nfc, known.ignore_merges};
  }
  return std::nullopt;
}

std::optional<std::string> name_of_split(const json::Value& tokenizer) {
  const json::Value* pre = tokenizer.find("pre_tokenizer");
  const json::Value* normalizer = tokenizer.find("normalizer");
  const json::Value* model = tokenizer.find("model");
  if (pre == nullptr || model == nullptr || !model->is_object()) return std::nullopt;
  const bool nfc =
      normalizer != nullptr && normalizer->is_object() && is(normalizer->find("type"), "NFC");
  if (!nfc && normalizer != nullptr && !normalizer->is_null()) return std::nullopt;
  const json::Value* ignore = model->find("ignore_merges");
  const bool ignores = ignore != nullptr && ignore->is_bool() && ignore->as_bool();
  const json::Value asked = complete(*pre);
  for (const TokenizerSplit& known : kKnown) {
    if (known.nfc == nfc && known.ignore_merges == ignores && pattern_of(known) == asked)
      return known.name;
  }
  return std::nullopt;
}

}  // namespace tessera::interop
