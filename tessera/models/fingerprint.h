// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a model's weights, by which a saved adapter recognizes its base.
#pragma once

#include <string>

#include "tessera/models/family.h"

namespace tessera::models {

/// Distinguishes two models by samples of their weights; it is the same for every file format with
/// the same numbers. Cost: reads some kilobytes of every parameter.
std::string fingerprint_of(const Resolved& model, const WeightSource& weights);

}  // namespace tessera::models
