// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/keys.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/deepspeed/key_rows.h"

namespace tessera::interop {
namespace {

using Index = std::unordered_map<std::string_view, const DeepSpeedKey*>;

const Index& row_index() {
  static const auto* const index = [] {
    auto* map = new Index;
    for (const DeepSpeedKey& row : deepspeed_keys())
      map->emplace(row.path, &row);
    return map;
  }();
  return *index;
}

const DeepSpeedKey* exact_row(std::string_view path) {
  const auto it = row_index().find(path);
  return it == row_index().end() ? nullptr : it->second;
}

// Returns the key if `path` is directly inside `section`; else an empty string.
std::string_view key_inside(std::string_view path, std::string_view section) {
  if (!section.empty()) {
    if (path.substr(0, section.size()) != section || path.size() <= section.size() ||
        path[section.size()] != '.')
      return {};
    path.remove_prefix(section.size() + 1);
  }
  return path.find('.') == std::string_view::npos && path != "*" ? path : std::string_view();
}

bool has_rows_inside(std::string_view section) {
  return std::any_of(
      deepspeed_keys().begin(), deepspeed_keys().end(), [&](const DeepSpeedKey& row) {
        return row.path.size() > section.size() && row.path[section.size()] == '.' &&
               row.path.substr(0, section.size()) == section;
      });
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

// Returns the keys allowed in the section at `path`: those of `own` and those of the table.
std::vector<std::string> keys_of(std::string_view path, std::span<const std::string> own) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view candidate) {
    const std::string_view key = key_inside(candidate, path);
    // Done keys are in both lists.
    if (!key.empty() && std::find(out.begin(), out.end(), key) == out.end()) out.emplace_back(key);
  };
  for (const std::string& key : own)
    add(key);
  for (const DeepSpeedKey& row : deepspeed_keys())
    add(row.path);
  return out;
}

// Reports a value at `path` whose type differs from that of the row; `keys`: the keys that an
// object would have there.
void report_wrong_type(const json::Value& value,
                       const std::string& path,
                       const DeepSpeedKey& row,
                       std::span<const std::string> keys,
                       config::Problems& problems) {
  if (row.type == KeyType::Object) return config::report_not_an_object(value, path, keys, problems);
  const std::string found = value.is_string() ? value.dump() : std::string(value.type_name());
  problems.add(value.place,
               path,
               fmt::format("expected {}, found {}", words(row.type), found),
               fmt::format("write {}", words(row.type)));
}

// Returns the index of the value in the list that switches the row off; nothing if it is not in it.
std::optional<std::size_t> off_index(const json::Value& value, const DeepSpeedKey& row) {
  if (value.is_null()) return 0;
  const json::Value off = json::parse(row.off, std::string(row.path));
  const auto it = std::find(off.items().begin(), off.items().end(), value);
  if (it == off.items().end()) return std::nullopt;
  return static_cast<std::size_t>(it - off.items().begin());
}

class KeyReader {
 public:
  KeyReader(std::span<const std::string> own, config::Problems& problems)
      : own_(own.begin(), own.end()), own_set_(own_.begin(), own_.end()), problems_(problems) {}

  config::TakenKeys take(json::Value source) {
    walk(source, "");
    taken_.left = std::move(source);
    return std::move(taken_);
  }

 private:
  // Removes from `object` everything that the options do not read.
  void walk(json::Value& object, const std::string& path) {
    std::vector<json::Value::Member> kept;
    for (auto& [key, value] : object.members()) {
      const std::string member_path = json::join_path(path, key);
      const DeepSpeedKey* row = find_deepspeed_key(member_path);
      bool keep = own_set_.count(member_path) > 0;
      if (row != nullptr) {
        keep = visit(value, member_path, *row);
      } else if (!keep) {
        unknown(value, key, path);
      }
      if (keep) kept.emplace_back(std::move(key), std::move(value));
    }
    object.members() = std::move(kept);
  }

  void unknown(const json::Value& value, const std::string& key, const std::string& section) {
    const std::string path = json::join_path(section, key);
    const auto& told = problems_.list();
    if (std::ranges::find(told, path, &config::Problems::Problem::path) != told.end())
      return;  // by a check that knows more about it
    problems_.add(value.key_place,
                  path,
                  "unknown key",
                  config::unknown_key_fix(key, keys_of(section, own_), own_),
                  config::Problems::Kind::Unknown);
  }

  // Returns whether the key stays in place for the options to read.
  bool visit(json::Value& value, const std::string& path, const DeepSpeedKey& row) {
    if (is_auto(value) && (row.type != KeyType::String || row.policy == KeyPolicy::Later)) {
      taken_.automatic.push_back({path, std::move(value), ""});
      return false;
    }
    // The options check Done keys, including their ranges.
    if (row.policy != KeyPolicy::Done) {
      if (value.is_null()) return false;
      if (!check_type(value, path, row)) return false;
    }
    switch (row.policy) {
      case KeyPolicy::Done:
        if (row.type == KeyType::Object && value.is_object()) take_automatic(value, path);
        return true;
      case KeyPolicy::Section:
        return section(value, path);
      case KeyPolicy::Inside:
        check_inside(value, path);
        return false;
      case KeyPolicy::Accepted:
        taken_.accepted.push_back({path, std::move(value), std::string(row.about)});
        return false;
      case KeyPolicy::Later:
      case KeyPolicy::Never:
        refuse_unless_off(std::move(value), path, row);
        return false;
      case KeyPolicy::Alias:  // already renamed
        return false;
    }
    return false;
  }

