// SPDX-License-Identifier: Apache-2.0
// Strict reading of the parts of a tokenizer.json.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace tessera::text::tokenizers {

using nlohmann::json;

/// The deepest nesting of Sequence parts.
inline constexpr int kDeepestSequence = 16;

/// Throws Error{Format}: "tokenizer.json: <where> <what>".
[[noreturn]] void refuse_part(const std::string& where, const std::string& what);
/// Throws Error{Unsupported} for a part or value that tessera does not implement.
[[noreturn]] void unsupported_part(const std::string& where, const std::string& what);

/// A JSON object with its place; members are read by type. Throws Error{Format} for another type.
class Part {
 public:
  Part(const json& object, std::string where);
  [[nodiscard]] std::string type() const { return text("type"); }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const json& object() const { return object_; }
  /// The member; nullptr if it is absent or null.
  [[nodiscard]] const json* find(const char* key) const;
  [[nodiscard]] const json& at(const char* key) const;
  [[nodiscard]] Part part(const char* key) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t otherwise) const;
  /// A string of exactly one character.
  [[nodiscard]] char32_t character(const char* key) const;

 private:
  const json& object_;
  std::string where_;
};

}  // namespace tessera::text::tokenizers
