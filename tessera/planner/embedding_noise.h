// SPDX-License-Identifier: Apache-2.0
// Noise on embeddings in training (NEFTune), if the task asks for it.
#pragma once

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Adds the noise of the plan's task to the model's trunk. Throws as nn::add_embedding_noise(),
/// when the blocks are made.
void plan_embedding_noise(Plan& plan);

}  // namespace tessera::planner
