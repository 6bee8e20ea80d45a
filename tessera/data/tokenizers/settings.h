// SPDX-License-Identifier: Apache-2.0
// What lies beside a vocabulary and says how it is used: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizers/added_tokens.h"
#include "tessera/data/tokenizers/models.h"
#include "tessera/data/tokenizers/part_reader.h"

namespace tessera::data::tokenizers {

/// Threads: const methods from any thread.
class Settings {
 public:
  /// Of the files in the folder; those that are not there say nothing. Error{Format} for files that
  /// are no JSON objects.
  explicit Settings(const std::filesystem::path& folder);

  /// The token of a role, such as "eos_token": its text, or the "content" of an object. Nothing
  /// where no file names it, and where the first that does says null.
  [[nodiscard]] std::optional<std::string> token(const char* role) const;
  /// The same; `otherwise` where no file names the role.
  [[nodiscard]] std::optional<std::string> token(const char* role, const char* otherwise) const;
  /// Members of tokenizer_config.json. Error{Format} for one of another type.
  [[nodiscard]] std::optional<bool> flag(const char* key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(const char* key) const;
  [[nodiscard]] std::optional<std::string> text(const char* key) const;
  [[nodiscard]] std::vector<std::string> texts(const char* key) const;
  /// Its "tokenizer_class" without "Fast" at the end; empty where it has none.
  [[nodiscard]] std::string tokenizer_class() const;
  /// Whether its "sp_model_kwargs" ask for random ids.
  [[nodiscard]] bool samples() const;
  /// "model_type" of the model's config.json; empty where there is none.
  [[nodiscard]] const std::string& model_type() const { return model_type_; }

  /// The tokens that text is searched for: those of the `roles`, additional_special_tokens, and
  /// added tokens, which need not be special. A token that has no id gets the next one behind the
  /// vocabulary, in this order. Error{Format} for tokens whose ids are none.
  [[nodiscard]] std::vector<AddedToken> added_tokens(
      const Vocabulary& vocabulary, const std::vector<std::optional<std::string>>& roles) const;

  /// All that ids may depend on, for a fingerprint.
  [[nodiscard]] std::string all() const;

 private:
  json config_, special_tokens_, added_tokens_;
  std::string model_type_, where_;
};

}  // namespace tessera::data::tokenizers
