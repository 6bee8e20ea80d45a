// SPDX-License-Identifier: Apache-2.0
// The id of padding in the config.json of an exported decoder.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

/// Names and contents.
using TextFiles = std::vector<std::pair<std::string, std::string>>;

/// Writes the id of padding to the config.json of a decoder. transformers finds the last token of
/// each text of a batch by it, and refuses batches without it. `files`: the tokenizer's, which are
/// completed unless they were `brought`.
void say_padding(const models::ModelSource& source,
                 json::Value& config,
                 TextFiles& files,
                 bool brought);

}  // namespace tessera::interop
