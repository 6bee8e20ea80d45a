// SPDX-License-Identifier: Apache-2.0
// Lines for people about the stages and the ranks of a layout.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::parallel {
struct Layout;
}

namespace tessera::report {

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

}  // namespace tessera::report
