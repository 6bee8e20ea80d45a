// SPDX-License-Identifier: Apache-2.0
// How many bytes a plan needs on each rank, before anything runs.
#pragma once

#include <cstdint>

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Bytes of one rank at its peak. Parameters, gradients and optimizer are exact; activations (with
/// the fp32 logits) and other are estimates.
struct MemoryEstimate {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + activations + other;
  }
};
/// Pure. Cost: none to speak of.
MemoryEstimate estimate_memory(const Plan& plan);
/// Error{Memory} with both numbers and the three smallest changes that fit, when the local ranks
/// together need more than 95 % of `available_bytes`.
void check_memory(const Plan& plan, std::uint64_t available_bytes);

}  // namespace tessera::planner
