// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/axolotl/command_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/data/records.h"
#include "tessera/data/slices.h"
#include "tessera/interop/command_members.h"
#include "tessera/interop/dataset_names.h"

namespace tessera::interop::axolotl {
namespace {

namespace fs = std::filesystem;
using Setting = ForeignFlags::Setting;

std::string text_in(const json::Value& object, const char* key) {
  const json::Value* const value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

struct Source {
  std::vector<std::string> files;
  std::string format;
  json::Value map = json::Value::object();
  bool drop_system = false;  ///< the system text of a conversation is left out
};

// The format of records by axolotl's type ("alpaca", "chat_template", "completion",
// "chatml.intel").
std::string format_of(Meaning& meaning, const json::Value& entry, const std::string& place) {
  const json::Value* const type = entry.find("type");
  if (type == nullptr || type->is_null()) return "";
  if (!type->is_string()) {
    meaning.refuse(fmt::format("{}: a type with prompts of its own is not supported", place),
                   "write the records as messages");
    return "";
  }
  const std::string name = type->as_string();
  const std::string first = name.substr(0, name.find_first_of(".:"));
  if (first == "alpaca" || first == "alpaca_w_system") return "alpaca";
  if (first == "chat_template") return "messages";
  if (first == "sharegpt") return "sharegpt";
  if (first == "completion" || first == "pretrain") return "text";
  if (first == "input_output") {
    meaning.refuse(fmt::format("{}: type {} is not supported", place, name),
                   "write the records as messages");
    return "";
  }
  // Types of preferences name a layout of columns, which is found by their names.
  return "";
}

// Checks the names of the members of messages: the role is "role" or "from", the text "content" or
// "value", and thoughts have one of the names that chat templates know.
void check_messages(Meaning& meaning, const json::Value& entry, const std::string& place) {
  static constexpr std::array<std::string_view, 3> kThoughts = {
      "reasoning_content", "thinking", "reasoning"};
  for (const char* key : {"field_thinking", "template_thinking_key"}) {
    const std::string name = text_in(entry, key);
    if (name.empty() || std::ranges::find(kThoughts, name) != kThoughts.end()) continue;
    meaning.refuse(fmt::format("{}: {} {} is not supported", place, key, name),
                   "call the thoughts of messages reasoning_content, thinking or reasoning");
  }
  const json::Value* const names = entry.find("message_property_mappings");
  if (names != nullptr && names->is_object()) {
    for (const auto& [property, value] : names->members()) {
      const std::string name = value.is_string() ? value.as_string() : value.dump();
      const bool known = name == property || (property == "role" && name == "from") ||
                         (property == "content" && name == "value");
      if (!known)
        meaning.refuse(
            fmt::format("{}: {} {} is not supported", value.key_place.text(), property, name),
            "write the records as messages with role and content");
    }
    const bool from = text_in(*names, "role") == "from",
               value = text_in(*names, "content") == "value";
    if (from != value)
      meaning.refuse(fmt::format("{}: role {} with content {} is not supported",
                                 names->key_place.text(),
                                 from ? "from" : "role",
                                 value ? "value" : "content"),
                     "use role and content, or from and value");
  }
  const json::Value* const roles = entry.find("roles");
  if (roles == nullptr || !roles->is_object()) return;
  // The words that tessera knows for a role; "tool" and "system" have one each.
  static constexpr auto kWords =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"user", "user"},
                                                                    {"user", "human"},
                                                                    {"assistant", "assistant"},
                                                                    {"assistant", "gpt"},
                                                                    {"assistant", "model"},
                                                                    {"assistant", "bot"},
                                                                    {"assistant", "chatgpt"},
                                                                    {"system", "system"},
                                                                    {"tool", "tool"},
                                                                    {"tool", "observation"}});
  for (const auto& [role, words] : roles->members()) {
    std::vector<std::string> list;
    if (words.is_string()) list.push_back(words.as_string());
    if (words.is_array()) {
      for (const json::Value& word : words.items())
        list.push_back(word.is_string() ? word.as_string() : word.dump());
    }
    for (const std::string& word : list) {
      if (std::ranges::find(kWords, std::pair<std::string_view, std::string_view>(role, word)) ==
          kWords.end())
        meaning.refuse(
            fmt::format(
                "{}: \"{}\" as the role {} is not known", words.key_place.text(), word, role),
            "call the turns user, assistant, system and tool, or human and gpt");
    }
  }
}

// Listed files are one part, of which `split` may be a slice.
std::vector<std::string> slice_of(Meaning& meaning,
                                  const std::string& place,
                                  const std::vector<std::string>& files,
                                  const std::string& split) {
  const std::size_t open = split.find('[');
  if (open == std::string::npos) return files;
  const auto slice = data::parse_slice(std::string_view(split).substr(open));
  if (slice) return data::slice_files(data::record_files(files, data::Split::Train), *slice);
  meaning.refuse(fmt::format("{}: split {} is no slice of data_files", place, split),
                 "name one slice, such as train[:10%]");
  return files;
}

