// SPDX-License-Identifier: Apache-2.0
// Distributions of the weights and gradients of a training, over all ranks.
#pragma once

#include <vector>

#include "tessera/engine/train_state.h"
#include "tessera/report/monitors/histogram.h"

namespace tessera::engine {

/// Returns "weights/NAME" and "gradients/NAME" for every trained parameter, in the order of the
/// model, on the leader; an empty list on other ranks. Gradients are divided by `loss_scale`, and
/// are those before the norm is clipped. Call it in StepExtras::before_update, on all ranks. Cost:
/// a pass over weights and gradients, and two reductions of about 14 KB per parameter.
std::vector<report::NamedHistogram> trained_histograms(TrainState& state, double loss_scale);

}  // namespace tessera::engine
