// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/record_fields.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/small_file.h"

namespace tessera::tasks {
namespace {

constexpr std::array<std::string_view, 4> kTasks = {
    "classify", "regression", "tag", "image_classify"};
/// Options of these tasks that name fields or say how a text is made of them. Classes and the kinds
/// of labels are in the model.
constexpr std::array<std::string_view, 9> kFields = {"text_field",
                                                     "text_pair_field",
                                                     "label_field",
                                                     "history_field",
                                                     "history",
                                                     "history_turns",
                                                     "tokens_field",
                                                     "tags_field",
                                                     "image_field"};

const json::Value* member_of(const json::Value* value, std::string_view key) {
  const json::Value* const found =
      value != nullptr && value->is_object() ? value->find(key) : nullptr;
  return found == nullptr || found->is_null() ? nullptr : found;
}

}  // namespace

std::optional<std::string> record_fields_text(const json::Value& config) {
  const json::Value *const task = member_of(&config, "task"), *const data =
                                                                  member_of(&config, "data");
  const json::Value* const type = member_of(task, "type");
  if (type == nullptr || !type->is_string() ||
      std::ranges::find(kTasks, type->as_string()) == kTasks.end())
    return std::nullopt;
  json::Value params = json::Value::object();
  for (const std::string_view key : kFields) {
    if (const json::Value* const given = member_of(member_of(task, "params"), key))
      params[std::string(key)] = *given;
  }
  json::Value out = json::Value::object({{"task", *type}, {"params", std::move(params)}});
  for (const char* key : {"map", "text_field", "sequence_length"}) {
    if (const json::Value* const given = member_of(data, key)) out[key] = *given;
  }
  return out.dump(2) + "\n";
}

std::optional<std::int64_t> use_record_fields(const std::filesystem::path& folder,
                                              TaskOptions& task,
                                              data::DataOptions& data) {
  const std::filesystem::path path = folder / kRecordFieldsFile;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  const json::Value file = json::parse_strict(text::read_small_file(path), path.string());
  const auto refuse = [&](const std::string& what) {
    throw Error(Error::Kind::Format,
                fmt::format("{}: {}", path.string(), what),
                "convert the run again, or remove the file and name the fields with --map");
  };
  if (!file.is_object()) refuse(fmt::format("it is {}, not an object", file.type_name()));
  const json::Value* const type = member_of(&file, "task");
  if (type == nullptr || !type->is_string()) refuse("it names no task");
  if (type->as_string() != task.type) return std::nullopt;
  if (const json::Value* const params = member_of(&file, "params")) {
    if (!params->is_object()) refuse(fmt::format("\"params\" is {}", params->type_name()));
    if (task.params.is_null()) task.params = json::Value::object();
    for (const std::string_view key : kFields) {
      const json::Value* const given = params->find(key);
      if (given != nullptr && task.params.find(key) == nullptr)
        task.params[std::string(key)] = *given;
    }
  }
  if (const json::Value* const map = member_of(&file, "map"); map != nullptr && data.map.is_null())
    data.map = *map;
  if (const json::Value* const text = member_of(&file, "text_field")) {
    if (!text->is_string()) refuse(fmt::format("\"text_field\" is {}", text->type_name()));
    data.text_field = text->as_string();
  }
  const json::Value* const length = member_of(&file, "sequence_length");
  if (length == nullptr) return std::nullopt;
  const std::optional<std::int64_t> tokens =
      length->is_number() ? length->as_integer() : std::nullopt;
  if (!tokens || *tokens < 1) refuse(fmt::format("\"sequence_length\" is {}", length->dump()));
  return tokens;
}

}  // namespace tessera::tasks
