// SPDX-License-Identifier: Apache-2.0
// The files next to a vocabulary that describe its use: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizers/added_tokens.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {

/// Const methods can be called from any thread.
class Settings {
 public:
  /// Reads the files in the folder; missing files contribute nothing. Throws Error{Format} for
  /// files that are not JSON objects.
  explicit Settings(const std::filesystem::path& folder);

  /// The token of a role, such as "eos_token": its text, or the "content" of an object. Returns
  /// nothing if no file contains it, or if the first file that does says null.
  [[nodiscard]] std::optional<std::string> token(const char* role) const;
  /// The same; returns `otherwise` if no file contains the role.
  [[nodiscard]] std::optional<std::string> token(const char* role, const char* otherwise) const;
  /// Members of tokenizer_config.json. Throws Error{Format} for a wrong type.
  [[nodiscard]] std::optional<bool> flag(const char* key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(const char* key) const;
  [[nodiscard]] std::optional<std::string> text(const char* key) const;
  [[nodiscard]] std::vector<std::string> texts(const char* key) const;
  /// Its "tokenizer_class", or that of config.json, without "Fast" at the end; empty if absent.
  [[nodiscard]] std::string tokenizer_class() const;
  /// True if its "sp_model_kwargs" request random ids.
  [[nodiscard]] bool samples() const;
  /// "model_type" of the model's config.json; empty if absent.
  [[nodiscard]] const std::string& model_type() const { return model_type_; }

  /// The tokens for which text is searched: those of the `roles`, additional_special_tokens, and
  /// added tokens, which need not be special. A token without an id gets the next one after the
  /// vocabulary, in this order. Throws Error{Format} for tokens with invalid ids.
  [[nodiscard]] std::vector<AddedToken> added_tokens(
      const Vocabulary& vocabulary, const std::vector<std::optional<std::string>>& roles) const;

  /// Everything on which ids may depend, for a fingerprint.
  [[nodiscard]] std::string all() const;

 private:
  json config_, special_tokens_, added_tokens_;
  std::string model_type_, model_class_, where_;
};

}  // namespace tessera::text::tokenizers
