// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/metric_lines.h"

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::engine {

void for_each_metric(const std::string& content, const MetricReader& fn) {
  for (const std::string& line : text::split(content, '\n')) {
    if (line.empty()) continue;
    json::Value values;
    try {
      values = json::parse_strict(line, "metrics.jsonl");
    } catch (const Error&) {
      continue;
    }
    if (values.is_object() && values.find("step") != nullptr) fn(line, values);
  }
}

void drop_later_lines(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  const std::string before = files::read(path);
  std::string after;
  for_each_metric(before, [&](const std::string& line, const json::Value& value) {
    if (value.find("step")->as_integer().value_or(0) <= last_step) after += line + '\n';
  });
  if (after != before) files::write_atomic(path, after);
}

}  // namespace tessera::engine
