// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/history.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tasks/conversation.h"

namespace tessera::tasks {
namespace {

constexpr const char* kHistoryField = "history";

[[noreturn]] void refuse(const data::Record& record,
                         const std::string& field,
                         const json::Value& value) {
  constexpr std::size_t kShown = 80;
  const std::string found = value.dump();
  record.refuse(
      fmt::format(
          "\"{}\" is {}{}", field, found.substr(0, kShown), found.size() > kShown ? "..." : ""),
      "give the earlier turns as messages, as pairs [question, answer], or as texts");
}

std::vector<Turn> turns_in_lines(const std::string& text) {
  std::vector<Turn> out;
  for (const std::string& line : text::split(text, '\n')) {
    std::string trimmed(text::trim(line));
    if (!trimmed.empty()) out.push_back({out.size() % 2 == 0, std::move(trimmed)});
  }
  return out;
}

void add_messages(const data::Record& record,
                  const json::Value& list,
                  const std::string& field,
                  std::vector<Turn>& out) {
  const json::Value messages = conversation_of(record, list, field.c_str());
  for (const json::Value& message : messages.items()) {
    const std::string role = message.find("role")->as_string();
    const json::Value* const content = message.find("content");
    if (role == "system" || content == nullptr || !content->is_string()) continue;
    out.push_back({role == "user", content->as_string()});
  }
}

std::vector<Turn> turns_in_list(const data::Record& record,
                                const json::Value& list,
                                const std::string& field) {
  std::vector<Turn> out;
  if (!list.items().empty() && list.items().front().is_object()) {
    add_messages(record, list, field, out);
    return out;
  }
  for (const json::Value& item : list.items()) {
    if (item.is_string()) {
      out.push_back({out.size() % 2 == 0, item.as_string()});
    } else if (item.is_array() && item.items().size() == 2 && item.items()[0].is_string() &&
               item.items()[1].is_string()) {
      out.push_back({true, item.items()[0].as_string()});
      out.push_back({false, item.items()[1].as_string()});
    } else {
      refuse(record, field, list);
    }
  }
  return out;
}

/// Returns a list that is written as JSON within a text, as in tables.
std::optional<json::Value> list_in(const std::string& text) {
  if (!text.starts_with('[')) return std::nullopt;
  try {
    json::Value value = json::parse_strict(text, "history");
    if (value.is_array()) return value;
  } catch (const Error&) {
    // an ordinary text that begins with a bracket
  }
  return std::nullopt;
}

}  // namespace

void HistoryOptions::describe(config::Fields& fields) {
  fields.field(
      "history_field",
      field,
      {.text = "Field of a record with the earlier turns of its dialogue, which are read in "
               "front of the text.",
       .default_text = "history, where a record has it"});
  fields.choice(
      "history",
      turns,
      kHistoryTurns,
      {.text = "Which earlier turns are read: the nearest ones that fit (window), of these "
               "only the user's (questions), or none."});
  fields.field("history_turns",
               most,
               {.text = "The most turns that are read; 0: as many as fit.", .min = 0, .max = 1e6});
}

std::vector<Turn> history_of(const data::Record& record, const HistoryOptions& options) {
  const std::string field = options.field.empty() ? kHistoryField : options.field;
  const json::Value* const value = record.value.find(field);
  if (value == nullptr || value->is_null()) return {};
  if (value->is_array()) return turns_in_list(record, *value, field);
  if (!value->is_string()) refuse(record, field, *value);
  const std::string text(text::trim(value->as_string()));
  if (const auto list = list_in(text)) return turns_in_list(record, *list, field);
  return turns_in_lines(text);
}

std::string with_history(const std::vector<Turn>& turns,
                         const HistoryOptions& options,
                         const std::string& text,
                         const std::function<bool(const std::string&)>& fits) {
  std::string out = text;
  if (options.turns == HistoryTurns::None) return out;
  std::int64_t taken = 0;
  for (std::size_t i = turns.size(); i-- > 0;) {
    if (options.most > 0 && taken == options.most) break;
    if (options.turns == HistoryTurns::Questions && !turns[i].user) continue;
    std::string longer = turns[i].text + "\n" + out;
    if (!fits(longer)) break;
    out = std::move(longer);
    ++taken;
  }
  return out;
}

}  // namespace tessera::tasks
