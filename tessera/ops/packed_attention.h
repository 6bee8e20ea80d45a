// SPDX-License-Identifier: Apache-2.0
// Attention where each sample holds several documents, one after the other, and a token sees none
// but its own. Every document is attention of its own length, so that no work is done, and no
// memory taken, for pairs of tokens that do not see each other. Legend as in attention.h.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"

namespace tessera::ops {

/// The documents of each sample, in order. starts [B, T] int64: where the document of each token
/// begins. Error{Shape} for other tensors than that.
std::vector<std::vector<Run>> documents_of(const at::Tensor& starts_BT);

/// args.starts_BT is given. `saved` is the log-sum-exp of every query, whatever mask and dropout.
/// Works on meta, where the documents do not matter.
AttentionOut packed_attention(const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGTK,
                              const at::Tensor& v_BGTK,
                              const AttentionArgs& args);
AttentionGrads packed_attention_backward(const at::Tensor& dy_BHTK,
                                         const at::Tensor& q_BHTK,
                                         const at::Tensor& k_BGTK,
                                         const at::Tensor& v_BGTK,
                                         const AttentionOut& out,
                                         const AttentionArgs& args);

}  // namespace tessera::ops
