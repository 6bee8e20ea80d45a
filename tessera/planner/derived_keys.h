// SPDX-License-Identifier: Apache-2.0
// The keys of a resolved configuration (run.derived) that depend on the number of ranks for which
// it was resolved, and are derived again for another number.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::planner {

class DerivedKeys {
 public:
  /// Removes the keys that run.derived lists from `source`, unless they were overwritten since
  /// (--set). A micro-batch size that still divides the batch is kept, because the same
  /// micro-batches give the same bits.
  json::Value take(json::Value source, int ranks);
  /// The list for a configuration in which the user set the keys that `origins` knows.
  [[nodiscard]] std::vector<std::string> names(const config::Origins& origins) const;
  /// One line per changed value.
  [[nodiscard]] std::vector<std::string> notes(const json::Value& resolved, int ranks) const;

 private:
  std::vector<std::pair<std::string, json::Value>> before_;
  bool micro_was_derived_ = false;
};

}  // namespace tessera::planner
