// SPDX-License-Identifier: Apache-2.0
// Assigns the model's blocks to the stages of `parallel.pipeline` and orders their execution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {
struct Layout;
}

namespace tessera::planner {

struct TrainConfig;

/// Completes and checks the keys of a pipeline, without its model; a pipeline of size 1 is not
/// checked.
void complete_pipeline(parallel::PipelineOptions& options,
                       config::Problems& problems,
                       const config::Origins& origins);
/// Checks the pipeline against the rest of the configuration: micro-batches and optimizer.
/// `accumulation`: 0 if it is unknown.
void check_pipeline(const TrainConfig& config,
                    std::int64_t accumulation,
                    config::Problems& problems,
                    const config::Origins& origins);

/// The cost of each block's forward, in multiplications per token: the elements of its matrices,
/// and of the keys and values to which a token attends. Tables that are only looked up cost
/// nothing.
std::vector<double> predicted_work(const nn::Model& model, std::int64_t sequence_length);
/// Assigns the model's blocks to the stages by `options.partition`. Errors are added to `problems`.
parallel::StageLayout place_blocks(const parallel::PipelineOptions& options,
                                   const nn::Model& model,
                                   std::int64_t sequence_length,
                                   config::Problems& problems,
                                   const config::Origins& origins);
/// The share of a step's time that a stage of the pipeline waits for other stages if all passes
/// take equally long; of a stage that waits longest. 0 without a pipeline.
double planned_waits(const parallel::Layout& layout);
/// One line per stage: its ranks, blocks and parameters.
std::vector<std::string> stage_lines(const parallel::Layout& layout, const nn::Model& model);
/// The message of a rank that has built its part, in Colossal-AI's words: "Rank2 build layer 3-6,
/// 3/6 layers", one line per chunk. The layers are counted from 0, and the second number is the one
/// after the last; embedding and head are not counted. For a model whose blocks are not numbered
/// ("layers.3") it counts blocks instead.
std::vector<std::string> build_lines(const parallel::Layout& layout,
                                     const nn::Model& model,
                                     int rank);
/// The mesh as a table of at most `most` lines (at least 2): a header and one line per rank with
/// the common host, its stage, its position on every axis and its blocks. Lines that do not fit are
/// counted.
std::vector<std::string> mesh_lines(const parallel::Layout& layout,
                                    const nn::Model& model,
                                    const std::string& host,
                                    std::size_t most);

}  // namespace tessera::planner
