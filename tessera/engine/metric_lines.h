// SPDX-License-Identifier: Apache-2.0
// Reading metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "tessera/config/json.h"

namespace tessera::engine {

/// Receives a raw line, without its line end, and its parsed values.
using MetricReader = std::function<void(const std::string& line, const json::Value& values)>;

/// Calls fn for every line of metrics.jsonl that is an object with a step, in order. Other lines
/// are skipped: a killed process may leave an incomplete one.
void for_each_metric(const std::string& content, const MetricReader& fn);

/// Takes the lines of steps past `last_step`, and a torn last one, out of such a file, so that
/// after a resume every step stands there once. Nothing where there is no file. Error{Io}.
void drop_later_lines(const std::filesystem::path& path, std::int64_t last_step);

}  // namespace tessera::engine
