// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/model_ranks.h"

#include <algorithm>
#include <cstdint>

#include "tessera/engine/shared_values.h"
#include "tessera/parallel/tensor_rules.h"

namespace tessera::rlhf {

mesh::Mesh mesh_of(const ModelRanks& ranks, const models::Resolved& model) {
  parallel::TensorOptions tensor;
  tensor.size = ranks.tensor;
  tensor.share_head = parallel::ranks_that_share_a_head(model.model, tensor.size);
  const parallel::TensorOptions::Grid grid = tensor.grid();
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  return mesh::Mesh({.dp_shard = ranks.count / ranks.tensor,
                     .tp_depth = of(grid.depth),
                     .tp_row = of(grid.row),
                     .tp_col = of(grid.col)});
}

ModelWorld::ModelWorld(comm::World& all,
                       const std::optional<ModelRanks>& ranks,
                       const models::Resolved& model,
                       int number)
    : all_(all) {
  if (!ranks) return;
  apart_ = ranks->count < all.size();
  here_ = all.rank() >= ranks->first && all.rank() < ranks->first + ranks->count;
  if (here_) own_ = all.part(ranks->first, mesh_of(*ranks, model), number);
}

void ModelWorld::share(std::vector<double>& values, const char* what) const {
  if (!apart_) return;
  // All ranks of the model have the values, and one of them counts.
  if (!here_ || !own_->is_leader()) std::ranges::fill(values, 0.0);
  engine::share_with_all(all_, values, what);
}

}  // namespace tessera::rlhf
