// SPDX-License-Identifier: Apache-2.0
// Resolves "auto" as Hugging Face's Trainer does: from the command line, from its own defaults that
// disable a feature, or from the model's hidden size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/key_dialect.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// One "auto" of a file.
struct AutoValue {
  std::string path;
  json::Place place;
  bool resolved = false;
  std::string how;     ///< "Hugging Face's default of --weight_decay"; empty while unresolved
  std::string needed;  ///< the flag without which training cannot start; empty: none
};

/// Writes the values that are already known to `source`, from which they were taken. Values from
/// the command line have replaced their "auto" before.
std::vector<AutoValue> resolve_auto(const std::vector<config::TakenKey>& found,
                                    json::Value& source);

/// Resolves the bucket sizes, once the model is known.
void resolve_auto_sizes(std::int64_t hidden_size,
                        std::vector<AutoValue>& values,
                        parallel::ZeroOptions& options);

/// Marks the batch size keys as resolved.
void resolve_auto_batch(std::vector<AutoValue>& values);
/// True if one of the batch size keys is "auto".
bool has_auto_batch(const std::vector<AutoValue>& values);

/// Reports values that are still "auto" although training needs them.
void check_auto(const std::vector<AutoValue>& values, config::Problems& problems);

}  // namespace tessera::planner
