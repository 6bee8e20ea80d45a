// SPDX-License-Identifier: Apache-2.0
// Hugging Face's GPT-2 files: keys of config.json, and names and layouts of the tensors.
#pragma once

#include <filesystem>

#include "tessera/models/family.h"

namespace tessera::models {

/// Every key that changes what the model computes is honoured or refused by name; keys that concern
/// other tasks or libraries pass. Absent keys have Hugging Face's defaults.
ModelOptions gpt2_options_from_hf(const json::Value& config);

/// The reverse, for options that are resolved: every size is given. Error{Unsupported} for what
/// Hugging Face's GPT-2 has no key for.
json::Value gpt2_config_to_hf(const ModelOptions& options);

/// Ours with "transformer." before it; the four projections of a layer are transposed.
HfTensor gpt2_hf_tensor(const ParamInfo& info);

}  // namespace tessera::models
