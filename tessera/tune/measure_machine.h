// SPDX-License-Identifier: Apache-2.0
// Measures the rates of this machine, from which times of steps are predicted.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/ops/op_log.h"
#include "tessera/predict/described_machine.h"

namespace tessera::tune {

/// Trains a few steps of small models on random tokens in fp32 and, if this machine multiplies it
/// faster, in bf16, and measures the transfers between two ranks. `tell` gets a line for each part.
/// Takes about half a minute. Starts ranks: the caller must not have run an ATen operation. Throws
/// Error{Environment} if a part cannot be measured.
predict::DescribedMachine measure_machine(const std::function<void(const std::string&)>& tell);

/// The curve of the shares of `peak` that operations of `shape` and `dtype` reached, by FLOPs of a
/// call: medians over decades.
predict::Curve efficiency_of(const std::vector<ops::OpRow>& rows,
                             ShapeClass shape,
                             DType dtype,
                             double peak);
/// The same for bytes per second of operations that compute little.
predict::Curve memory_efficiency_of(const std::vector<ops::OpRow>& rows, double bytes_per_s);

}  // namespace tessera::tune
