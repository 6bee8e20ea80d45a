// SPDX-License-Identifier: Apache-2.0
// Weights in four or eight bits as bitsandbytes saves them, beside the tensors that say how: NF4
// and FP4 in blocks with scales, which may be in eight bits themselves, and int8 with a scale a
// row. Source: bitsandbytes 0.50, QuantState.as_dict() and Int8Params.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/formats/weights.h"

namespace tessera::interop {

/// Whether a tensor of this name tells how another one is kept: "...weight.absmax", "...SCB".
bool is_bitsandbytes_part(std::string_view name);

/// The tensors as streams, with what bitsandbytes narrowed widened to fp32 as its dequantisation
/// does before it rounds, and without the tensors that say how. Others stay as they are.
/// Error{Format} names file and tensor where sizes, types or the description do not agree;
/// Error{Unsupported} for another kind of quantisation.
std::vector<checkpoint::StreamedTensor> with_bitsandbytes(const std::vector<Weight>& weights);

/// Takes the section of bitsandbytes out of a Hugging Face config.json, whose weights are then
/// plain. Returns whether it was there.
bool drop_bitsandbytes(json::Value& hf_config);

}  // namespace tessera::interop
