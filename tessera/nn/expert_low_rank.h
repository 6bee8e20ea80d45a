// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters of the matrices of experts: the expert e computes W_e x + scale * B_e (A_e x),
// where W_e is frozen, and A_e and B_e are trained. Like the matrices themselves, those of all
// experts are one parameter, which ranks of expert parallelism divide. Source: Hu et al. 2021,
// "LoRA: low-rank adaptation of large language models". Legend: E experts, R rank, I inputs, O
// outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// An adapter of neighbouring outputs of every expert of a stacked weight: of the gates, of the up
/// projections, or of all.
struct ExpertLowRankPart {
  std::string module;               ///< prefix of its parameters' names
  std::int64_t begin = 0, end = 0;  ///< rows of an expert's matrix [O, I]
  std::int64_t rank = 0;
  double scale = 1.0;
};

/// Declares the parameters of the parts, which must not overlap, and lets apply_experts() and
/// project_by_expert() apply them to the stacked `weight` [E, O..., I]: A [E, R, I] and B [E, end -
/// begin, R] as `module`.lora_A.weight and .lora_B.weight. A is initialized uniformly, as a linear
/// layer of PyTorch is, and B with 0. Throws Error{Unsupported} if the weight already has adapters.
void add_expert_low_rank(Params& params, Param& weight, std::vector<ExpertLowRankPart> parts);

}  // namespace tessera::nn
