// SPDX-License-Identifier: Apache-2.0
// "auto", as Hugging Face's Trainer fills it in: from the command line, from its own defaults where
// they switch something off, or from the model's hidden size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/planner/key_dialect.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// One "auto" of a file.
struct AutoValue {
  std::string path;
  json::Place place;
  bool resolved = false;
  std::string how;     ///< "Hugging Face's default of --weight_decay"; empty while unresolved
  std::string needed;  ///< the flag without which training cannot start; empty: it can
};

/// Writes the values that are known already into `source`, from which they were taken. What the
/// command line says stands there as a number by now, and is no "auto" any more.
std::vector<AutoValue> resolve_auto(const std::vector<TakenKey>& found, json::Value& source);

/// The sizes of buckets, once the model is known.
void resolve_auto_sizes(std::int64_t hidden_size,
                        std::vector<AutoValue>& values,
                        ZeroOptions& options);

/// Marks the keys of the batch as completed.
void resolve_auto_batch(std::vector<AutoValue>& values);
/// Whether one of the keys of the batch is "auto".
bool has_auto_batch(const std::vector<AutoValue>& values);

/// What is still "auto" and must not be when training starts.
void check_auto(const std::vector<AutoValue>& values, config::Problems& problems);

}  // namespace tessera::planner
