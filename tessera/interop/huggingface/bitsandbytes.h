// SPDX-License-Identifier: Apache-2.0
// Weights in four or eight bits as bitsandbytes saves them, together with tensors that describe the
// format: NF4 and FP4 in blocks with scales, which may themselves be in eight bits, and int8 with a
// scale for each row. Source: bitsandbytes 0.50, QuantState.as_dict() and Int8Params.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {

/// Returns whether a tensor of this name describes the format of another one: "...weight.absmax",
/// "...SCB".
bool is_bitsandbytes_part(std::string_view name);

/// Returns the tensors as streams, without the descriptions. Quantized tensors are dequantized to
/// fp32, as bitsandbytes does before it rounds; other tensors are unchanged. Throws Error{Format}
/// naming file and tensor if sizes, types or the description do not agree, and Error{Unsupported}
/// for another kind of quantization.
std::vector<checkpoint::StreamedTensor> with_bitsandbytes(const std::vector<Weight>& weights);

/// Removes the section of bitsandbytes from a Hugging Face config.json, whose weights have been
/// dequantized. Returns whether it was there.
bool drop_bitsandbytes(json::Value& hf_config);

}  // namespace tessera::interop
