// SPDX-License-Identifier: Apache-2.0
// experts.json and experts.svg of the run folder: the loads of experts.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/engine/hook.h"
#include "tessera/report/expert_loads.h"

namespace tessera::engine {

/// The leader writes the loads of the last steps to experts.json, which `tessera watch` and
/// `tessera doctor` read, and at the end draws them in experts.svg. Does nothing for a model
/// without experts. Cost: a file in every tenth step.
class ExpertsHook final : public Hook {
 public:
  ExpertsHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "experts"; }
  void after_train_iter(Trainer& trainer, const StepReport& report) override;

 private:
  report::ExpertLoads loads_;  ///< since the last file
  bool stopped_ = false;       ///< the files cannot be written
};

}  // namespace tessera::engine
