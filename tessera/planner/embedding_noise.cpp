// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/embedding_noise.h"

#include <utility>

#include "tessera/nn/embedding_noise.h"
#include "tessera/tasks/embedding_noise.h"

namespace tessera::planner {

void plan_embedding_noise(Plan& plan) {
  const auto* const task = dynamic_cast<const tasks::EmbeddingNoise*>(plan.task.get());
  const double alpha = task == nullptr ? 0.0 : task->noise_alpha();
  auto& blocks = plan.model.model.blocks;
  if (alpha <= 0.0 || blocks.empty()) return;
  // The objective does not look up embeddings, although it may use the table.
  for (std::size_t b = 0; b + 1 < blocks.size(); ++b) {
    blocks[b].adapt =
        [before = blocks[b].adapt, alpha, tokens = plan.sequence_length](nn::Params& params) {
          if (before) before(params);
          nn::add_embedding_noise(params, alpha, tokens);
        };
  }
}

}  // namespace tessera::planner
