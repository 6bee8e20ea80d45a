// SPDX-License-Identifier: Apache-2.0
// Torch's optimizer in a DeepSpeed checkpoint without ZeRO, whose state is numbered in the order of
// the parameters.
#pragma once

#include <string>
#include <vector>

#include "tessera/interop/deepspeed/state_file.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop::deepspeed {

/// The path of the optimizer's state within a file.
inline constexpr const char* kPlainState = "optimizer.state";

/// Stage 0 in fp32: adds the state in `model` to `out`, which has the weights. Returns the reason
/// if it cannot be read; `out` then has none. Throws the errors of counts_in().
std::string add_plain_optimizer(Foreign& out, const File& model);

/// Stage 0 of a model with experts, in fp32: each rank of the group that divides them has the
/// optimizer of all that it trains, in one group, or in one of experts after one of all others.
/// `ranks`: their files. Returns and throws as add_plain_optimizer().
std::string add_expert_optimizers(Foreign& out, const File& model, const std::vector<File>& ranks);

}  // namespace tessera::interop::deepspeed
