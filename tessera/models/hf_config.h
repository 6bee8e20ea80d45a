// SPDX-License-Identifier: Apache-2.0
// Typed reading of Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/config/json.h"

namespace tessera::models {

/// Reads keys of a config.json; a key that is absent or null has the default that the caller names.
/// Values that cannot be are Error{Format} with the place of the key.
class HfConfig {
 public:
  /// Error{Format} unless `config` is an object.
  explicit HfConfig(const json::Value& config);

  [[nodiscard]] const json::Value* find(const char* key) const;
  /// Whether the key is there, even if it is null.
  [[nodiscard]] bool given(const char* key) const;
  /// Whether the key is absent, null, or an empty object or array.
  [[nodiscard]] bool empty(const char* key) const;
  [[nodiscard]] std::int64_t count(const char* key, std::int64_t absent, double max) const;
  /// 0 where the key is absent or null.
  [[nodiscard]] std::int64_t count_or_null(const char* key, double max) const;
  [[nodiscard]] double number(const char* key, double absent, double min, double max) const;
  [[nodiscard]] bool flag(const char* key, bool absent) const;
  [[nodiscard]] std::string word(const char* key, const char* absent) const;
  /// An activation under our name: "gelu_new" is "gelu_tanh". Error{Unsupported} for others.
  [[nodiscard]] std::string activation(const char* key, const char* absent) const;
  /// Error{Unsupported} that names the key, for a value that computes something else.
  void refuse(const char* key, bool harmless, const char* expected) const;

 private:
  const json::Value& config_;
};

/// Hugging Face's name of an activation of ours; empty if it has none.
std::string activation_to_hf(const std::string& name);

}  // namespace tessera::models