  bool check_type(const json::Value& value, const std::string& path, const DeepSpeedKey& row) {
    if (has_type(value, row.type)) return true;
    report_wrong_type(value, path, row, keys_of(path, own_), problems_);
    return false;
  }

  // optimizer.params: the optimizer knows the names of its parameters, but "auto" is never a value.
  void take_automatic(json::Value& object, const std::string& path) {
    std::erase_if(object.members(), [&](json::Value::Member& member) {
      if (!is_auto(member.second)) return false;
      taken_.automatic.push_back(
          {json::join_path(path, member.first), std::move(member.second), ""});
      return true;
    });
  }

  // Sections that the options know stay even if they are empty now: an empty `zero_optimization`
  // was given.
  bool section(json::Value& value, const std::string& path) {
    walk(value, path);
    return own_set_.count(path) > 0;
  }

  // Keys that depend on a switch have their names and types checked although they have no effect.
  void check_inside(const json::Value& value, const std::string& path) {
    if (!value.is_object() || !has_rows_inside(path)) return;
    for (const auto& [key, member] : value.members()) {
      const std::string member_path = json::join_path(path, key);
      const DeepSpeedKey* row = find_deepspeed_key(member_path);
      if (row == nullptr) {
        unknown(member, key, path);
      } else if (!member.is_null() && !is_auto(member) && check_type(member, member_path, *row)) {
        check_inside(member, member_path);
      }
    }
  }

  void refuse_unless_off(json::Value value, const std::string& path, const DeepSpeedKey& row) {
    if (const auto index = off_index(value, row)) {
      check_inside(value, path);
      if (*index > 0 && !row.moot.empty())
        taken_.accepted.push_back({path, std::move(value), std::string(row.moot)});
      return;
    }
    const char* const how = row.policy == KeyPolicy::Later ? "not built yet" : "not supported here";
    problems_.add(value.place,
                  path,
                  fmt::format("{}: {} ({})", how, value.dump(), row.about),
                  std::string(row.fix));
  }

