// SPDX-License-Identifier: Apache-2.0
// Differentiable layers over Params. Their backward writes Param::grad() and returns undefined for
// the weight: undefined and written means done, undefined and not written means zero. Legend: B
// batch, T tokens, C channels, V vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/relative_position.h"
#include "tessera/ops/rotary.h"

namespace tessera::nn {

// Where tensor parallelism cuts a weight, these layers do what its cut needs: inputs and outputs of
// a layer whose output features are cut and of the next one, whose input features are, are what one
// device would have, and between the two lies a share of the features.
// On a grid of ranks they are this rank's samples and channels of it, while token ids, labels and
// masks are those of all samples.

/// y[..., O] = x[..., I] weight^T + bias; weight of shape [O..., I] (leading dims are flattened),
/// bias may be null.
at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  StepContext& context);
at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param& bias,
                      double eps,
                      StepContext& context);
at::Tensor rms_norm(const at::Tensor& x_BTC, const Param& weight, double eps, StepContext& context);
/// A residual stream, and its norm, with which a branch of it begins.
struct Normed {
  at::Tensor x_BTC, normed_BTC;
};
/// The stream takes up a branch, x + dropout(branch), and the next one begins. One pass over memory
/// for both (two with dropout), and one for what comes back along the stream and through the norm,
/// so that a block should go on with the result's x_BTC. `branch_BTC`: undefined where the first
/// one of a block begins. Error{Shape} unless it has x's shape and dtype. `bias` may be null:
/// Error{Unsupported} without it on a grid of ranks.
Normed residual_layer_norm(const at::Tensor& x_BTC,
                           const at::Tensor& branch_BTC,
                           const ops::DropoutKey& key,
                           const Param& weight,
                           const Param* bias,
                           double eps,
                           StepContext& context);
/// `offset` is added to the weight in fp32. Error{Unsupported} for an offset on a grid of ranks.
Normed residual_rms_norm(const at::Tensor& x_BTC,
                         const at::Tensor& branch_BTC,
                         const ops::DropoutKey& key,
                         const Param& weight,
                         double eps,
                         StepContext& context,
                         double offset = 0.0);
/// ids [B, T] -> [B, T, C].
at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);
/// Where the tokens stand in their texts: ids [B, T] -> [B, T]. With `starts`, of all tokens, where
/// each one's document begins, in their documents. Error{Shape} unless the texts are of at most
/// `most` tokens.
at::Tensor positions(const at::Tensor& ids_BT,
                     std::int64_t most,
                     const StepContext& context,
                     const at::Tensor& starts_BT = {});
/// q [B, H, T, K], k and v [B, G, T, K], where G divides H; where ranks share the tokens, of this
/// rank's, and args.mask_BS and args.starts_BT are of all.
/// Runs as context.region("attention"). Uses the KV cache of `block` in Prefill and Decode, where
/// it sets args.query_offset to context.position, unless tokens see those behind them.
/// args.bias_HTS gets its gradient; it is as relative_bias() gives it.
at::Tensor attention(const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     ops::AttentionArgs args,
                     const Block& block,
                     StepContext& context);
/// Attention to the tokens of another text: q [B, H, T, K], k and v [B, G, S, K]. Uses no KV cache.
/// Runs as context.region("attention"). Where ranks share the tokens, keys and values of all of
/// them are gathered first, and their gradients are summed. Error{Unsupported} on a grid of ranks.
at::Tensor cross_attention(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           ops::AttentionArgs args,
                           StepContext& context);
/// The bias of attention for `queries` tokens from context.position on and `keys` tokens from 0 on,
/// by their distance: fp32 [H, T, S] of this rank's heads. `table` [buckets, heads] gets its
/// gradient. Where ranks share the tokens, `queries` and `keys` are numbers of this rank's, S is of
/// all ranks, and of a ring T is of this rank's queries; else it is of all, and H of the heads that
/// the rank has after the exchange.
at::Tensor relative_bias(const Param& table,
                         const ops::RelativeBuckets& rule,
                         std::int64_t queries,
                         std::int64_t keys,
                         StepContext& context);
/// The heads of a fused projection: x [B, T, parts * H * K] -> `parts` views [B, H, T, K]. Its
/// backward is one copy.
std::vector<at::Tensor> split_heads(const at::Tensor& x_BTO,
                                    std::int64_t parts,
                                    std::int64_t num_heads);
/// The heads that this rank holds of a projection by `weight` [parts, H, K, I].
struct HeadRange {
  std::int64_t first = 0, count = 0;
};
HeadRange heads_of(const Param& weight);
/// This rank's heads of a layer's queries, keys and values.
struct Qkv {
  at::Tensor q_BHTK, k_BGTK, v_BGTK;
  std::int64_t first_head = 0;  ///< of q, among all heads of the layer
};
/// Those that one projection made, by `weight` of [3, H, K, I], or of [G, H / G + 2, K, I] with the
/// axis KvHeads first: to each head of keys and values the queries that share it, then its keys,
/// then its values (Megatron-LM's order), so that ranks that share the heads need one product.
Qkv split_qkv(const at::Tensor& x_BTO, const Param& weight);
/// The RMS norm of each head's channels (Qwen 3, Gemma 3): x [B, H, T, K], `weight` [K] for all
/// heads, to which `offset` is added (Gemma's weights are stored less 1). Tensor-parallel ranks add
/// up what their heads give to the weight's gradient.
at::Tensor head_norm(
    const at::Tensor& x_BHTK, const Param& weight, double eps, double offset, StepContext& context);
