// SPDX-License-Identifier: Apache-2.0
// NEFTune: uniform noise on embeddings looked up in a token table, only in training. Source: Jain
// et al. 2023, "NEFTune: noisy embeddings improve instruction finetuning".
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {

/// Returns uniform numbers in [-bound, bound) with the shape and dtype of `x`, [B, ...]. Element e
/// of sample s is a function of (key, s, e) only, from the same random words as dropout, so that it
/// is equal in every layout. `key.p` is ignored; values are rounded once. Works on meta.
at::Tensor uniform_noise(const at::Tensor& x, const ops::DropoutKey& key, float bound);

/// Gives the token tables among the parameters a form with noise on look-ups: y = table[ids] +
/// uniform(+-alpha / sqrt(tokens * C)). `tokens`: tokens of a sample including its padding, as in
/// TRL. Throws Error{Unsupported} for a table that already has a form.
void add_embedding_noise(Params& params, double alpha, std::int64_t tokens);
/// Adds the noise to every block of the model except the last one, its objective. Throws the same
/// error when the blocks are made.
void add_embedding_noise(Model& model, double alpha, std::int64_t tokens);

}  // namespace tessera::nn