Source source_of(Meaning& meaning, const json::Value& entry, const std::string& split) {
  Source out;
  const std::string place = entry.place.text();
  const std::string path = text_in(entry, "path");
  out.format = format_of(meaning, entry, place);
  if (out.format == "messages" && text_in(entry, "field_messages").empty() &&
      entry.find("message_property_mappings") == nullptr &&
      text_in(entry, "message_field_role") == "from")
    out.format = "sharegpt";
  const std::string field = text_in(entry, "field_messages");
  const json::Value* const names = entry.find("message_property_mappings");
  const bool sharegpt =
      (names != nullptr && names->is_object() && text_in(*names, "role") == "from") ||
      text_in(entry, "message_field_role") == "from";
  if (out.format == "messages" && sharegpt) out.format = "sharegpt";
  const char* const own = out.format == "sharegpt" ? "conversations" : "messages";
  if (!field.empty() && field != own) out.map[own] = json::Value::string(field);
  for (const char* text : {"text_column", "field"}) {
    if (out.format == "text" && !text_in(entry, text).empty())
      out.map["text"] = json::Value::string(text_in(entry, text));
  }
  const json::Value* const drops = entry.find("drop_system_message");
  out.drop_system = drops != nullptr && drops->is_bool() && drops->as_bool();
  if (out.drop_system && out.format != "messages" && out.format != "sharegpt") {
    meaning.note(fmt::format(
        "{}: drop_system_message has no effect: axolotl reads it for type chat_template", place));
    out.drop_system = false;
  }
  check_members(meaning, entry, "axolotl/dataset");
  check_messages(meaning, entry, place);
  for (const auto& [name, plain, ours] :
       {std::tuple("message_field_role", "role", "from"),
        std::tuple("message_field_content", "content", "value")}) {
    const std::string word = text_in(entry, name);
    if (!word.empty() && word != plain && word != ours)
      meaning.refuse(fmt::format("{}: {} {} is not supported", place, name, word),
                     "write the records as messages with role and content");
  }
  for (const auto& [name, ours] :
       {std::pair("field_chosen", "chosen"), std::pair("field_rejected", "rejected")}) {
    const std::string word = text_in(entry, name);
    if (!word.empty() && word != ours) out.map[ours] = json::Value::string(word);
  }
  const json::Value* const data_files = entry.find("data_files");
  if (data_files != nullptr && data_files->is_string()) {
    out.files = {data_files->as_string()};
  } else if (data_files != nullptr && data_files->is_array()) {
    for (const json::Value& file : data_files->items())
      out.files.push_back(file.is_string() ? file.as_string() : "");
  }
  std::error_code ignored;
  for (std::string& file : out.files) {
    if (!fs::exists(file, ignored) && fs::exists(fs::path(path) / file, ignored))
      file = (fs::path(path) / file).string();
  }
  if (!out.files.empty() && fs::exists(out.files.front(), ignored)) {
    out.files = slice_of(meaning, place, out.files, text_in(entry, "split"));
    return out;
  }
  const auto found = find_dataset(path, text_in(entry, "name"));
  const std::string part = text_in(entry, "split").empty() ? split : text_in(entry, "split");
  if (!found) {
    meaning.refuse(fmt::format("{}: there is no data set {} on this machine", place, path),
                   how_to_fetch_dataset(path));
    return out;
  }
  out.files = split_files(*found, part);
  if (out.files.empty())
    meaning.refuse(fmt::format("{}: {} has no part \"{}\"", place, found->string(), part),
                   "name a part that it has, such as train or train[:10%]");
  return out;
}

}  // namespace

void set_data(Meaning& meaning, const Setting& from, const char* key, bool supervised) {
  if (!from.value.is_array() || from.value.items().empty()) {
    meaning.refuse(fmt::format("{}: expected a list of data sets", from.flag), "- path: FILE");
    return;
  }
  json::Value files = json::Value::array();
  Source all;
  bool first = true;
  for (const json::Value& entry : from.value.items()) {
    if (!entry.is_object()) continue;
    Source one =
        source_of(meaning, entry, std::string_view(key) == "data.train" ? "train" : "test");
    for (const std::string& file : one.files)
      files.push_back(json::Value::string(file));
    if (!first &&
        (one.format != all.format || !(one.map == all.map) || one.drop_system != all.drop_system)) {
      meaning.refuse(
          fmt::format("{}: the data sets have different types or fields", entry.place.text()),
          "write them into one format");
    }
    all = std::move(one);
    first = false;
  }
  if (files.items().empty()) return;
  meaning.set(key, files.items().size() == 1 ? files.items().front() : files, &from);
  if (std::string_view(key) != "data.train") return;
  if (supervised && all.drop_system)
    meaning.set("task.params.drop_system", json::Value::boolean(true), &from);
  if (supervised && !all.format.empty())
    meaning.set("data.format", json::Value::string(all.format), &from);
  if (all.format == "text" && all.map.find("text") != nullptr) {
    meaning.set("data.text_field", *all.map.find("text"), &from);
  } else if (!all.map.members().empty()) {
    meaning.set("data.map", all.map, &from);
  }
}

}  // namespace tessera::interop::axolotl
