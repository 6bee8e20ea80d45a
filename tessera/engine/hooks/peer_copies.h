// SPDX-License-Identifier: Apache-2.0
// Decides when the training state is copied to the memory of hosts (checkpoint/peer_copies.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/engine/hook.h"
#include "tessera/hosts/host_part.h"

namespace tessera::engine {

/// Copies the state every `every` steps, in the background, to the servers of this host and of the
/// next one; if a save or a copy is still under way then, as soon as it has ended. If a copy cannot
/// be made, a warning says so once, and training continues.
class PeerCopyHook final : public Hook {
 public:
  PeerCopyHook(const hosts::HostPart& part, std::int64_t every);
  [[nodiscard]] std::string_view name() const override { return "peer copies"; }
  void before_train(Trainer& trainer) override;
  void after_train_iter(Trainer& trainer, const StepReport& report) override;
  void after_train(Trainer& trainer) override;

 private:
  void finish(Trainer& trainer);
  void copy(Trainer& trainer);
  void tell(Trainer& trainer, const Error& failure);

  const hosts::HostPart& part_;
  std::int64_t every_;
  bool due_ = false, warned_ = false;
};

}  // namespace tessera::engine
