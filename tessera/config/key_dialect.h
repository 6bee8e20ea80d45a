// SPDX-License-Identifier: Apache-2.0
// Keys of other programs that a configuration may contain in addition to tessera's own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::config {

/// A key that was removed from the configuration.
struct TakenKey {
  std::string path;
  json::Value value;  ///< including its source positions
  std::string why;    ///< why it has no effect here
};
struct TakenKeys {
  json::Value left;                 ///< what the options read
  std::vector<TakenKey> accepted;   ///< keys without an effect here
  std::vector<TakenKey> automatic;  ///< keys with the value "auto", as Hugging Face writes it
};

/// Returns "PATH is accepted but has no effect here: WHY".
std::string note_of(const TakenKey& key);

/// Normalizes Colossal-AI's fp16.mode: "AMP_TYPE.NAIVE" and "NAIVE" become "naive".
std::string amp_type(std::string_view mode);

/// The interface to a table of other programs' keys, which the planner applies before it reads its
/// options. The planner knows no such program: interop/ registers the only dialect. All functions
/// are pure.
struct KeyDialect {
  /// Replaces short forms ("pipeline": 2) and other programs' forms of a setting by the long form.
  json::Value (*spell_out)(json::Value source);
  /// Replaces other names of a key by the current one. Two names of one key with different values
  /// are reported in `problems`.
  json::Value (*with_new_names)(json::Value source, Problems& problems);
  /// Splits a configuration that uses current names. `own`: paths of the keys and sections of
  /// tessera's options. Wrong types, unknown keys (with the nearest name) and rejected keys are
  /// reported in `problems`.
  TakenKeys (*take)(json::Value source, std::span<const std::string> own, Problems& problems);
};
Registry<KeyDialect>& key_dialects();
/// The registered dialect.
const KeyDialect& key_dialect();

}  // namespace tessera::config
