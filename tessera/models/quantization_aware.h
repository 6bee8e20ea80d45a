// SPDX-License-Identifier: Apache-2.0
// The section `qat`: a model whose linear layers compute with rounded weights and inputs while it
// is trained (nn/fake_quantization.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/family.h"
#include "tessera/models/weight_map.h"
#include "tessera/nn/block.h"

namespace tessera::models {

struct QatOptions {
  std::string weights = "none", activations = "none";
  std::int64_t group_size = 32;
  std::int64_t after_steps = 0;
  [[nodiscard]] bool enabled() const { return weights != "none"; }
  void describe(config::Fields& fields);
};

/// The model with the form of rounded layers for each matrix of a linear layer and for the head,
/// except routers and stacked matrices of experts; also for a head whose weight is the token table,
/// but not for look-ups in it. Throws Error{Config} for a layer whose inputs are no multiple of the
/// groups. `count`: the number of matrices.
nn::Model quantization_aware(const nn::Model& model,
                             const WeightMap& map,
                             const QatOptions& options,
                             std::int64_t& count);

}  // namespace tessera::models
