// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/deepspeed_keys.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::config {
namespace {

const DeepSpeedKey* find_row(std::string_view path) {
  static const auto* const index = [] {
    auto* map = new std::unordered_map<std::string_view, const DeepSpeedKey*>;
    for (const DeepSpeedKey& row : deepspeed_keys())
      map->emplace(row.path, &row);
    return map;
  }();
  const auto it = index->find(path);
  return it == index->end() ? nullptr : it->second;
}

// Keys of the section at `path`, for suggestions.
std::vector<std::string> keys_of(std::string_view path) {
  std::vector<std::string> out;
  const std::string prefix = std::string(path) + ".";
  for (const DeepSpeedKey& row : deepspeed_keys()) {
    const bool inside = row.path.substr(0, prefix.size()) == prefix;
    if (inside && row.path.find('.', prefix.size()) == std::string_view::npos) {
      out.emplace_back(row.path.substr(prefix.size()));
    }
  }
  return out;
}

bool has_type(const json::Value& value, KeyType type) {
  switch (type) {
    case KeyType::Bool:
      return value.is_bool();
    case KeyType::Integer:
      return value.is_number() && value.as_integer().has_value();
    case KeyType::Number:
      return value.is_number();
    case KeyType::String:
      return value.is_string();
    case KeyType::Array:
      return value.is_array();
    case KeyType::Object:
      return value.is_object();
    case KeyType::Any:
      return true;
  }
  return false;
}

std::string_view words(KeyType type) {
  switch (type) {
    case KeyType::Bool:
      return "true or false";
    case KeyType::Integer:
      return "an integer";
    case KeyType::Number:
      return "a number";
    case KeyType::String:
      return "a string";
    case KeyType::Array:
      return "an array";
    case KeyType::Object:
      return "an object";
    case KeyType::Any:
      return "anything";
  }
  return "anything";
}

bool is_auto(const json::Value& value) {
  return value.is_string() && value.as_string() == "auto";
}

bool switched_off(const json::Value& value, const DeepSpeedKey& row) {
  if (value.is_null()) return true;
  const json::Value off = json::parse(row.off, std::string(row.path));
  return std::find(off.items().begin(), off.items().end(), value) != off.items().end();
}

class Taker {
 public:
  Taker(Problems& problems, std::vector<std::string>& notes) : problems_(problems), notes_(notes) {}

  json::Value take(json::Value source) {
    walk(source, "", /*closed=*/false);
    for (auto& [target, value] : moved_)
      place_alias(source, target, std::move(value));
    return source;
  }

 private:
  // Takes out of `object` what is not for the options. `closed`: keys without a row are errors
  // here.
  void walk(json::Value& object, const std::string& path, bool closed) {
    std::vector<json::Value::Member> kept;
    for (auto& [key, value] : object.members()) {
      const std::string member_path = json::join_path(path, key);
      const DeepSpeedKey* row = find_row(member_path);
      if (row == nullptr && closed) row = find_row(json::join_path(path, "*"));
      const bool keep = row == nullptr ? !closed || unknown(value, member_path, path)
                                       : visit(value, member_path, *row);
      if (keep) kept.emplace_back(std::move(key), std::move(value));
    }
    object.members() = std::move(kept);
  }

  bool unknown(const json::Value& value, const std::string& path, const std::string& section) {
    const std::string key = path.substr(section.size() + 1);
    problems_.add(value.key_place, path, "unknown key", text::suggestion(key, keys_of(section)));
    return false;
  }

  // Whether the key stays for the options to read.
  bool visit(json::Value& value, const std::string& path, const DeepSpeedKey& row) {
    if (is_auto(value) && row.type != KeyType::String) {
      notes_.push_back(path + ": \"auto\" counts as not given");
      return false;
    }
    const bool nothing = value.is_null() && row.policy != KeyPolicy::Done;
    if (nothing) return false;
    const bool typed = has_type(value, row.type);
    // A Done key is checked by the options, with their ranges.
    if (!typed && row.policy != KeyPolicy::Done) {
      problems_.add(
          value.place,
          path,
          "expected " + std::string(words(row.type)) + ", found " + std::string(value.type_name()));
      return false;
    }
    switch (row.policy) {
      case KeyPolicy::Done:
        return true;
      case KeyPolicy::Section:
        return section(value, path);
      case KeyPolicy::Block:
        block(value, path);
        return false;
      case KeyPolicy::Accepted:
        notes_.push_back(path + " is accepted but has no meaning here: " + std::string(row.about));
        return false;
      case KeyPolicy::Alias:
        moved_.emplace_back(std::string(row.about), std::move(value));
        return false;
      case KeyPolicy::NotBuilt:
        if (!switched_off(value, row)) not_built(value, path, row);
        return false;
    }
    return false;
  }

  // Sections that the options know stay, even when nothing is left in them: an empty
  // `zero_optimization` was given.
  bool section(json::Value& value, const std::string& path) {
    walk(value, path, /*closed=*/true);
    const std::vector<std::string> keys = keys_of(path);
    return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return find_row(json::join_path(path, key))->policy == KeyPolicy::Done;
    });
  }

  // A block that is switched off still has its keys and their types checked.
  void block(json::Value& value, const std::string& path) {
    for (const auto& [key, member] : value.members()) {
      const std::string member_path = json::join_path(path, key);
      const DeepSpeedKey* row = find_row(member_path);
      if (row == nullptr) row = find_row(json::join_path(path, "*"));
      if (row == nullptr) {
        unknown(member, member_path, path);
      } else if (!member.is_null() && !is_auto(member) && !has_type(member, row->type)) {
        problems_.add(member.place,
                      member_path,
                      "expected " + std::string(words(row->type)) + ", found " +
                          std::string(member.type_name()));
      }
    }
    const json::Value* enabled = value.find("enabled");
    if (enabled != nullptr && enabled->is_bool() && enabled->as_bool()) {
      problems_.add(enabled->place, path + ".enabled", "not built yet", "set it to false");
    }
  }

  void not_built(const json::Value& value, const std::string& path, const DeepSpeedKey& row) {
    const json::Value off = json::parse(row.off, path);
    problems_.add(value.place,
                  path,
                  "not built yet: " + value.dump(),
                  "remove the key" +
                      (off.items().empty() ? "" : " or set it to " + off.items().front().dump()));
  }

  void place_alias(json::Value& source, const std::string& target, json::Value value) {
    json::Value* at = &source;
    for (const std::string& step : text::split(target, '.')) {
      if (!at->is_null() && !at->is_object()) return;  // the options will say what is wrong with it
      json::Value& next = (*at)[step];
      if (next.is_null()) next.place = value.place;
      at = &next;
    }
    if (!at->is_null() && !(*at == value)) {
      problems_.add(
          value.place,
          target,
          "is given twice, as " + at->dump() + " and as " + value.dump() + " under another name",
          "keep one of them");
      return;
    }
    *at = std::move(value);
  }

  Problems& problems_;
  std::vector<std::string>& notes_;
  std::vector<std::pair<std::string, json::Value>> moved_;
};

}  // namespace

json::Value take_deepspeed_keys(json::Value source,
                                Problems& problems,
                                std::vector<std::string>& notes) {
  if (!source.is_object()) return source;
  return Taker(problems, notes).take(std::move(source));
}

}  // namespace tessera::config
