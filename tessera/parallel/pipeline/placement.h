// SPDX-License-Identifier: Apache-2.0
// Assigns the blocks of a model to the stages of a pipeline, by the keys of `parallel.pipeline`.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {

/// Completes and checks the keys of a pipeline, without its model; a pipeline of size 1 is not
/// checked.
void complete_pipeline(PipelineOptions& options,
                       config::Problems& problems,
                       const config::Origins& origins);

/// The cost of each block's forward, in multiplications per token: the elements of its matrices,
/// and of the keys and values to which a token attends. Tables that are only looked up cost
/// nothing.
std::vector<double> predicted_work(const nn::Model& model, std::int64_t sequence_length);

/// Assigns the model's blocks to the stages by `options.partition`. Errors are added to `problems`.
StageLayout place_blocks(const PipelineOptions& options,
                         const nn::Model& model,
                         std::int64_t sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins);

}  // namespace tessera::parallel
