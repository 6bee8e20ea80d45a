// SPDX-License-Identifier: Apache-2.0
// Stores the matrices of an exported model in NF4, as bitsandbytes saves them and transformers
// loads them. Source: bitsandbytes 0.50, QuantState.as_dict(); Dettmers et al. 2023, "QLoRA:
// efficient finetuning of quantized LLMs".
#pragma once

#include "tessera/interop/model_export.h"

namespace tessera::interop {

/// Replaces the matrix of each linear layer, except the head, by its codes ("...weight", uint8
/// [ceil(n / 2), 1]) and the tensors that describe them: blocks of 64 numbers with scales that are
/// stored in eight bits themselves. Other tensors are unchanged. config.json gets a
/// quantization_config that names the linear layers left as they are. No weights are read before
/// the tensors are: each matrix is then read twice, in pieces, and a byte is held for each 64
/// numbers. Reading throws Error{Numeric} for a number that is not finite. Throws Error{Format}
/// without config.json, and Error{Unsupported} for a model whose files store matrices transposed.
void store_in_nf4(ModelExport& model);

}  // namespace tessera::interop
