// SPDX-License-Identifier: Apache-2.0
// Weights that Hugging Face's folders store in fewer bits, in any format that is read: those of
// bitsandbytes (bitsandbytes.h) and MXFP4 (mxfp4.h).
#pragma once

#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {

/// Returns the tensors as streams, with quantized ones decoded and without those that describe
/// their formats; the order stays. Throws the errors of the formats.
std::vector<checkpoint::StreamedTensor> plain_weights(const std::vector<Weight>& weights);

/// The name under which plain_weights() returns each tensor; empty: the tensor describes another
/// one.
std::vector<std::string> plain_names(const std::vector<Weight>& weights);

/// Removes the section of such a format from a Hugging Face config.json, whose weights are decoded.
/// Returns whether it was there.
bool drop_quantization(json::Value& hf_config);

}  // namespace tessera::interop
