// SPDX-License-Identifier: Apache-2.0
// Advice about zero_optimization.stage.
#pragma once

#include <cstdint>

#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Notes the lowest ZeRO stage that fits into 95 % of `available` bytes on the local ranks, if the
/// plan has a higher one than it needs: a lower stage gives the same weights with less
/// communication. Notes nothing with stages 0 and 1, with one data-parallel rank, with options that
/// only a higher stage has, and if activations are not predicted.
void advise_stage(Plan& plan, std::uint64_t available);

}  // namespace tessera::planner
