// SPDX-License-Identifier: Apache-2.0
// ranks.json of the run folder: the memory and the waits of every rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "tessera/engine/hook.h"

namespace tessera::engine {

/// Gathers from every rank its memory by kind, its resident size, and the shares of its time in
/// collectives and in waiting for other stages of the pipeline; the leader writes them to
/// ranks.json, which `tessera watch` shows. Cost: one all-gather of 14 numbers a rank, in the first
/// steps and then at most in every tenth; a file at most every second. The clock of the steps is
/// paused meanwhile.
class RanksHook final : public Hook {
 public:
  RanksHook() : Hook(kReport) {}
  [[nodiscard]] std::string_view name() const override { return "ranks"; }
  void before_train(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;

 private:
  [[nodiscard]] bool due(Trainer& trainer, const StepReport& report) const;
  std::int64_t steps_ = 0;                           ///< since the training began or was resumed
  std::int64_t counted_ = 0;                         ///< steps since the last table
  double seconds_ = 0, comm_s_ = 0, receive_s_ = 0;  ///< of these steps
  double written_ = 0;                               ///< time of the last file
  bool stopped_ = false;                             ///< the file cannot be written
};

}  // namespace tessera::engine
