// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/merged_config.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/config_file.h"
#include "tessera/interop/short_forms.h"

namespace tessera::cli {
namespace {

bool says_auto(const json::Value& value) {
  return value.is_string() && value.as_string() == "auto";
}

/// Adds the members of `from` to `into`, and to `conflicts` a sentence for each key that both give
/// differently.
void merge_members(json::Value& into,
                   json::Value from,
                   const std::string& path,
                   std::vector<std::string>& conflicts) {
  for (auto& [key, value] : from.members()) {
    const std::string here = json::join_path(path, key);
    json::Value* const own = into.find(key);
    if (own == nullptr || own->is_null() || (says_auto(*own) && !value.is_null())) {
      into[key] = std::move(value);
    } else if (own->is_object() && value.is_object()) {
      merge_members(*own, std::move(value), here, conflicts);
    } else if (!value.is_null() && !says_auto(value) && !(*own == value)) {
      conflicts.push_back(fmt::format("{} is {} at {} and {} at {}",
                                      here,
                                      own->dump(),
                                      own->place.text(),
                                      value.dump(),
                                      value.place.text()));
    }
  }
}

}  // namespace

json::Value merged_configs(json::Value first, json::Value second) {
  for (const json::Value* const one : {&first, &second}) {
    TESSERA_REQUIRE(
        one->is_object(),
        Config,
        fmt::format("{}: expected an object, found {}", one->place.text(), one->type_name()),
        "write { ... }");
  }
  json::Value out = interop::in_current_names(std::move(first));
  std::vector<std::string> conflicts;
  merge_members(out, interop::in_current_names(std::move(second)), "", conflicts);
  TESSERA_REQUIRE(
      conflicts.empty(),
      Config,
      fmt::format("two configurations contradict each other: {}", text::join(conflicts, "; ")),
      "remove the key from one of the two files");
  return out;
}

json::Value read_configs(const std::string& named, const interop::ForeignFlags& flags) {
  std::error_code ignored;
  const bool one = named.empty() || flags.config.empty() || named == flags.config ||
                   std::filesystem::equivalent(named, flags.config, ignored);
  if (one) return read_config(interop::config_of(named, flags));
  return merged_configs(read_config(named), read_config(flags.config));
}

}  // namespace tessera::cli
