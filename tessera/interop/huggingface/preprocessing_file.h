// SPDX-License-Identifier: Apache-2.0
// The file that specifies how images become numbers in a Hugging Face folder.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Adds preprocessor_config.json, by name and content, in the place of a file of that name. `name`:
/// see tasks::preprocessing_of(); `config`: the folder's config.json, with the side length of the
/// model's images. Warns and adds nothing if the preprocessing cannot be read any more.
void add_preprocessing(std::vector<std::pair<std::string, std::string>>& files,
                       const std::string& name,
                       const json::Value& config);

}  // namespace tessera::interop