  std::vector<std::string> own_;
  std::unordered_set<std::string> own_set_;
  config::Problems& problems_;
  config::TakenKeys taken_;
};

// ---- old names ----

json::Value* find_path(json::Value& source, std::string_view path) {
  json::Value* at = &source;
  for (const std::string& step : text::split(path, '.')) {
    at = at->is_object() ? at->find(step) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return at;
}

// Removes the value at `path` from its object and returns it.
json::Value cut(json::Value& source, std::string_view path) {
  const std::size_t dot = path.rfind('.');
  json::Value* const parent =
      dot == std::string_view::npos ? &source : find_path(source, path.substr(0, dot));
  const std::string_view key = dot == std::string_view::npos ? path : path.substr(dot + 1);
  auto& members = parent->members();
  const auto it = std::find_if(
      members.begin(), members.end(), [&](const auto& member) { return member.first == key; });
  json::Value out = std::move(it->second);
  members.erase(it);
  return out;
}

bool is_typed(const json::Value& value) {
  return value.place.line == 0 && value.place.source.starts_with("--");
}

// A value typed on the command line overrides the file, under either name; two different values
// from the same source are a problem.
void merge_alias(json::Value& at,
                 json::Value value,
                 const DeepSpeedKey& row,
                 config::Problems& problems) {
  const bool typed = is_typed(value), typed_there = is_typed(at);
  if (at.is_object() && value.is_object()) {
    for (auto& [key, member] : value.members())
      merge_alias(at[key], std::move(member), row, problems);
  } else if (at.is_null() || (typed && !typed_there)) {
    at = std::move(value);
  } else if (!value.is_null() && !(at == value) && typed == typed_there) {
    problems.add(value.key_place,
                 std::string(row.path),
                 fmt::format("is the old name of {}, which is given as well: {} and {}",
                             row.about,
                             value.dump(),
                             at.dump()),
                 "keep one of them");
  }
}

void place_alias(json::Value& source,
                 const DeepSpeedKey& row,
                 json::Value value,
                 config::Problems& problems) {
  json::Value* at = &source;
  for (const std::string& step : text::split(row.about, '.')) {
    if (!at->is_null() && !at->is_object()) return;  // the options report what is wrong with it
    json::Value& next = (*at)[step];
    if (next.place.source.empty()) next.place = next.key_place = value.key_place;
    at = &next;
  }
  merge_alias(*at, std::move(value), row, problems);
}

// `zero_optimization: true` is the oldest notation of stage 1.
void widen_zero_switch(json::Value& source) {
  json::Value* const zero = source.find("zero_optimization");
  if (zero == nullptr || !zero->is_bool()) return;
  json::Value stage = json::Value::integer(zero->as_bool() ? 1 : 0);
  stage.place = zero->place;
  stage.key_place = zero->key_place;
  json::Value block = json::Value::object({{"stage", stage}});
  block.place = zero->place;
  block.key_place = zero->key_place;
  *zero = std::move(block);
}

// DeepSpeed's layer reduction (XTC): the layers of the teacher with which the student begins. The
// teacher itself is not named in DeepSpeed's file.
void move_layer_reduction(json::Value& source, config::Problems& problems) {
  static constexpr std::string_view kBlock = "compression_training.layer_reduction";
  const json::Value* const block = find_path(source, kBlock);
  const json::Value* const enabled =
      block == nullptr || !block->is_object() ? nullptr : block->find("enabled");
  if (enabled == nullptr || !enabled->is_bool() || !enabled->as_bool()) return;
  const std::string path = std::string(kBlock) + ".teacher_layer";
  const json::Value* const kept = block->find("keep_number_layer");
  const std::int64_t count = kept == nullptr ? -1 : kept->as_integer().value_or(-1);
  const json::Value* const layers = block->find("teacher_layer");
  if (layers == nullptr || !layers->is_array()) {
    problems.add(enabled->key_place,
                 path,
                 "the layers of the teacher are not given",
                 "name as many as keep_number_layer says: \"teacher_layer\": [1, 3, 5]");
    return;
  }
  if (count >= 0 && count != std::ssize(layers->items())) {
    problems.add(
        layers->key_place,
        path,
        fmt::format("names {} layers, and keep_number_layer is {}", layers->items().size(), count),
        "give both the same number");
  }
  json::Value moved = cut(source, path);
  static_cast<void>(cut(source, std::string(kBlock) + ".enabled"));
  place_alias(
      source, rows::alias(path, KeyType::Array, "distill.layers"), std::move(moved), problems);
}

}  // namespace

const std::vector<DeepSpeedKey>& deepspeed_keys() {
  static const std::vector<DeepSpeedKey> all = [] {
    std::vector<DeepSpeedKey> out;
    for (const auto part : {rows::training_rows(), rows::block_rows()})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  }();
  return all;
}

const DeepSpeedKey* find_deepspeed_key(std::string_view path) {
  if (const DeepSpeedKey* row = exact_row(path)) return row;
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return nullptr;
  return exact_row(json::join_path(path.substr(0, dot), "*"));
}

bool is_colossalai_key(std::string_view path) {
  return path == "NUM_MICRO_BATCHES" || path == "NUM_CHUNKS" || path == "TENSOR_SHAPE" ||
         path == "parallel" || path.substr(0, 9) == "parallel." || path == "fp16.mode";
}

json::Value with_new_names(json::Value source, config::Problems& problems) {
  if (!source.is_object()) return source;
  std::erase_if(source.members(), [](const auto& member) { return member.first == "$schema"; });
  widen_zero_switch(source);
  move_layer_reduction(source, problems);
  for (const DeepSpeedKey& row : deepspeed_keys()) {
    if (row.policy != KeyPolicy::Alias || find_path(source, row.path) == nullptr) continue;
    json::Value value = cut(source, row.path);
    if (value.is_null()) continue;
    if (!has_type(value, row.type) && !is_auto(value)) {
      report_wrong_type(value, std::string(row.path), row, keys_of(row.about, {}), problems);
      continue;
    }
    if (!row.off.empty() && value.is_bool()) {
      json::Value meant =
          json::parse(row.off, std::string(row.path)).items().at(value.as_bool() ? 1 : 0);
      meant.place = value.place;
      meant.key_place = value.key_place;
      value = std::move(meant);
    }
    place_alias(source, row, std::move(value), problems);
  }
  return source;
}

config::TakenKeys take_deepspeed_keys(json::Value source,
                                      std::span<const std::string> own,
                                      config::Problems& problems) {
  if (!source.is_object()) return {std::move(source), {}, {}};
  return KeyReader(own, problems).take(std::move(source));
}

bool is_pure_deepspeed(const json::Value& source, std::span<const std::string> own) {
  if (!source.is_object()) return false;
  const auto ours = [&](const std::string& path) {
    const bool theirs = find_deepspeed_key(path) != nullptr && !is_colossalai_key(path);
    return !theirs &&
           (is_colossalai_key(path) || std::find(own.begin(), own.end(), path) != own.end());
  };
  return std::none_of(source.members().begin(), source.members().end(), [&](const auto& member) {
    if (ours(member.first)) return true;
    if (!member.second.is_object()) return false;
    const auto& inner = member.second.members();
    return std::any_of(inner.begin(), inner.end(), [&](const auto& key) {
      return ours(json::join_path(member.first, key.first));
    });
  });
}

}  // namespace tessera::interop
