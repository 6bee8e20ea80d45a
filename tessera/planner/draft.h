// SPDX-License-Identifier: Apache-2.0
// A plan on the way: what could be read of a configuration, what follows from it, and everything
// that is wrong. make_plan() raises what is wrong; `tessera config explain` shows it.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/planner/auto_values.h"
#include "tessera/planner/key_dialect.h"
#include "tessera/planner/model_source.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

struct Draft {
  Plan plan;
  json::Value written;  ///< the configuration in new names, nothing taken out
  config::Problems problems;
  config::Origins origins;
  std::vector<TakenKey> accepted;  ///< other programs' keys without a meaning here
  std::vector<AutoValue> automatic;
  std::vector<std::string> derived;   ///< keys that follow from others and from the ranks
  std::optional<ModelSource> source;  ///< of model.from
  /// The first failure that is not the configuration's: a missing file, a damaged checkpoint.
  std::exception_ptr failure;
};

/// Never throws for what is wrong in the configuration. Without `model` nothing is resolved that
/// needs the model or its tokenizer. `own` takes the place of the section `model`.
Draft make_draft(const json::Value& source,
                 int ranks,
                 const std::string& name_of_file,
                 bool model = true,
                 const nn::Model* own = nullptr);

/// Every key with its value, as far as the draft came.
json::Value resolved_config(const Draft& draft, bool model = true);

/// Paths of tessera's own keys and sections.
const std::vector<std::string>& config_paths();

}  // namespace tessera::planner
