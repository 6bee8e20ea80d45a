// SPDX-License-Identifier: Apache-2.0
// The executor's micro-batches: what a step loads, counts, and copies to the device.
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/parallel/block_errors.h"
#include "tessera/parallel/executor.h"

namespace tessera::parallel {

void Executor::add_denominators(const nn::Batch& batch,
                                std::vector<std::vector<double>>& all) const {
  nn::Objective* const objective = model_.objective();
  all.push_back(objective == nullptr ? std::vector<double>()
                                     : in_block(model_.name(model_.num_blocks() - 1),
                                                "denominators()",
                                                [&] { return objective->denominators(batch); }));
  TESSERA_REQUIRE(
      all.back().size() == all.front().size(),
      Shape,
      fmt::format(
          "block {}: denominators() gives {} numbers for one micro-batch and {} for another",
          model_.name(model_.num_blocks() - 1),
          all.front().size(),
          all.back().size()),
      "give as many for every batch, 0 where it has nothing to count");
}

/// Starts to copy the next micro-batch that a pass from `from` on needs, if it is loaded.
void Executor::upload_next(const std::vector<Action>& actions, std::size_t from, Micros& micros) {
  for (; from < actions.size(); ++from) {
    if (actions[from].kind == ActionKind::Load) continue;
    const auto& slot = micros[static_cast<std::size_t>(actions[from].micro)];
    if (slot && slot->there) continue;
    if (slot) uploads_.post(actions[from].micro, slot->batch);
    return;
  }
}

/// Constructs the micro-batch in place, because its context holds the batch's address.
void Executor::load(std::optional<Micro>& slot, int micro, const StepInput& input) const {
  nn::StepContext context(nn::Mode::Train, input.seed);
  context.step = input.step;
  context.micro = micro;
  context.set_recompute_regions(recompute_.regions);
  slot.emplace(Micro{input.load(micro),
                     std::move(context),
                     std::vector<Pass>(static_cast<std::size_t>(model_.layout().chunks))});
  slot->context.batch = &slot->batch;
  share_layers(slot->context);
}

}  // namespace tessera::parallel
