// SPDX-License-Identifier: Apache-2.0
// A model as an ONNX graph, found by running it on inputs of a few sizes.
#pragma once

#include "tessera/interop/onnx/graph.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// The graph of a model whose weights lie in fp32 in this process alone. Inputs, with Hugging Face
/// Optimum's names: input_ids and attention_mask, and token_type_ids where the model reads it,
/// int64 [batch_size, sequence_length]; of an encoder with a decoder also decoder_input_ids; or
/// pixel_values [batch_size, channels, height, width]. Output: "logits" as the model's objective
/// returns them without labels, or "sentence_embedding" of one that has no head. Throws
/// Error{Unsupported} for a model that reads anything else, and for operations without a
/// translation. Cost: a few runs of the model on short texts.
interop::OnnxGraph onnx_of(const models::Resolved& shape, parallel::Executor& executor);

}  // namespace tessera::engine
