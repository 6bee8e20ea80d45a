// SPDX-License-Identifier: Apache-2.0
// Whether the output layer of a stored model is its token table, as the stored tensors say.
#pragma once

#include <filesystem>

#include "tessera/config/json.h"
#include "tessera/models/options.h"

namespace tessera::interop {

/// For a family whose config.json does not decide it (models/encoder_decoder_options.h): sets
/// tie_embeddings as the weights at `path` have the head, and warns if `hf_config` contradicts
/// them. Does nothing if `path` has no weights. Throws the errors of open_weights(). Cost: reads
/// head and table up to their first difference if both are stored and config.json ties them.
void settle_stored_head(const std::filesystem::path& path,
                        const json::Value& hf_config,
                        models::ModelOptions& options);

}  // namespace tessera::interop
