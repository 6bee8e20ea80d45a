// SPDX-License-Identifier: Apache-2.0
// What `tessera report` tells: one list, printed as a table or as JSON.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

struct Fact {
  std::string key;    ///< in JSON
  std::string label;  ///< in the table; empty: JSON only
  std::string text;
  json::Value value;
};
using Facts = std::vector<Fact>;

/// What this machine can do: takes about a second, because speeds are measured.
Facts machine_facts();
/// A run summed up from its metrics.jsonl and status.json. Error{Io} if `run` is no run folder.
Facts run_facts(const std::filesystem::path& run);

std::string as_table(const Facts& facts);
json::Value as_json(const Facts& facts);

}  // namespace tessera::cli
