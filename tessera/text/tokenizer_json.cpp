// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;

constexpr const char* kEndOfText = "<|endoftext|>";

std::string as_json(std::string_view text) {
  return Json(text).dump();
}

/// Sorted by id, which is best for readers and diffs.
std::vector<std::pair<std::int64_t, std::string>> tokens_of(const Json& vocab) {
  std::vector<std::pair<std::int64_t, std::string>> out;
  for (const auto& [token, id] : vocab.items()) {
    TESSERA_REQUIRE(id.is_number_integer(),
                    Format,
                    "vocab.json: the id of " + as_json(token) + " is not a number",
                    "take vocab.json and merges.txt of the same tokenizer");
    out.emplace_back(id.get<std::int64_t>(), token);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The lines of merges.txt without its comment.
std::vector<std::string_view> merges_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    const bool comment = begin == 0 && line.starts_with("#version");
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !comment) out.push_back(line);
  }
  return out;
}

}  // namespace

std::string gpt2_tokenizer_json(const std::string& vocab, const std::string& merges) {
  const Json ids = Json::parse(vocab, nullptr, false);
  TESSERA_REQUIRE(ids.is_object() && ids.contains(kEndOfText),
                  Format,
                  std::string("vocab.json is not an object with the token ") + kEndOfText,
                  "take vocab.json and merges.txt of the same tokenizer");
  // Writes member by member, because filling an ordered JSON object of 50,000 members is slow.
  std::string out = R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
    {"id": )" + ids[kEndOfText].dump() +
                    R"(, "content": )" + as_json(kEndOfText) + R"(, "single_word": false,
     "lstrip": false, "rstrip": false, "normalized": true, "special": true}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {)";
  const char* separator = "\n      ";
  for (const auto& [id, token] : tokens_of(ids)) {
    out += separator + as_json(token) + ": " + std::to_string(id);
    separator = ",\n      ";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n      ";
  for (const std::string_view merge : merges_of(merges)) {
    out += separator + as_json(merge);
    separator = ",\n      ";
  }
  return out + "\n    ]\n  }\n}\n";
}

}  // namespace tessera::text
