// SPDX-License-Identifier: Apache-2.0
// tessera config schema: the JSON Schema of a configuration, for editors.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_commands.h"
#include "tessera/config/schema.h"
#include "tessera/interop/deepspeed/keys.h"
#include "tessera/interop/deepspeed/keys_page.h"
#include "tessera/models/family.h"
#include "tessera/planner/train_config.h"
#include "tessera/tasks/task.h"

namespace tessera::cli {
namespace {

using json::Value;

Value described(const std::string& text) {
  return Value::object({{"description", Value::string(text)}});
}

Value type(const char* name) {
  return Value::object({{"type", Value::string(name)}});
}

Value words(const std::vector<std::string>& list) {
  Value out = Value::array();
  for (const std::string& word : list)
    out.push_back(Value::string(word));
  return out;
}

/// The keys of a family stand under a condition on `model.family`; without that key, a preset or a
/// folder may choose the family, and the keys of all families are allowed.
Value model_schema() {
  Value model = config::schema(models::ModelOptions(std::string(models::default_family())));
  Value all = model["properties"], conditions = Value::array();
  for (const std::string& family : models::families().names()) {
    const Value own = config::schema(models::ModelOptions(family));
    for (const auto& [key, value] : own.find("properties")->members()) {
      if (all.find(key) == nullptr) all[key] = value;
    }
    Value is_this = Value::object({{"required", words({"family"})}});
    is_this["properties"]["family"]["const"] = Value::string(family);
    conditions.push_back(Value::object({{"if", std::move(is_this)}, {"then", own}}));
  }
  // Keys that several families have may differ in their limits and defaults, which the conditions
  // contain.
  for (auto& [key, value] : all.members()) {
    const Value* const text = value.find("description");
    value = text == nullptr ? Value::object() : described(text->as_string());
  }
  all["family"]["enum"] = words(models::families().names());
  model["properties"] = std::move(all);
  model["allOf"] = std::move(conditions);
  return model;
}

/// Returns the schema of the key at `path`, which is below the root; nullptr if it is not there.
Value* at(Value& root, const std::string& path) {
  Value* found = &root;
  for (const std::string& key : text::split(path, '.')) {
    Value* const properties = found->find("properties");
    found = properties == nullptr ? nullptr : properties->find(key);
    if (found == nullptr) return nullptr;
  }
  return found;
}

const char* name_of(interop::KeyType type) {
  switch (type) {
    case interop::KeyType::Bool:
      return "true or false";
    case interop::KeyType::Integer:
      return "integer";
    case interop::KeyType::Number:
      return "number";
    case interop::KeyType::String:
      return "string";
    case interop::KeyType::Array:
      return "list of values";
    case interop::KeyType::Object:
      return "object";
    case interop::KeyType::Any:
      break;
  }
  return "anything";
}

/// Adds the keys of DeepSpeed's files that have no option of their own, and lets those that have
/// one be "auto".
void add_deepspeed(Value& root) {
  const Value automatic = Value::object({{"const", Value::string("auto")}});
  for (const interop::DeepSpeedKey& row : interop::deepspeed_keys()) {
    const std::string path(row.path);
    const std::size_t dot = path.rfind('.');
    Value* const section = dot == std::string::npos ? &root : at(root, path.substr(0, dot));
    if (section == nullptr || section->find("properties") == nullptr) continue;
    const std::string key = dot == std::string::npos ? path : path.substr(dot + 1);
    if (key == "*") {
      (*section)["additionalProperties"] = Value::boolean(true);
      continue;
    }
    Value& own = (*section)["properties"][key];
    if (own.is_null()) {
      const std::string text = interop::explain_deepspeed_key(row);
      own = row.policy == interop::KeyPolicy::Section
                ? Value::object({{"properties", Value::object()},
                                 {"additionalProperties", Value::boolean(false)}})
                : config::schema_of_type(name_of(row.type));
      if (!own.members().empty() && row.policy != interop::KeyPolicy::Section)
        config::allow_also(own, type("null"));
      if (!text.empty()) own["description"] = Value::string(text);
    }
    if (own.find("properties") == nullptr) config::allow_also(own, automatic);
  }
}

/// Allows the short forms of objects. The limits of an object's keys apply to objects alone, so
/// that another type is one more name in the list of types.
void add_short_forms(Value& root) {
  const auto allow = [&](const char* path, const char* type) -> Value& {
    Value* const section = at(root, path);
    TESSERA_ASSERT(section != nullptr);
    (*section)["type"].push_back(Value::string(type));
    return *section;
  };
  for (const char* path : {"parallel.pipeline", "parallel.tensor", "parallel.context"})
    allow(path, "integer");
  allow("zero_optimization", "boolean");
  Value& task = allow("task", "string");
  task["if"] = type("string");
  task["then"]["enum"] = words(tasks::tasks().names());
  // A task's parameters can be in a section of its name.
  for (const std::string& task : tasks::tasks().names()) {
    Value& section = root["properties"][task];
    if (section.is_null())
      section = described("Parameters of the task " + task + ", as in task.params.");
  }
}

Value schema() {
  Value root = config::schema(planner::TrainConfig());
  root["properties"]["model"] = model_schema();
  add_deepspeed(root);
  add_short_forms(root);
  root["properties"]["$schema"] = described("Path or address of this schema; it has no effect.");
  Value out =
      Value::object({{"$schema", Value::string("https://json-schema.org/draft/2020-12/schema")},
                     {"title", Value::string("Configuration of tessera")}});
  for (auto& [key, value] : root.members())
    out[key] = std::move(value);
  out["type"] = Value::string("object");
  return out;
}

}  // namespace

int print_schema(const std::vector<std::string>& line) {
  Arguments arguments(
      "config schema",
      "Prints the JSON Schema of a configuration. An editor that reads it completes keys and marks "
      "mistakes: name the file in \"$schema\" of a configuration, or in the editor's settings.",
      {"tessera config schema > tessera.schema.json"});
  Common common;  // no other output
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  std::printf("%s\n", schema().dump(1).c_str());
  return kExitOk;
}

}  // namespace tessera::cli
