// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/label_thresholds.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {
namespace {

constexpr const char* kFile = "thresholds.json";
constexpr const char* kKey = "thresholds";

bool has_several_labels(const models::ObjectiveChoice& objective) {
  const json::Value* const problem = objective.options.find("problem_type");
  return problem != nullptr && problem->is_string() &&
         problem->as_string() == "multi_label_classification";
}

}  // namespace

void write_label_thresholds(const std::filesystem::path& folder,
                            const std::vector<double>& thresholds) {
  json::Value list = json::Value::array();
  for (const double threshold : thresholds)
    list.push_back(json::Value::number(threshold));
  const json::Value out = json::Value::object({{kKey, std::move(list)}});
  files::write_atomic(folder / kFile, out.dump() + "\n");
}

void add_label_thresholds(const std::filesystem::path& folder, models::ObjectiveChoice& objective) {
  const std::filesystem::path path = folder / kFile;
  std::error_code ignored;
  if (!has_several_labels(objective) || !std::filesystem::is_regular_file(path, ignored)) return;
  const json::Value file = json::parse_strict(text::read_small_file(path), path.string());
  const json::Value* const list = file.is_object() ? file.find(kKey) : nullptr;
  const json::Value* const count = objective.options.find("num_labels");
  const std::int64_t labels = count != nullptr ? count->as_integer().value_or(0) : 0;
  const bool right = list != nullptr && list->is_array() && std::ssize(list->items()) == labels &&
                     std::ranges::all_of(list->items(), [](const json::Value& one) {
                       return one.is_number() && one.as_double() > 0 && one.as_double() < 1;
                     });
  TESSERA_REQUIRE(right,
                  Format,
                  fmt::format("{} does not have a threshold between 0 and 1 for each of {} labels",
                              path.string(),
                              labels),
                  "remove the file, or make it again with tessera eval --thresholds");
  objective.options[kKey] = *list;
}

}  // namespace tessera::interop
