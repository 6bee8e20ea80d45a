// SPDX-License-Identifier: Apache-2.0
// Short forms and other programs' forms of settings that have a longer form in tessera.
#pragma once

#include "tessera/config/json.h"

namespace tessera::interop {

/// `source` with short forms expanded: "pipeline": 2 is {"size": 2}, null is absent, and
/// Colossal-AI's tensor mode "sequence", which splits tokens but no weights, is `context`; its
/// model.num_chunks is NUM_CHUNKS. In DeepSpeed's blocks `pipeline` and `tensor_parallel`, whose
/// sizes are other names of keys here, settings without a meaning ("auto", an autotp_size of 0) are
/// removed, and the partition "best" is "parameters"; so is the size in a block `expert_parallel`
/// that is not enabled; an interval of `pipeline` above 0 enables recompute unless
/// `activation_checkpointing` selects it. Colossal-AI's fp16.mode without fp16.enabled enables fp16
/// with the scaler "megatron". Pure.
json::Value spell_out_parallel(json::Value source);

/// Returns `source` with the long form of short keys and the current names of old ones. If the file
/// itself sets two names of one key differently, both are kept, and the plan reports them.
json::Value in_current_names(json::Value source);

}  // namespace tessera::interop
