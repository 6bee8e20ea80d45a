// SPDX-License-Identifier: Apache-2.0
// Updates by the host of a device that begin during the backward pass, by a factor of the gradient
// that almost always holds. Source: Lian et al. 2025, "SuperOffload"; unlike there, a wrong
// assumption changes no bit, because the old values are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tessera/optim/rule.h"
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {

/// The buffers of flat groups that were updated early in a step.
struct EarlyCounts {
  std::int64_t committed = 0;  ///< their new values became the values
  std::int64_t repeated = 0;   ///< updated again, or not at all, because the assumption was wrong
};

/// A second set of masters and states beside those of a store on the host of a device. When the
/// reduced gradient of a group arrives during the backward pass, a thread of its own makes the
/// update there, as if the gradient were finite and its norm not clipped. When both are known, the
/// sets are exchanged, or the update is made again from the old values; so all bits are those of
/// the update after the backward pass.
///
/// Memory of the host: masters, states and 16-bit weights once more (early_update_bytes()), and
/// kLandings pinned buffers for gradients. A group whose gradient arrives while all of them are in
/// use is updated afterwards. Every method but those of the thread is called on the rank's own
/// thread.
class EarlyUpdates {
 public:
  static constexpr int kLandings = 3;
  /// Store and what `context` names must outlive this. `store` is on the host of a device, without
  /// a tier, and the rule updates every element independently.
  EarlyUpdates(const UpdateContext& context, ShardStore& store);
  ~EarlyUpdates();
  EarlyUpdates(const EarlyUpdates&) = delete;
  EarlyUpdates& operator=(const EarlyUpdates&) = delete;

  /// Returns whether the units of the group can be updated early: trained, with fp32 masters and
  /// states, and working weights on the device.
  [[nodiscard]] bool supports(std::size_t group) const;

  /// Begins a step. `assumed`: the scalars that the update will have if nothing is clipped. Does
  /// nothing in the whole step if the assumption was wrong in more than half of the last 16 steps.
  void begin(const optim::UpdateScalars& assumed);
  /// The group's gradient is complete behind the current stream, and stays until the update. Waits
  /// for nothing.
  void take(std::size_t group, const at::Tensor& gradient);
  /// Waits for the updates that were begun, and decides whether they are right. nullopt: there is
  /// no update. Throws what a thread of an update threw.
  void settle(const std::optional<optim::UpdateScalars>& scalars);
  /// After settle(), true if the group has its new values; commit() makes them the values, and
  /// starts to send the weights to the device.
  [[nodiscard]] bool has(std::size_t group) const;
  void commit(std::size_t unit);
  /// Gives up what was begun, and the second set; call it before the store's values change
  /// otherwise.
  void forget();

  /// The counts of the last step.
  [[nodiscard]] const EarlyCounts& counts() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of the host's memory that a rank of the stage needs for EarlyUpdates. `states`: bytes of
/// its states of Extent::Elements.
std::int64_t early_update_bytes(const PlannedStage& stage, DType working, std::int64_t states);

}  // namespace tessera::parallel
