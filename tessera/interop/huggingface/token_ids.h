// SPDX-License-Identifier: Apache-2.0
// The ids with which a model's texts begin and end, for exported files.
#pragma once

#include <filesystem>

#include "tessera/config/json.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

/// The token ids in a folder's config.json, which tessera's checkpoints otherwise do not store: an
/// object with those of bos_token_id, eos_token_id and pad_token_id that exist.
json::Value token_ids_in(const std::filesystem::path& folder);

/// bos_token_id and eos_token_id of a run or checkpoint, for config.json and
/// generation_config.json. The latter is a list if several tokens end a text: those of the
/// tokenizer, and the one that the chat template writes after an answer. Throws the errors of
/// models::source_tokenizer().
json::Value token_ids_of(const models::ModelSource& source);

}  // namespace tessera::interop
