// SPDX-License-Identifier: Apache-2.0
// A folder with a tokenizer whose tokens are bytes and some special tokens.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/text/tokenizer.h"

namespace tessera::test {

class SpecialTokens {
 public:
  explicit SpecialTokens(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
    json::Value file = json::parse(text::byte_tokenizer_json(), "tokenizer.json");
    json::Value added = json::Value::array();
    for (const std::string& token : tokens_) {
      json::Value one = json::Value::object({{"id", json::Value::integer(id(token))},
                                             {"content", json::Value::string(token)},
                                             {"special", json::Value::boolean(true)}});
      for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
        one[flag] = json::Value::boolean(false);
      added.push_back(std::move(one));
    }
    file["added_tokens"] = std::move(added);
    write("tokenizer.json", file.dump());
  }
  void write(const std::string& name, const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] std::string file() const { return (path() / "tokenizer.json").string(); }
  [[nodiscard]] std::int32_t id(const std::string& token) const {
    constexpr std::int32_t kBytes = 256;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i] == token) return kBytes + static_cast<std::int32_t>(i);
    }
    throw std::out_of_range(token);
  }
  [[nodiscard]] text::TokenizerPtr tokenizer() const {
    return text::make_tokenizer({.type = "file", .vocab = file()});
  }

 private:
  std::vector<std::string> tokens_;
  files::TempDir folder_;
};

}  // namespace tessera::test
