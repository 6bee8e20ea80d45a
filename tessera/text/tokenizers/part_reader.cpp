// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/part_reader.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/characters.h"

namespace tessera::text::tokenizers {

void refuse_part(const std::string& where, const std::string& what) {
  throw Error(Error::Kind::Format,
              fmt::format("{} {}", where, what),
              "fetch the tokenizer's files again, or save them with a current version of the "
              "tokenizers library");
}

void unsupported_part(const std::string& where, const std::string& what) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} {}", where, what),
              "docs/tokenizers.md lists the parts of tokenizer.json that are read");
}

Part::Part(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) refuse_part(where_, "is not a JSON object");
}

const json* Part::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json& Part::at(const char* key) const {
  const json* found = find(key);
  if (found == nullptr) refuse_part(where_, fmt::format("has no \"{}\"", key));
  return *found;
}

Part Part::part(const char* key) const {
  return {at(key), fmt::format("{}.{}", where_, key)};
}

std::string Part::text(const char* key) const {
  const json& value = at(key);
  if (!value.is_string())
    refuse_part(where_, fmt::format("has a \"{}\" that is not a string", key));
  return value.get<std::string>();
}

std::string Part::text(const char* key, const std::string& otherwise) const {
  return find(key) == nullptr ? otherwise : text(key);
}

bool Part::flag(const char* key, bool otherwise) const {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean())
    refuse_part(where_, fmt::format("has a \"{}\" that is neither true nor false", key));
  return value->get<bool>();
}

std::int64_t Part::integer(const char* key, std::int64_t otherwise) const {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer())
    refuse_part(where_, fmt::format("has a \"{}\" that is not an integer", key));
  return value->get<std::int64_t>();
}

char32_t Part::character(const char* key) const {
  const std::string value = text(key);
  if (value.empty() || count_characters(value) != 1)
    refuse_part(where_, fmt::format("has a \"{}\" that is not one character", key));
  std::size_t at = 0;
  return next_character(value, at);
}

}  // namespace tessera::text::tokenizers
