// SPDX-License-Identifier: Apache-2.0
// Configurations name models by their folder, or as Hugging Face does.
#pragma once

#include "tessera/config/json.h"

namespace tessera::config {

/// Replaces names of models ("Qwen/Qwen2.5-0.5B") by their folders on this machine, see
/// hub::find_model(): the values of all keys `from` and `teacher`, at any depth. A value that is a
/// path, or that nothing has the name of, stays as it is.
void resolve_model_names(json::Value& source);

}  // namespace tessera::config
