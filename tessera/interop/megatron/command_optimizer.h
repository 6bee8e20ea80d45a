// SPDX-License-Identifier: Apache-2.0
// The optimizer of a command of Megatron-LM.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets optimizer.type and its parameters, besides the rate and weight decay.
void set_optimizer(Meaning& meaning);

}  // namespace tessera::interop::megatron