/// The RMS norm of the channels of all heads together (OLMo 2): `weight` [H * K], cut as the heads
/// are, over which tensor-parallel ranks add up the squares.
at::Tensor all_heads_norm(
    const at::Tensor& x_BHTK, const Param& weight, double eps, double offset, StepContext& context);
/// [B, H, T, K] -> [B, T, H * K].
at::Tensor merge_heads(const at::Tensor& x_BHTK);
at::Tensor activate(const at::Tensor& x, ops::Activation activation);
/// x [..., 2 F], gates before what they let through: a projection by a weight [2, F, I]. -> [...,
/// F].
at::Tensor gated(const at::Tensor& x, ops::Activation activation);
/// The rotary table of the queries and keys of this rank, from the positions of their tokens: those
/// of positions(), of the samples and tokens that attention sees here. `ids_BT` and `starts_BT` as
/// the batch has them. `factor`: what sines and cosines are multiplied by.
ops::RotaryTable rotary_table(const at::Tensor& ids_BT,
                              std::int64_t most,
                              const std::vector<double>& frequencies,
                              const StepContext& context,
                              const at::Tensor& starts_BT = {},
                              double factor = 1.0);
/// Queries or keys, turned by the places of their tokens.
at::Tensor rotary(const at::Tensor& x_BHTK, const ops::RotaryTable& table);
at::Tensor dropout(const at::Tensor& x, const ops::DropoutKey& key);
/// dropout() of the features [..., F] that a layer by `weight` made, of which tensor-parallel ranks
/// hold a share each. Error{Unsupported} where the shares are not equal, and on a grid of ranks.
at::Tensor dropout_features(const at::Tensor& x,
                            const Param& weight,
                            ops::DropoutKey key,
                            const StepContext& context);
/// x + dropout(branch) in one pass: how a residual stream takes up a branch.
at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const ops::DropoutKey& key);

/// The sum of all elements in fp64, 0-d, for a term of the loss. `x` is what runs between layers,
/// or made of it element by element: where tensor-parallel ranks have shares of that, it is over
/// the shares of all, and each passes the gradient of its own back. Ranks that share a context each
/// have the sum over their own tokens, as terms are.
at::Tensor flow_sum(const at::Tensor& x, StepContext& context);

/// One token of each sample: x [B, T, C] between layers and the position of a token in each of all
/// samples -> [B, 1, C]; on a grid of ranks, of this rank's samples and channels as x is. Where
/// ranks share or cut the tokens, those who have it tell all others, and gradients are summed: see
/// shared_gradient().
at::Tensor select_tokens(const at::Tensor& x_BTC,
                         const at::Tensor& positions_B,
                         StepContext& context);
/// The mean of each sample's tokens, x [B, T, C] between layers -> [B, C]. `mask_BS`, of all tokens
/// of the samples: 0 where a token does not count; undefined: all do. Where ranks share or cut the
/// tokens they add their sums up. On a grid of ranks `x_BTC` is what gather_flow() gives.
at::Tensor mean_of_tokens(const at::Tensor& x_BTC, const at::Tensor& mask_BS, StepContext& context);
/// What a head made of select_tokens() or mean_of_tokens(). Ranks that cut the tokens all make it,
/// and parameters between layers get a share of their gradient on each of them: here each of them
/// passes on an equal part of the gradient. Ranks that share a context all count it as a term, in
/// the sum and in the denominator.
at::Tensor shared_gradient(const at::Tensor& x, StepContext& context);
/// x [B, T, ...] of this rank's tokens, where tensor-parallel ranks cut them -> of all of these
/// ranks; each takes its own part of the gradient, which has to be the same on all.
at::Tensor uncut_tokens(const at::Tensor& x_BTC, StepContext& context);
/// Throws Error{Unsupported} on a grid of ranks where the block has a grid_obstacle().
void refuse_grid(const Block& block, const StepContext& context);
/// x [B, ..., C] between layers -> all samples and channels of it, on every tensor-parallel rank:
/// where they are cut over a grid of ranks an all-gather of the parts, else x itself. The gradient
/// has to be the same on all ranks; each takes its own part of it. linear() and vocab_logits()
/// multiply the result by weights that no rank holds a part of.
at::Tensor gather_flow(const at::Tensor& x, StepContext& context);

struct VocabLoss {
  at::Tensor sum;     ///< 0-d fp64, differentiable through x and weight
  at::Tensor logits;  ///< fp32 [B, T, V] if the context wants them
};
/// Head and cross-entropy: logits = x weight^T in fp32. labels [B, T], -100 ignored. The gradient
/// is made in the forward pass.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context);
/// Logits alone (Eval without labels, Prefill, Decode): fp32 [B, T, V] of x [B, T, C], or [B, V] of
/// [B, C].
at::Tensor vocab_logits(const at::Tensor& x_BTC, const Param& weight_VC, StepContext& context);

}  // namespace tessera::nn
