// SPDX-License-Identifier: Apache-2.0
// NEFTune: uniform noise on what is looked up in a token table, in training alone. Source: Jain et
// al. 2023, "NEFTune: noisy embeddings improve instruction finetuning".
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {

/// Uniform numbers in [-bound, bound) of the shape and dtype of `x`, [B, ...]. Element e of sample
/// s is a function of (key, s, e) alone, of the same words as a dropout's, so that no layout
/// changes it. `key.p` is not looked at; rounded once. Works on meta.
at::Tensor uniform_noise(const at::Tensor& x, const ops::DropoutKey& key, float bound);

/// Gives the token tables among the parameters the form of a look-up with noise:
/// y = table[ids] + uniform(+-alpha / sqrt(tokens * C)). `tokens`: of a sample, its padding too, as
/// in TRL. Error{Unsupported} for a table that has a form already.
void add_embedding_noise(Params& params, double alpha, std::int64_t tokens);

}  // namespace tessera::nn
