// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/read_model.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/engine/shared_values.h"

namespace tessera::engine::rl {

ReadModel::ReadModel(std::unique_ptr<OpenModel> found,
                     comm::World& world,
                     const ReadLayout& layout,
                     int number)
    : all_(world), model_(std::move(found)) {
  if (layout.ranks) {
    const ReadRanks& ranks = *layout.ranks;
    apart_ = ranks.count < world.size();
    if (world.rank() < ranks.first || world.rank() >= ranks.first + ranks.count) {
      model_.reset();
      return;
    }
    own_ = world.part(ranks.first, mesh_of(ranks, model_->shape), number);
  }
  load_model(*model_, own_ ? *own_ : all_, layout.as, layout.copies);
}

ReadModel::ReadModel(std::unique_ptr<OpenModel> found,
                     comm::World& world,
                     const parallel::ModelInstance& lender)
    : all_(world), model_(std::move(found)) {
  load_model(*model_, all_, lender);
}

std::vector<double> ReadModel::compute(std::int64_t size, const Compute& compute) {
  if (model_ == nullptr) return std::vector<double>(static_cast<std::size_t>(size), 0.0);
  std::vector<double> out = compute(*model_, *model_->world);
  TESSERA_ASSERT(std::ssize(out) == size);
  return out;
}

void ReadModel::share(std::vector<double>& values, const char* what) {
  if (!apart_) return;
  // All ranks of the model have the values, and one of them counts.
  if (own_ != nullptr && !own_->is_leader()) std::ranges::fill(values, 0.0);
  share_with_all(all_, values, what);
}

}  // namespace tessera::engine::rl
