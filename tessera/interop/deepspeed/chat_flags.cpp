// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/chat_flags.h"

#include <cstdint>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"

namespace tessera::interop {
namespace {

const json::Value* value_at(const json::Value& source, std::initializer_list<const char*> path) {
  const json::Value* at = &source;
  for (const char* step : path)
    at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
  return at;
}

void set_minimum_rate(json::Value& source, const ForeignFlags::Setting& setting) {
  if (setting.value.as_double() == 0.0) return;
  const json::Value* const type = value_at(source, {"scheduler", "type"});
  const std::string name =
      type != nullptr && type->is_string() ? text::lower(type->as_string()) : std::string("cosine");
  TESSERA_REQUIRE(
      name == "cosine" || name == "cosine_with_min_lr",
      Config,
      fmt::format(
          "{} {}: the schedule {} has no lowest rate", setting.flag, setting.value.dump(), name),
      "use --lr_scheduler_type cosine, or remove it");
  config::set_key(
      source, "scheduler.type", json::Value::string("cosine_with_min_lr"), setting.flag);
  config::set_key(source, "scheduler.min_lr", setting.value, setting.flag);
}

}  // namespace

void add_lora_rank(const std::string& typed,
                   const std::string& section,
                   const std::string& value,
                   ForeignFlags& out) {
  json::Value rank;
  try {
    rank = json::parse(value, typed);
  } catch (const Error&) {
    // reported below, as an error of the command line
  }
  TESSERA_REQUIRE(rank.is_number(),
                  Config,
                  fmt::format("{}: expected a number, found \"{}\"", typed, value),
                  "");
  if (rank.as_double() == 0) return;
  out.settings.push_back({typed, section + ".type", json::Value::string("lora")});
  out.settings.push_back({typed, section + ".r", std::move(rank)});
  out.settings.push_back({typed, section + ".alpha", json::Value::integer(1)});
}

std::string names_without(const std::string& part) {
  std::string escaped;
  for (const char c : part) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!plain) escaped += '\\';
    escaped += c;
  }
  return "(?!.*" + escaped + ").*";
}

void add_dtype(const std::string& typed, const std::string& value, ForeignFlags& out) {
  TESSERA_REQUIRE(value == "fp16" || value == "bf16" || value == "fp32",
                  Config,
                  fmt::format("{} {}: unknown", typed, value),
                  "use fp16, bf16 or fp32");
  for (const char* name : {"fp16", "bf16"}) {
    if (value == name || value == "fp32")
      out.settings.push_back(
          {typed, std::string(name) + ".enabled", json::Value::boolean(value == name)});
  }
}

void add_data_paths(const std::string& typed,
                    const std::string& key,
                    const std::vector<std::string>& paths,
                    ForeignFlags& out) {
  json::Value value = json::Value::string(paths.front());
  if (paths.size() > 1) {
    value = json::Value::array({});
    for (const std::string& path : paths)
      value.push_back(json::Value::string(path));
  }
  out.settings.push_back({typed, key, std::move(value)});
}

json::Value with_further_data(const json::Value& train, const json::Value& more) {
  json::Value out = json::Value::array({});
  for (const json::Value* part : {&train, &more}) {
    if (part->is_null()) continue;
    if (!part->is_array()) {
      out.push_back(*part);
      continue;
    }
    for (const json::Value& path : part->items())
      out.push_back(path);
  }
  return out;
}

namespace {

/// Adds the files that DeepSpeed-Chat learns in its first step alone.
void add_further_data(json::Value& source,
                      const ForeignFlags::Setting& setting,
                      std::vector<std::string>& notes) {
  const json::Value* task = value_at(source, {"task"});
  if (task != nullptr && task->is_object()) task = task->find("type");
  if (task != nullptr && task->is_string() &&
      (task->as_string() == "reward" || task->as_string() == "rl")) {
    notes.push_back(
        fmt::format("{} has no effect in the task {}: supervised fine-tuning alone "
                    "learns these files",
                    setting.flag,
                    task->as_string()));
    return;
  }
  const json::Value* const train = value_at(source, {"data", "train"});
  config::set_key(source,
                  "data.train",
                  with_further_data(train == nullptr ? json::Value() : *train, setting.value),
                  setting.flag);
}

}  // namespace

void apply_chat_settings(const ChatSettings& settings,
                         json::Value& source,
                         std::vector<std::string>& notes) {
  if (settings.minimum_rate != nullptr) set_minimum_rate(source, *settings.minimum_rate);
  if (const ForeignFlags::Setting* const rate = settings.lora_rate; rate != nullptr) {
    if (value_at(source, {"adapter", "type"}) != nullptr) {
      config::set_key(source, "optimizer.lr", rate->value, rate->flag);
    } else {
      notes.push_back(fmt::format("{} has no effect without an adapter: --lora_dim 8", rate->flag));
    }
  }
  if (settings.further_data != nullptr) add_further_data(source, *settings.further_data, notes);
  const ForeignFlags::Setting *const prompt = settings.prompt, *const answer = settings.answer;
  if (answer != nullptr) config::set_key(source, "rl.max_new_tokens", answer->value, answer->flag);
  if (prompt == nullptr) return;
  TESSERA_REQUIRE(answer != nullptr,
                  Config,
                  fmt::format("{} without the length of an answer", prompt->flag),
                  "add --max_answer_seq_len, or set data.sequence_length, the length of both");
  const auto of_prompt = prompt->value.as_integer(), of_answer = answer->value.as_integer();
  TESSERA_REQUIRE(of_prompt && of_answer,
                  Config,
                  fmt::format("{} and {}: expected integers", prompt->flag, answer->flag),
                  "--max_prompt_seq_len 256 --max_answer_seq_len 256");
  config::set_key(
      source, "data.sequence_length", json::Value::integer(*of_prompt + *of_answer), prompt->flag);
}

}  // namespace tessera::interop
