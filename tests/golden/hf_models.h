// SPDX-License-Identifier: Apache-2.0
// Models of recorded Hugging Face folders.
#pragma once

#include <optional>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::golden {

/// The model that a config.json describes.
inline models::Resolved resolved_from_hf(const json::Value& config) {
  const models::ModelOptions options = models::options_from_hf(config);
  config::Problems problems;
  models::Resolved resolved = models::resolve(options,
                                              options->vocab_size.value_or(1),
                                              std::nullopt,
                                              problems,
                                              config::Origins(),
                                              models::objective_of_hf(config));
  problems.raise();
  return resolved;
}

/// The stages of the ranks; the first ones have one block more where the number of blocks is
/// uneven.
inline parallel::StageLayout even_stages(comm::World* world, const nn::Model& model) {
  const int stages = world == nullptr ? 1 : world->mesh().size(mesh::Axis::Pp);
  parallel::StageLayout out{.stages = stages};
  const auto blocks = static_cast<int>(model.blocks.size());
  for (int stage = 0; stages > 1 && stage <= stages; ++stage)
    out.bounds.push_back((blocks * stage + stages - 1) / stages);
  return out;
}

}  // namespace tessera::golden
