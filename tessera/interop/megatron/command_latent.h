// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's latent attention (--multi-latent-attention), that of DeepSeek V3.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets the keys of the attention of the family deepseek_v3, without experts: set_experts() adds
/// them.
void set_latent_attention(Meaning& meaning);

}  // namespace tessera::interop::megatron
