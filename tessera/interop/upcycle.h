// SPDX-License-Identifier: Apache-2.0
// Makes experts of the MLPs of a dense model. Source: Komatsuzaki et al. 2022, "Sparse upcycling:
// training mixture-of-experts from dense checkpoints".
#pragma once

#include <cstdint>

#include "tessera/interop/model_export.h"

namespace tessera::interop {

struct Upcycling {
  std::int64_t num_experts = 8, top_k = 2;
};

/// Turns every MLP of a decoder (models/decoder.h) into experts that are copies of it, with a
/// router of small random weights. The weights of a token's experts add up to 1, so that the new
/// model computes what the dense one does. The new tensors read the old ones when they are read.
/// Throws Error{Unsupported} if the model has experts already, or no such MLPs.
void make_experts(NativeExport& model, const Upcycling& wanted);

}  // namespace tessera::interop
