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

/// True if frequencies depend on the length of the longest text.
inline bool depends_on_length(const json::Value& config) {
  for (const char* const object : {"rope_parameters", "rope_scaling"}) {
    const json::Value* rope = config.find(object);
    if (rope == nullptr || !rope->is_object()) continue;
    for (const char* const key : {"rope_type", "type"}) {
      const json::Value* kind = rope->find(key);
      if (kind != nullptr && (kind->as_string() == "longrope" || kind->as_string() == "dynamic"))
        return true;
    }
  }
  return false;
}

/// The model that a config.json describes, for texts of up to `length` tokens if that matters:
/// those of the records have more than the original training's.
inline models::Resolved resolved_from_hf(json::Value config, std::int64_t length = 0) {
  if (depends_on_length(config)) {
    config["rope_length"] =
        length > 0 ? json::Value::integer(length) : *config.find("max_position_embeddings");
  }
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
