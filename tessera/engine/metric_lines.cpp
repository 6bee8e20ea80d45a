// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/metric_lines.h"

#include "tessera/base/error.h"
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

}  // namespace tessera::engine
