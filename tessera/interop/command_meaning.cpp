// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/command_meaning.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/text.h"
#include "tessera/config/overrides.h"

namespace tessera::interop {
namespace {

std::vector<Program>& all_programs() {
  static std::vector<Program> all;
  return all;
}

std::vector<LauncherProgram>& all_launchers() {
  static std::vector<LauncherProgram> all;
  return all;
}

// The last setting of the key.
const ForeignFlags::Setting* last(const ForeignFlags& flags, std::string_view key) {
  const auto found = std::find_if(flags.settings.rbegin(),
                                  flags.settings.rend(),
                                  [&](const auto& setting) { return setting.key == key; });
  return found == flags.settings.rend() ? nullptr : &*found;
}

}  // namespace

const ForeignFlags::Setting* Meaning::given(std::string_view key) const {
  return last(flags, key);
}

const ForeignFlags::Setting* Meaning::find(std::string_view key) const {
  const ForeignFlags::Setting* const own = given(key);
  return own != nullptr ? own : last(defaults, key);
}

std::optional<double> Meaning::number(std::string_view key) const {
  const ForeignFlags::Setting* const setting = find(key);
  if (setting == nullptr || !setting->value.is_number()) return std::nullopt;
  return setting->value.as_double();
}

std::string Meaning::text(std::string_view key, std::string_view absent) const {
  const ForeignFlags::Setting* const setting = find(key);
  if (setting == nullptr) return std::string(absent);
  return setting->value.is_string() ? setting->value.as_string() : setting->value.dump();
}

bool Meaning::is_on(std::string_view key) const {
  const ForeignFlags::Setting* const setting = find(key);
  return setting != nullptr && setting->value.is_bool() && setting->value.as_bool();
}

std::vector<std::string> Meaning::texts(std::string_view key) const {
  std::vector<std::string> out;
  const ForeignFlags::Setting* const setting = find(key);
  if (setting == nullptr) return out;
  const auto add = [&](std::string words) {
    std::replace(words.begin(), words.end(), ',', ' ');
    for (const std::string& word : text::split(words, ' ')) {
      if (!word.empty()) out.push_back(word);
    }
  };
  if (setting->value.is_string()) add(setting->value.as_string());
  if (!setting->value.is_array()) return out;
  for (const json::Value& item : setting->value.items()) {
    if (item.is_string()) add(item.as_string());
  }
  return out;
}

void Meaning::note(std::string text) {
  notes.push_back(std::move(text));
}

void Meaning::refuse(std::string what, std::string fix) {
  problems.emplace_back(std::move(what), std::move(fix));
}

void Meaning::set(std::string_view key, json::Value value, const ForeignFlags::Setting* from) {
  config::set_key(source, key, std::move(value), from == nullptr ? program : from->flag);
}

void Meaning::copy(std::string_view key, const ForeignFlags::Setting* from) {
  if (from != nullptr) set(key, from->value, from);
}

void Meaning::drop(std::string_view key) {
  json::Value* at = &source;
  const std::vector<std::string> steps = text::split(key, '.');
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    at = at->is_object() ? at->find(steps[i]) : nullptr;
    if (at == nullptr) return;
  }
  if (at->is_object())
    std::erase_if(at->members(), [&](const auto& member) { return member.first == steps.back(); });
}

const json::Value* Meaning::value(std::string_view path) const {
  const json::Value* at = &source;
  for (const std::string& step : text::split(path, '.'))
    at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
  return at;
}

bool add_programs(std::vector<Program> programs) {
  std::move(programs.begin(), programs.end(), std::back_inserter(all_programs()));
  return true;
}
const std::vector<Program>& programs() {
  return all_programs();
}

bool add_launchers(std::vector<LauncherProgram> launchers) {
  std::move(launchers.begin(), launchers.end(), std::back_inserter(all_launchers()));
  return true;
}
const std::vector<LauncherProgram>& launchers() {
  return all_launchers();
}

}  // namespace tessera::interop
