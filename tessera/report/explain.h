// SPDX-License-Identifier: Apache-2.0
// Explains a configuration: every resolved value and its source, whether or not training could
// start with it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::report {

struct ExplainedKey {
  std::string path;
  json::Value value;    ///< null: not set
  std::string text;     ///< the value for display; "auto" while it is unresolved
  std::string source;   ///< "ds.json:3:12", "--seed", "default", "derived: ..."
  std::string refused;  ///< why train would refuse it; empty: it would accept it
  bool given = false;   ///< the file or a flag sets it, perhaps to "auto"
};

struct Explanation {
  int ranks = 1;
  std::string ranks_text;              ///< the number with its reason
  std::vector<ExplainedKey> keys;      ///< keys that have an effect, in the order of docs/config.md
  std::vector<ExplainedKey> accepted;  ///< keys without an effect here; `refused` is empty
  std::vector<ExplainedKey> refused;   ///< refused keys that are not listed above
  std::vector<std::string> needed;     ///< other settings that train requires
  std::vector<std::string> unknown;    ///< unknown keys, with place and nearest name
  std::vector<std::string> notes;
  std::vector<std::string> formula;   ///< the loss, and what its symbols mean
  [[nodiscard]] bool trains() const;  ///< nothing is refused or unknown
};

using FormulaOf =
    std::function<std::vector<std::string>(const tasks::Task& task, const data::DataOptions& data)>;

/// Reads `source` for `ranks` ranks, or for the smallest number of ranks with which the batch
/// equation holds. Errors in it are not thrown. Reads the folder of `model.from` and tokenizer
/// files, but no data. `formula`: returns the loss of a task as lines of text.
Explanation explain_config(const json::Value& source,
                           std::optional<int> ranks,
                           const std::string& name_of_file,
                           const FormulaOf& formula = {});

/// Tables for a terminal: first what train would refuse and what the file sets, at the end the many
/// values that nobody has set.
std::string as_text(const Explanation& explanation);
json::Value as_json(const Explanation& explanation);

}  // namespace tessera::report
