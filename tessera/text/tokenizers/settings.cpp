// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/settings.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "tessera/text/small_file.h"

namespace tessera::text::tokenizers {
namespace {

namespace fs = std::filesystem;

json object_in(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return json::object();
  json out = json::parse(read_small_file(path), nullptr, false);
  if (!out.is_object()) refuse_part(path.string(), "is not a JSON object");
  return out;
}

/// "</s>", or an object with the content.
std::optional<std::string> content_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return std::nullopt;
  const auto content = value.find("content");
  if (content == value.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

std::int64_t id_in(const json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
      value.get<std::int64_t>() > Vocabulary::kLargestId) {
    refuse_part(where, fmt::format("has the id {}", value.dump()));
  }
  return value.get<std::int64_t>();
}

std::int64_t id_in(const std::string& digits, const std::string& where) {
  std::int64_t id = -1;
  const char* const end = digits.data() + digits.size();
  const auto [rest, failed] = std::from_chars(digits.data(), end, id);
  if (failed != std::errc() || rest != end || id < 0 || id > Vocabulary::kLargestId)
    refuse_part(where, fmt::format("has the id \"{}\"", digits));
  return id;
}

/// Tokens by id, as `added_tokens_decoder` lists them.
std::map<std::int64_t, AddedToken> listed(const json& decoder, const std::string& where) {
  std::map<std::int64_t, AddedToken> out;
  if (!decoder.is_object()) refuse_part(where, "has an added_tokens_decoder that is not an object");
  for (const auto& [key, value] : decoder.items()) {
    const std::int64_t id = id_in(key, where + ": added_tokens_decoder");
    const Part part(value, fmt::format("{}: added_tokens_decoder.{}", where, key));
    AddedToken token;
    token.id = static_cast<std::int32_t>(id);
    token.content = part.text("content");
    token.single_word = part.flag("single_word", false);
    token.lstrip = part.flag("lstrip", false);
    token.rstrip = part.flag("rstrip", false);
    token.special = part.flag("special", false);
    token.normalized = part.flag("normalized", !token.special);
    out.emplace(id, std::move(token));
  }
  return out;
}

}  // namespace

Settings::Settings(const fs::path& folder)
    : config_(object_in(folder / "tokenizer_config.json")),
      special_tokens_(object_in(folder / "special_tokens_map.json")),
      added_tokens_(object_in(folder / "added_tokens.json")),
      where_((folder / "tokenizer_config.json").string()) {
  const json model = object_in(folder / "config.json");
  const auto word = [&](const char* key) {
    const auto found = model.find(key);
    return found != model.end() && found->is_string() ? found->get<std::string>() : "";
  };
  model_type_ = word("model_type");
  model_class_ = word("tokenizer_class");
}

std::optional<std::string> Settings::token(const char* role) const {
  for (const json* file : {&config_, &special_tokens_}) {
    const auto found = file->find(role);
    if (found != file->end()) return content_of(*found);
  }
  return std::nullopt;
}

std::optional<std::string> Settings::token(const char* role, const char* otherwise) const {
  if (!config_.contains(role) && !special_tokens_.contains(role)) return otherwise;
  return token(role);
}

std::optional<bool> Settings::flag(const char* key) const {
  const Part part(config_, where_);
  if (part.find(key) == nullptr) return std::nullopt;
  return part.flag(key, false);
}

std::optional<std::int64_t> Settings::integer(const char* key) const {
  const Part part(config_, where_);
  if (part.find(key) == nullptr) return std::nullopt;
  return part.integer(key, 0);
}

std::optional<std::string> Settings::text(const char* key) const {
  const Part part(config_, where_);
  if (part.find(key) == nullptr) return std::nullopt;
  return part.text(key);
}

std::vector<std::string> Settings::texts(const char* key) const {
  std::vector<std::string> out;
  for (const json* file : {&config_, &special_tokens_}) {
    const Part part(*file, where_);
    const json* const list = part.find(key);
    if (list == nullptr) continue;
    if (!list->is_array()) refuse_part(where_, fmt::format("has a \"{}\" that is not a list", key));
    for (const json& item : *list) {
      const auto content = content_of(item);
      if (!content)
        refuse_part(where_, fmt::format("has an entry of \"{}\" that is not a string", key));
      out.push_back(*content);
    }
    break;
  }
  return out;
}

std::string Settings::tokenizer_class() const {
  constexpr std::string_view kFast = "Fast";
  std::string name = text("tokenizer_class").value_or(model_class_);
  if (name.ends_with(kFast)) name.resize(name.size() - kFast.size());
  return name;
}

bool Settings::samples() const {
  const auto found = config_.find("sp_model_kwargs");
  if (found == config_.end() || !found->is_object()) return false;
  const auto asked = found->find("enable_sampling");
  return asked != found->end() && *asked != false;
}

std::vector<AddedToken> Settings::added_tokens(
    const Vocabulary& vocabulary, const std::vector<std::optional<std::string>>& roles) const {
  std::map<std::int64_t, AddedToken> by_id;
  if (const auto decoder = config_.find("added_tokens_decoder"); decoder != config_.end())
    by_id = listed(*decoder, where_);
  std::map<std::string, std::int64_t> ids;
  std::int64_t next = vocabulary.size();
  for (const auto& [id, token] : by_id) {
    ids.emplace(token.content, id);
    next = std::max(next, id + 1);
  }
  for (const auto& [content, value] : added_tokens_.items()) {
    const std::int64_t id = id_in(value, "added_tokens.json");
    next = std::max(next, id + 1);
    if (!ids.emplace(content, id).second) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(id);
    token.content = content;
    if (!by_id.emplace(id, token).second)
      refuse_part("added_tokens.json", fmt::format("gives \"{}\" an id that is taken", content));
  }
  std::vector<std::string> special;
  for (const auto& role : roles) {
    if (role) special.push_back(*role);
  }
  for (const std::string& token : texts("additional_special_tokens"))
    special.push_back(token);
  for (const std::string& content : special) {
    if (content.empty()) continue;
    auto found = ids.find(content);
    if (found == ids.end()) {
      const auto known = vocabulary.find(content);
      const std::int64_t id = known ? *known : next;
      if (!known) ++next;
      if (id > Vocabulary::kLargestId) refuse_part(where_, "has too many tokens");
      found = ids.emplace(content, id).first;
      AddedToken token;
      token.id = static_cast<std::int32_t>(id);
      token.content = content;
      token.normalized = false;
      if (!by_id.emplace(id, token).second)
        refuse_part(where_, fmt::format("has two added tokens of the id {}", id));
    }
    by_id.at(found->second).special = true;
  }
  std::vector<AddedToken> out;
  out.reserve(by_id.size());
  for (auto& [id, token] : by_id)
    out.push_back(std::move(token));
  return out;
}

std::string Settings::all() const {
  return fmt::format("{}\n{}\n{}\n{}",
                     config_.dump(-1, ' ', false, json::error_handler_t::replace),
                     special_tokens_.dump(-1, ' ', false, json::error_handler_t::replace),
                     added_tokens_.dump(-1, ' ', false, json::error_handler_t::replace),
                     model_type_ + model_class_);
}

}  // namespace tessera::text::tokenizers
