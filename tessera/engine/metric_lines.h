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

/// Removes the lines of steps after `last_step`, and an incomplete last line, from a metrics file,
/// so that after a resume the file has every step once. Does nothing if the file does not exist.
/// Throws Error{Io}.
void drop_later_lines(const std::filesystem::path& path, std::int64_t last_step);

}  // namespace tessera::engine
