// SPDX-License-Identifier: Apache-2.0
// Typed reading of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/json.h"

namespace tessera::models {

/// Reads keys of a config.json; an absent or null key has the default that the caller passes.
/// Throws Error{Format} with the key's place for impossible values.
class HfConfig {
 public:
  /// Throws Error{Format} unless `config` is an object.
  explicit HfConfig(const json::Value& config);

  [[nodiscard]] const json::Value* find(const char* key) const;
  /// True if the key exists, even if it is null.
  [[nodiscard]] bool given(const char* key) const;
  /// True if the key is absent, null, or an empty object or array.
  [[nodiscard]] bool empty(const char* key) const;
  [[nodiscard]] std::int64_t count(const char* key, std::int64_t absent, double max) const;
  /// 0 if the key is absent or null.
  [[nodiscard]] std::int64_t count_or_null(const char* key, double max) const;
  [[nodiscard]] double number(const char* key, double absent, double min, double max) const;
  /// nullopt if the key is absent or null.
  [[nodiscard]] std::optional<double> number_or_none(const char* key, double min, double max) const;
  [[nodiscard]] bool flag(const char* key, bool absent) const;
  [[nodiscard]] std::string word(const char* key, const char* absent) const;
  /// Returns tessera's name of an activation: "gelu_new" is "gelu_tanh". Throws Error{Unsupported}
  /// for others.
  [[nodiscard]] std::string activation(const char* key, const char* absent) const;
  /// Throws Error{Unsupported} with the key's name if its value is not harmless, because it
  /// computes something else.
  void refuse(const char* key, bool harmless, const char* expected) const;

 private:
  const json::Value& config_;
};

/// A real number for a config.json. A whole one ends in ".0", because transformers 5 refuses an
/// integer for some keys.
json::Value real_to_hf(double value);

/// Hugging Face's name of a tessera activation; empty if it has none.
std::string activation_to_hf(const std::string& name);

}  // namespace tessera::models
