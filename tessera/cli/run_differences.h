// SPDX-License-Identifier: Apache-2.0
// The differences of two runs, for people: their configurations, and their losses side by side.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/report/plot.h"

namespace tessera::cli {

/// A key whose values differ; null where a run does not have it.
struct DifferentKey {
  std::string path;
  json::Value a, b;
};

/// One of two curves of losses at a step that both runs have.
struct LossPair {
  std::int64_t step = 0;
  double a = 0, b = 0;
};

struct RunDifferences {
  std::vector<DifferentKey> keys;     ///< without run.dir, which two runs cannot have in common
  std::vector<LossPair> train, eval;  ///< at the steps that both have
};

/// Reads config.json and metrics.jsonl of two run folders; what a folder lacks is left out. Throws
/// Error{Format} for a configuration that cannot be parsed.
RunDifferences run_differences(const std::filesystem::path& a, const std::filesystem::path& b);

/// The pair whose values differ most; nothing if there is none. A value that is not finite differs
/// from a finite one without limit.
std::optional<LossPair> largest_difference(const std::vector<LossPair>& pairs);

/// Lines of tables: keys, losses at a few steps, the largest and the last difference.
std::vector<std::string> as_lines(const RunDifferences& differences);
json::Value as_json(const RunDifferences& differences);

}  // namespace tessera::cli
