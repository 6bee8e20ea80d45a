// SPDX-License-Identifier: Apache-2.0
// LLaMA 1, 2 and 3. Source: Touvron et al. 2023, "LLaMA: open and efficient foundation language
// models"; Dubey et al. 2024, "The Llama 3 herd of models".
#pragma once

#include "tessera/models/decoder.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// The complete shape of a Llama.
using LlamaShape = DecoderShape;

/// decoder_trunk() with the objective causal_lm as the block "head": norm.weight and, only if
/// untied, lm_head.weight.
nn::Model llama(const LlamaShape& shape);

}  // namespace tessera::models
