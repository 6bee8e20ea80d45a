// SPDX-License-Identifier: Apache-2.0
// The hook that reports slow ranks and hosts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/engine/stragglers.h"
#include "tessera/engine/trainer.h"

namespace tessera::engine {

/// Gathers the times of all ranks every ten steps, and warns once of each rank or host that stays
/// slower than others with the same work. Does nothing with a single rank.
class StragglerHook final : public Hook {
 public:
  StragglerHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "stragglers"; }
  void before_train(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;

 private:
  void tell(comm::World& world, const Straggler& found) const;

  std::unique_ptr<StragglerFinder> finder_;
  std::vector<int> hosts_;
  std::vector<std::string> names_;  ///< of the host of each rank
  RankTimes mine_;
  double wall_s_ = 0.0;
};

}  // namespace tessera::engine
