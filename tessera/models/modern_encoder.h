// SPDX-License-Identifier: Apache-2.0
// An encoder with rotary positions, norms before the branches and gated MLPs, whose layers attend
// globally or locally, with rotary positions of two kinds. Source: Warner et al. 2024, "Smarter,
// better, faster, longer".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/norm.h"
#include "tessera/models/rotary_options.h"
#include "tessera/models/sizes.h"
#include "tessera/models/trunk.h"

namespace tessera::models {

/// The complete shape of such an encoder.
struct ModernShape : Sizes {
  std::vector<bool> local;             ///< for each layer: it attends locally
  std::int64_t local_attention = 128;  ///< tokens up to half of it before and after are seen
  Rotation rotation, local_rotation;   ///< of global and of local layers
  bool attention_bias = false, mlp_bias = false, norm_bias = false;
  std::string activation = "gelu";
  double embedding_dropout = 0.0, attention_dropout = 0.0, mlp_dropout = 0.0;
  double layer_norm_eps = 1e-5;
  double init_std = 0.02;
  double init_cutoff = 2.0;  ///< see Init::truncated()
  bool tie_embeddings = true;

  [[nodiscard]] std::int64_t head_channels() const { return hidden_size / num_heads; }
  [[nodiscard]] NormSpec norm() const {
    return {.kind = NormKind::LayerNorm, .eps = layer_norm_eps, .bias = norm_bias};
  }
  /// Standard deviation of the initial weights of projections to the residual stream and of the
  /// heads' dense layers: smaller the more layers there are.
  [[nodiscard]] double output_std() const;
};

/// The blocks "embeddings", "layers.0", "layers.1", ... Fused projections are attn.Wqkv and, with
/// the gate first, mlp.Wi.
Trunk modern_trunk(const ModernShape& shape, HeadSpecs heads);

}  // namespace tessera::models
