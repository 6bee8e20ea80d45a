// SPDX-License-Identifier: Apache-2.0
// The batch of a command of Megatron-LM that grows by steps (--step-batch-size-schedule).
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets the batch, and the length of a run by samples, which ends with the batch that passes their
/// number.
void set_batch_steps(Meaning& meaning);

}  // namespace tessera::interop::megatron
