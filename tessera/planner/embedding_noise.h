// SPDX-License-Identifier: Apache-2.0
// Noise on embeddings in training (NEFTune), where the task asks for it.
#pragma once

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Lets the trunk of the plan's model add the noise of its task. Errors as
/// nn::add_embedding_noise(), where the blocks are made.
void plan_embedding_noise(Plan& plan);

}  // namespace tessera::planner
