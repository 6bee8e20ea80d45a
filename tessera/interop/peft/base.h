// SPDX-License-Identifier: Apache-2.0
// The base of an adapter of PEFT that changes the token table or the head: such an adapter may have
// more tokens than its base, and a head of its own where the base's head is its table.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/interop/peft/folder.h"
#include "tessera/models/family.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

/// Changes `source`, the base with the adapter's options, to the model that the adapter's tensors
/// belong to: its number of tokens, a head apart from the table, the tables that are saved without
/// being named, and the tokenizer next to the adapter if it is another one. Only for decoders.
void fit_to_adapter(const PeftFolder& peft, models::ModelSource& source);

/// The weights of `base` for such a model: rows that the base lacks are 0, since the adapter has
/// them, and a head that it lacks is its table. Otherwise as models::first_weights().
models::WeightSource base_weights_for(const models::ModelSource& base,
                                      const models::Resolved& wanted,
                                      std::uint64_t seed,
                                      std::vector<std::string>& notes);

/// Changes the files of the base to those of the merged model: what fit_to_adapter() changed in
/// config.json, and the tokenizer next to the adapter.
void fit_files(const models::ModelSource& source,
               std::vector<std::pair<std::string, std::string>>& files);

}  // namespace tessera::interop
