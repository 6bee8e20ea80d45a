// SPDX-License-Identifier: Apache-2.0
// A configuration with every value it comes to and where each comes from, whether training could
// start with it or not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::report {

struct ExplainedKey {
  std::string path;
  json::Value value;    ///< null: not set
  std::string text;     ///< the value for people; "auto" while it is unresolved
  std::string source;   ///< "ds.json:3:12", "--seed", "default", "derived: ..."
  std::string refused;  ///< why train would not take it; empty: it would
};

struct Explanation {
  int ranks = 1;
  std::string ranks_text;          ///< the number with its reason
  std::vector<ExplainedKey> keys;  ///< those that have an effect, in the order of docs/config.md
  std::vector<ExplainedKey> accepted;  ///< without a meaning here; `refused` is empty
  std::vector<ExplainedKey> refused;   ///< of no key above
  std::vector<std::string> needed;     ///< what train wants to be told beside
  std::vector<std::string> unknown;    ///< keys that nobody knows, with place and nearest name
  std::vector<std::string> notes;
  [[nodiscard]] bool trains() const;  ///< nothing is refused or unknown
};

/// Reads `source` for `ranks`, or for the smallest number of them that closes the batch arithmetic.
/// Nothing that is wrong in it is thrown. Reads the folder of `model.from` and tokenizer files, no
/// data.
Explanation explain_config(const json::Value& source,
                           std::optional<int> ranks,
                           const std::string& name_of_file);

/// Tables for a terminal.
std::string as_text(const Explanation& explanation);
json::Value as_json(const Explanation& explanation);

}  // namespace tessera::report
