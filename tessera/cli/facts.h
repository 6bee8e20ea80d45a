// SPDX-License-Identifier: Apache-2.0
// The facts of `tessera report`: one list, printed as a table or as JSON.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

struct Fact {
  std::string key;    ///< key in JSON
  std::string label;  ///< label in the table; empty: JSON only
  std::string text;
  json::Value value;
};
using Facts = std::vector<Fact>;

/// The capabilities of this machine. Takes about a second, because speeds are measured.
Facts machine_facts();
/// Summarizes a run from its metrics.jsonl and status.json. Throws Error{Io} if `run` is not a run
/// folder.
Facts run_facts(const std::filesystem::path& run);

std::string as_table(const Facts& facts);
json::Value as_json(const Facts& facts);

}  // namespace tessera::cli
