// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/class_names.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/text/small_file.h"

namespace tessera::data {
namespace {

constexpr const char* kInfo = "dataset_info.json";
constexpr int kMostDepth = 32;

const json::Value* member_of(const json::Value& value, std::string_view key) {
  return value.is_object() ? value.find(key) : nullptr;
}

bool has_type(const json::Value& feature, std::string_view type) {
  const json::Value* const named = member_of(feature, "_type");
  return named != nullptr && named->is_string() && named->as_string() == type;
}

void add_feature(const json::Value& feature, const std::string& field, int depth, ClassNames& out) {
  if (depth > kMostDepth) return;
  // A list is {"feature": ..., "_type": "List"}, or in older versions [...].
  if (feature.is_array()) {
    if (feature.items().size() == 1) add_feature(feature.items().front(), field, depth + 1, out);
    return;
  }
  if (!feature.is_object()) return;
  if (has_type(feature, "ClassLabel")) {
    const json::Value* const names = feature.find("names");
    if (names == nullptr || !names->is_array()) return;
    std::vector<std::string> own;
    for (const json::Value& name : names->items()) {
      if (!name.is_string()) return;
      own.push_back(name.as_string());
    }
    if (!own.empty()) out[field] = std::make_shared<const std::vector<std::string>>(std::move(own));
    return;
  }
  if (const json::Value* const inner = feature.find("feature");
      inner != nullptr && feature.find("_type") != nullptr) {
    add_feature(*inner, field, depth + 1, out);
    return;
  }
  if (feature.find("_type") != nullptr) return;  // a value
  for (const auto& [name, value] : feature.members())
    add_feature(value, json::join_path(field, name), depth + 1, out);
}

}  // namespace

ClassNames class_names_in(const json::Value& features) {
  ClassNames out;
  if (features.is_object()) add_feature(features, "", 0, out);
  return out;
}

ClassNames class_names_of(const std::string& file, std::string_view metadata) {
  namespace fs = std::filesystem;
  const fs::path beside = fs::path(file).parent_path() / kInfo;
  const std::string place = metadata.empty() ? beside.string() : file;
  std::error_code ignored;
  if (metadata.empty() && !fs::is_regular_file(beside, ignored)) return {};
  try {
    const json::Value all = metadata.empty()
                                ? json::parse_strict(text::read_small_file(beside), place)
                                : json::parse_strict(metadata, place);
    const json::Value* const info = metadata.empty() ? &all : member_of(all, "info");
    const json::Value* const features = info != nullptr ? member_of(*info, "features") : nullptr;
    return features != nullptr ? class_names_in(*features) : ClassNames();
  } catch (const Error& error) {
    log::warn_once(
        fmt::format("{}: the names of classes there are not read: {}", place, error.what()));
    return {};
  }
}

}  // namespace tessera::data
