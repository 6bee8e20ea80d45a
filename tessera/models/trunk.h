// SPDX-License-Identifier: Apache-2.0
// The trunk of a model: its blocks from the input to the last hidden states, without the final
// norm, the head and the loss. A family makes the trunk; an objective (models/objective.h)
// completes it, so that every family works with every objective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/norm.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Parameters whose names are global and get no prefix of the block that declares them.
inline constexpr nn::Params::Tags kGlobalName = {.without_prefix = true};

/// The table of token embeddings, which a language-model head shares where the two are tied.
struct VocabularyTable {
  std::string name;  ///< of the parameter, global: "wte.weight"
  std::int64_t vocab_size = 0;
  bool tied = false;
};

/// What an objective has to know of the trunk that it completes.
struct TrunkOutput {
  std::int64_t hidden_size = 0;
  NormSpec norm;          ///< the final norm, which the objective's block declares and applies
  std::string norm_name;  ///< of its parameters, global: "ln_f"
  VocabularyTable vocabulary;
  double init_std = 0.02;  ///< standard deviation of first weights
};

struct Trunk {
  std::vector<nn::BlockSpec> blocks;  ///< embedding and layers, in order
  TrunkOutput output;
};

/// Declares the table [vocab_size, hidden_size] in the block of the embedding, or in a head that
/// shares it.
Param* declare_table(nn::Params& params, const TrunkOutput& trunk);
/// Declares the weight [vocab_size, hidden_size] of a language-model head: the table where it is
/// tied, else "lm_head.weight".
Param* declare_vocabulary_head(nn::Params& params, const TrunkOutput& trunk);

}  // namespace tessera::models
