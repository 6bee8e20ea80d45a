// SPDX-License-Identifier: Apache-2.0
// A model that the program brings, instead of one of a family.
#pragma once

#include <cstdint>

#include "tessera/models/family.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Describes the model as far as its declarations allow: the number of its blocks, and the shapes
/// of its parameters. `tokens`: the size of the vocabulary.
Resolved describe_own(const nn::Model& model, std::int64_t tokens);

}  // namespace tessera::models
