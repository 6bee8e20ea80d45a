// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/read_model.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::rlhf {

ReadModel::ReadModel(std::unique_ptr<engine::OpenModel> found,
                     comm::World& world,
                     const ReadLayout& layout,
                     int number)
    : ranks_(std::make_shared<ModelWorld>(world, layout.ranks, found->shape, number)) {
  if (!ranks_->is_here()) return;
  model_ = std::move(found);
  engine::load_model(*model_, ranks_->world(), layout.as, layout.copies, layout.offload);
}

ReadModel::ReadModel(std::unique_ptr<engine::OpenModel> found,
                     std::shared_ptr<const ModelWorld> ranks,
                     const parallel::ModelInstance* lender)
    : ranks_(std::move(ranks)) {
  if (!ranks_->is_here()) return;
  TESSERA_ASSERT(lender != nullptr);
  model_ = std::move(found);
  engine::load_model(*model_, ranks_->world(), *lender);
}

std::vector<double> ReadModel::compute(std::int64_t size, const Compute& compute) {
  if (model_ == nullptr) return std::vector<double>(static_cast<std::size_t>(size), 0.0);
  std::vector<double> out = compute(*model_, *model_->world);
  TESSERA_ASSERT(std::ssize(out) == size);
  return out;
}

}  // namespace tessera::rlhf
