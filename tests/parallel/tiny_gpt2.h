// SPDX-License-Identifier: Apache-2.0
// A GPT-2 of two layers whose parameters are small.
#pragma once

#include "tessera/models/gpt2.h"

namespace tessera::parallel {

inline models::Gpt2Shape tiny_gpt2() {
  models::Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  return shape;
}

}  // namespace tessera::parallel
