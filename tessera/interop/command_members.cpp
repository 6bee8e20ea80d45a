// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/command_members.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

// A text as it is, a list of texts with commas, anything else as JSON.
std::string shown(const json::Value& value) {
  if (value.is_string()) return value.as_string();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> out;
  for (const json::Value& item : value.items())
    out.push_back(item.is_string() ? item.as_string() : item.dump());
  return text::join(out, ",");
}

}  // namespace

void check_members(Meaning& meaning, const json::Value& object, std::string_view table) {
  if (!object.is_object()) return;
  const OptionTable& rows = option_table(table);
  for (const auto& [key, value] : object.members()) {
    if (value.is_null()) continue;
    const std::string place = fmt::format("{}: {}", value.key_place.text(), key);
    const Option* const option = rows.find(key);
    if (option == nullptr) {
      std::vector<std::string> names;
      for (const Option& one : rows.options())
        names.insert(names.end(), one.names.begin(), one.names.end());
      const auto near = text::nearest(key, names);
      meaning.refuse(fmt::format("{} is not a key of {}", place, rows.title()),
                     near ? fmt::format("did you mean {}?", *near) : "remove it");
      continue;
    }
    if (option->kind != OptionClass::Refused) continue;
    const std::string text = shown(value);
    const std::string word = text::lower(text);
    const bool nothing = word.empty() || word == "false" || word == "none" || word == "{}";
    if (nothing || text == option->initial) continue;
    meaning.refuse(fmt::format("{} is not supported", place), std::string(option->note));
  }
}

}  // namespace tessera::interop
