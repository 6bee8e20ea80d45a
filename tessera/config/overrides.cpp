// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/overrides.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::config {
namespace {

// "optimizer.lr" -> optimizer, params, lr.
std::vector<std::string> steps_of(std::string_view path) {
  std::vector<std::string> steps = text::split(path, '.');
  if (steps.size() != 2) return steps;
  constexpr std::array<std::string_view, 10> kOwn = {"type",
                                                     "params",
                                                     "decay_all",
                                                     "layer_decay",
                                                     "gradual_unfreezing",
                                                     "trained",
                                                     "legacy_fusion",
                                                     "groups",
                                                     "weight_decay_schedule",
                                                     "on_resume"};
  const bool holder = steps[0] == "optimizer" || steps[0] == "scheduler";
  const bool own = std::find(kOwn.begin(), kOwn.end(), steps[1]) != kOwn.end();
  if (holder && !own) steps.insert(steps.begin() + 1, "params");
  return steps;
}

void set_place(json::Value& value, const json::Place& place) {
  value.place = value.key_place = place;
  if (value.is_array()) {
    for (json::Value& item : value.items())
      set_place(item, place);
  }
  if (value.is_object()) {
    for (auto& [key, member] : value.members())
      set_place(member, place);
  }
}

json::Value value_of(std::string_view text) {
  try {
    return json::parse(text, "--set");
  } catch (const Error&) {
    return json::Value::string(std::string(text));
  }
}

// A number of ranks instead of an object with a size; other members of the object are kept.
std::string spelled_out(std::string_view path, const json::Value& value) {
  constexpr std::array<std::string_view, 3> kShort = {
      "parallel.pipeline", "parallel.tensor", "parallel.context"};
  const bool is_size =
      value.is_number() && std::find(kShort.begin(), kShort.end(), path) != kShort.end();
  return std::string(path) + (is_size ? ".size" : "");
}

// "task": "classify" and "classify": {...} mean "task": {"type": "classify", "params": {...}}: a
// key of either form reaches the same parameters.
void use_long_form_of_task(json::Value& source, std::vector<std::string>& steps) {
  json::Value* task = steps.size() < 2 || !source.is_object() ? nullptr : source.find("task");
  if (task == nullptr) return;
  if (steps[0] == "task" && task->is_string()) {
    json::Value type = std::move(*task);
    const json::Place place = type.place;
    *task = json::Value::object({{"type", std::move(type)}});
    task->place = place;
  }
  const json::Value* const type = task->is_object() ? task->find("type") : nullptr;
  if (type == nullptr || !type->is_string()) return;
  const std::string name = type->as_string();
  const json::Value* const params = task->find("params");
  const bool has_params = params != nullptr && !params->is_null();
  if (steps[0] == name && has_params) {
    steps[0] = "params";
    steps.insert(steps.begin(), "task");
  } else if (steps[0] == "task" && !has_params) {
    const json::Value* const section = source.find(name);
    if (section == nullptr) return;
    json::Value moved = *section;
    std::erase_if(source.members(), [&](const auto& member) { return member.first == name; });
    (*source.find("task"))["params"] = std::move(moved);
  }
}

}  // namespace

void set_key(json::Value& source,
             std::string_view path,
             json::Value value,
             const std::string& origin) {
  set_key(source, path, std::move(value), json::Place{origin});
}

void set_key(json::Value& source,
             std::string_view path,
             json::Value value,
             const json::Place& place) {
  const std::string origin = place.text();
  json::Value* at = &source;
  std::vector<std::string> steps = steps_of(path);
  use_long_form_of_task(source, steps);
  for (const std::string& step : steps) {
    TESSERA_REQUIRE(!step.empty(),
                    Config,
                    fmt::format("{}: \"{}\" is not a key", origin, path),
                    "keys look like optimizer.params.lr");
    TESSERA_REQUIRE(
        at->is_object() || at->is_null(),
        Config,
        fmt::format("{}: there is no \"{}\" inside of {}", origin, step, at->type_name()),
        "name a key of an object");
    json::Value& next = (*at)[step];
    if (next.is_null()) next.place = next.key_place = place;
    at = &next;
  }
  set_place(value, place);
  *at = std::move(value);
}

void apply_override(json::Value& source, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  TESSERA_REQUIRE(equals != std::string_view::npos && equals > 0,
                  Config,
                  fmt::format("--set {}: expected KEY=VALUE", assignment),
                  "such as --set optimizer.lr=3e-4");
  const std::string origin = fmt::format("--set {}", assignment);
  json::Value value = value_of(assignment.substr(equals + 1));
  const std::string path = spelled_out(text::trim(assignment.substr(0, equals)), value);
  set_key(source, path, std::move(value), origin);
}

void drop_evaluation(json::Value& source) {
  const auto drop = [](json::Value& object, std::string_view key) {
    std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
  };
  if (!source.is_object()) return;
  drop(source, "eval");
  json::Value* const checkpoint = source.find("checkpoint");
  if (checkpoint != nullptr && checkpoint->is_object()) drop(*checkpoint, "best");
}

}  // namespace tessera::config
