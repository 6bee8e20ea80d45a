// SPDX-License-Identifier: Apache-2.0
// What a forward pass leaves for the backward pass: a formula that is good to some tens of percent.
#pragma once

#include <cstdint>

namespace tessera::planner {

struct Plan;

/// Bytes of one rank's largest moment in a training step, of one micro-batch.
std::int64_t training_activations(const Plan& plan);
/// Bytes of one rank in an evaluation; 0 where there is none.
std::int64_t evaluation_activations(const Plan& plan);

}  // namespace tessera::planner
