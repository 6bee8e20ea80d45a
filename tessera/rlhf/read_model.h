// SPDX-License-Identifier: Apache-2.0
// A model other than the policy that is only read, on the ranks that rl.models gives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/engine/open_model.h"
#include "tessera/rlhf/layouts.h"
#include "tessera/rlhf/model_ranks.h"

namespace tessera::rlhf {

/// Used only on the rank's own thread.
class ReadModel {
 public:
  /// Loads the weights of a found model on its ranks. `world`: the ranks that learn, which must
  /// outlive this object; `number`: see ModelWorld. Collective. Throws as load_model().
  ReadModel(std::unique_ptr<engine::OpenModel> found,
            comm::World& world,
            const ReadLayout& layout,
            int number);
  /// The same on the ranks of a lender, with its weights: see load_model(). `lender`: nullptr on
  /// ranks without it.
  ReadModel(std::unique_ptr<engine::OpenModel> found,
            std::shared_ptr<const ModelWorld> ranks,
            const parallel::ModelInstance* lender);

  /// The model of a rank, with the world in which it is computed.
  using Compute = std::function<std::vector<double>(engine::OpenModel& model, comm::World& world)>;
  /// Returns the `size` values that `compute` gives every rank of the model, and on other ranks
  /// zeros, at once. Collective over the ranks of the model.
  std::vector<double> compute(std::int64_t size, const Compute& compute);
  /// Gives the values that compute() returned to the ranks without the model. `what`: for reports.
  /// Collective over all ranks that learn.
  void share(std::vector<double>& values, const char* what) const { ranks_->share(values, what); }

 private:
  std::shared_ptr<const ModelWorld> ranks_;
  std::unique_ptr<engine::OpenModel> model_;  ///< nullptr on ranks without it
};

}  // namespace tessera::rlhf
