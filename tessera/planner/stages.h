// SPDX-License-Identifier: Apache-2.0
// From `parallel.pipeline` to stages: which blocks of the model stand where, in which order they
// run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/pipeline/stage_layout.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Whether the block is one of many that are numbered: "layers.3", "h.3".
bool is_layer(const nn::BlockSpec& block);
/// Completes and checks the keys of a pipeline, without its model; of a size of 1 nothing is asked.
void complete_pipeline(PipelineOptions& options,
                       config::Problems& problems,
                       const config::Origins& origins);
/// Whether the ranks measure the blocks before they share them: the partition is "profile".
bool measures_blocks(const PipelineOptions& options);
/// Rules between the pipeline and the rest of the plan: micro-batches and optimizer.
void check_pipeline(const Plan& plan, config::Problems& problems, const config::Origins& origins);

/// What the forward of each block costs, in multiplications a token: elements of the matrices that
/// it multiplies by, and of the keys and values that a token attends to. Tables that are only
/// looked up cost nothing.
std::vector<double> predicted_work(const nn::Model& model, std::int64_t sequence_length);
/// The model's blocks over the stages as `options.partition` asks. What cannot be goes to
/// `problems`.
parallel::StageLayout place_blocks(const PipelineOptions& options,
                                   const nn::Model& model,
                                   std::int64_t sequence_length,
                                   config::Problems& problems,
                                   const config::Origins& origins);
/// One line a stage: its ranks, blocks and parameters.
std::vector<std::string> stage_lines(const Plan& plan);
/// What a rank says when it has built its part, in Colossal-AI's words: "Rank2 build layer 3-6, 3/6
/// layers", a line for each chunk. The layers are counted from 0, and the second number is the one
/// after the last; embedding and head are not counted. A model whose blocks are not numbered
/// ("layers.3") counts blocks instead.
std::vector<std::string> build_lines(const Plan& plan, int rank);
/// The mesh as a table of at most `most` lines (2 at least): a head and a line for each rank with
/// the host of all of them, its stage, its place on every axis and its blocks. What does not fit is
/// counted.
std::vector<std::string> mesh_lines(const Plan& plan, const std::string& host, std::size_t most);

}  // namespace tessera::planner
