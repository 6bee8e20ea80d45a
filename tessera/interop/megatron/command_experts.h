// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's options of a mixture of experts.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets the section model.moe if the command asks for experts. Refuses them in a model of another
/// family than llama, routers that do not exist, and experts that are distributed over ranks.
void set_experts(Meaning& meaning);

}  // namespace tessera::interop::megatron
