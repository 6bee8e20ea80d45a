// SPDX-License-Identifier: Apache-2.0
// A training without a configuration file: tessera train --model gpt2-small --data my.txt.
#pragma once

#include <string>

#include "tessera/config/json.h"
#include "tessera/interop/foreign_flags.h"

namespace tessera::cli {

/// Returns what `tessera init PRESET --data DATA` writes. Throws Error{Config} for an unknown
/// preset.
std::string configuration_for(const std::string& preset, const std::string& data);

/// Returns the configuration to which flags are applied if no file is named: that of `tessera
/// init`, without batch sizes, optimizer and schedule if `flags` set them; with a learning rate and
/// no schedule, the rate falls linearly to 0, as in Hugging Face's Trainer. `model`: a preset, a
/// model folder, a .gguf file, or empty; `data`: a path, or empty. Throws Error{Config} if neither
/// these nor `flags` name data.
json::Value configuration_from_flags(const std::string& model,
                                     const std::string& data,
                                     const interop::ForeignFlags& flags);
/// Returns the name of the run.
std::string name_from_flags(const std::string& model);

/// Adds --model and --data to the settings of a configuration file.
void add_model_and_data(const std::string& model,
                        const std::string& data,
                        interop::ForeignFlags& flags);

}  // namespace tessera::cli
