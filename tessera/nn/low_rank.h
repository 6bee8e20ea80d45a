// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: y = W x + scale * B (A dropout(x)), where W is frozen and A and B are trained.
// Sources: Hu et al. 2021, "LoRA: low-rank adaptation of large language models"; with a magnitude,
// Liu et al. 2024, "DoRA: weight-decomposed low-rank adaptation". The names of parameters are those
// of PEFT. Legend: R rank, I inputs, O outputs, V vocabulary, C channels.
//
// Where tensor-parallel ranks hold shares of the outputs of W, they hold the same shares of B, and
// all of A; where they hold shares of its inputs, the same shares of A, and all of B. So what
// travels in addition has R channels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// An adapter of a weight [O..., I], or of some of its outputs.
struct LowRankPart {
  std::string module;  ///< "model.layers.0.self_attn.q_proj": begins the names of its parameters
  /// The box of the outputs [O...]. It is smaller than all of them in one dim at most, one that no
  /// ranks share.
  Shape begin, sizes;
  std::int64_t rank = 0;
  double scale = 1.0;    ///< of B A x
  double dropout = 0.0;  ///< of x; a table has none
  /// W + scale B A is divided by the norms of its rows, which count as constants in the backward
  /// pass, and multiplied by a trained magnitude.
  bool magnitude = false;
};

/// The boxes of outputs that adapters divide are parts of one dim at most: that dim, or -1 where
/// the box is all of them. Error{Unsupported} for another box.
int part_dim(const ParamInfo& weight, const LowRankPart& part);

/// Declares what the parts are made of and gives the weight the form of a layer with them: A [R, I]
/// and B [O..., R] as `module`.lora_A.weight and .lora_B.weight, and a magnitude [O...] as
/// .lora_magnitude_vector. A begins uniform, as a linear layer of PyTorch's does, B at 0; the
/// magnitude has to begin as the norms of the rows of W. Parts do not overlap. Error{Unsupported}
/// for a weight that has a form already.
void add_low_rank(Params& params, Param& weight, std::vector<LowRankPart> parts);
/// The same of a table [V, C]: A [V, R] as `module`.lora_embedding_A begins at 0 and B [C, R] as
/// .lora_embedding_B normal. Only what is looked up is adapted, not a head that shares the table.
void add_low_rank_table(Params& params, Param& table, const LowRankPart& part);

}  // namespace tessera::nn
