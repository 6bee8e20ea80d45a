// SPDX-License-Identifier: Apache-2.0
// Differentiable layers over Params. Their backward writes Param::grad() and returns an undefined
// tensor as the weight's gradient: undefined and written means done; undefined and not written
// means zero. Legend: B batch, T tokens, C channels, V vocabulary.
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

// If tensor parallelism splits a weight, these layers do the communication that the split needs.
// The input of a layer with split output features, and the output of the following layer with split
// input features, are the same as on one device; between the two, each rank holds a share of the
// features.
// On a grid of ranks (2d, 2.5d, 3d) they are this rank's samples and channels of those values,
// while token ids, labels and masks cover all samples.

/// y[..., O] = x[..., I] weight^T + bias; `weight` has shape [O..., I] (leading dims are
/// flattened); `bias` may be null.
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
/// A residual stream and the norm of it, which is the input of a branch.
struct Normed {
  at::Tensor x_BTC, normed_BTC;
};
/// Computes x + dropout(branch), the new stream, and the norm of it. Forward takes one pass over
/// memory for both (two with dropout), and backward takes one pass for the gradients of stream and
/// norm, so a block should continue with the returned x_BTC. `branch_BTC` is undefined for the
/// first branch of a block; throws Error{Shape} unless it has x's shape and dtype. `bias` may be
/// null.
Normed residual_layer_norm(const at::Tensor& x_BTC,
                           const at::Tensor& branch_BTC,
                           const ops::DropoutKey& key,
                           const Param& weight,
                           const Param* bias,
                           double eps,
                           StepContext& context);
/// Computes the same as residual_layer_norm() with the RMS norm; `offset` is added to the weight in
/// fp32.
Normed residual_rms_norm(const at::Tensor& x_BTC,
                         const at::Tensor& branch_BTC,
                         const ops::DropoutKey& key,
                         const Param& weight,
                         double eps,
                         StepContext& context,
                         double offset = 0.0);
/// ids [B, T] -> [B, T, C].
at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context);
/// The position of each token within its sequence: ids [B, T] -> [B, T]. With `starts_BT`, which
/// covers all tokens and holds the position of the first token of each one's document, the position
/// within its document. Throws Error{Shape} if a sequence has more than `most` tokens.
at::Tensor positions(const at::Tensor& ids_BT,
                     std::int64_t most,
                     const StepContext& context,
                     const at::Tensor& starts_BT = {});
/// Attention of q [B, H, T, K] to k and v [B, G, T, K], where G divides H. If ranks share the
/// tokens, q, k and v have this rank's tokens, and args.mask_BS and args.starts_BT cover all
/// tokens. Runs as context.region("attention"). In Prefill and Decode it uses the KV cache of
/// `block` and sets args.query_offset to context.position, unless tokens also see later tokens.
/// args.bias_HTS receives its gradient; it has the layout of relative_bias().
at::Tensor attention(const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     ops::AttentionArgs args,
                     const Block& block,
                     StepContext& context);
/// Causal attention in which the first tokens of each sample, as many as `lengths` [B] of all
/// samples says, see each other in both directions. With separate documents each begins with such a
/// prefix, of the length in `lengths` [B, S] for its tokens. In Prefill the prompt is a prefix as a
/// whole. In a ring the keys of all ranks are gathered first, and their gradients are summed.
/// Throws Error{Unsupported} with windows and ALiBi.
at::Tensor prefix_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            ops::AttentionArgs args,
                            const at::Tensor& lengths,
                            const Block& block,
                            StepContext& context);
/// Attention to the tokens of another sequence: q [B, H, T, K], k and v [B, G, S, K]. It uses no KV
/// cache and runs as context.region("attention"). If ranks share the tokens, keys and values of all
/// ranks are gathered first, and their gradients are summed.
at::Tensor cross_attention(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           ops::AttentionArgs args,
                           StepContext& context);
/// The attention bias by distance, fp32 [H, T, S] for this rank's heads: `queries` tokens from
/// context.position on and `keys` tokens from 0 on. `table` [buckets, heads] receives its gradient.
/// If ranks share the tokens, `queries` and `keys` count this rank's tokens and S covers all ranks;
/// in a ring T covers this rank's queries, else T covers all queries and H the heads that the rank
/// has after the exchange.
at::Tensor relative_bias(const Param& table,
                         const ops::RelativeBuckets& rule,
                         std::int64_t queries,
                         std::int64_t keys,
                         StepContext& context);
/// Splits a fused projection into heads: x [B, T, parts * H * K] -> `parts` views [B, H, T, K]. The
/// backward takes one copy.
std::vector<at::Tensor> split_heads(const at::Tensor& x_BTO,
                                    std::int64_t parts,
                                    std::int64_t num_heads);
/// The range of heads that this rank holds of a projection by `weight` [parts, H, K, I].
struct HeadRange {
  std::int64_t first = 0, count = 0;
};
HeadRange heads_of(const Param& weight);
/// This rank's heads of the queries, keys and values of a layer.
struct Qkv {
  at::Tensor q_BHTK, k_BGTK, v_BGTK;
  std::int64_t first_head = 0;  ///< first head of q, among all heads of the layer
};
/// Projects x [B, T, C] to queries, keys and values. `weight` is [3, H, K, C], or [G, H / G + 2, K,
/// C] with the axis KvHeads first: for each head of keys and values, the queries that share it,
/// then its keys, then its values (Megatron-LM's order), so that ranks that share the heads need
/// one product. If there are more ranks than heads of keys and values, several ranks compute the
/// same keys and values, each with different queries, and sum the gradient of the group's weights
/// by an all-reduce of that size.
Qkv project_qkv(const at::Tensor& x_BTC,
                const Param& weight,
                const Param* bias,
                StepContext& context);
/// Splits the result x [B, T, O] of one product into queries, keys and values. `queries`: the
/// queries of a group that O contains; count 0: all.
Qkv split_qkv(const at::Tensor& x_BTO, const Param& weight, HeadRange queries = {});
/// The RMS norm over each head's channels (Qwen 3, Gemma 3): x [B, H, T, K]; `weight` [K] is shared
/// by all heads, and `offset` is added to it (Gemma stores its weights minus 1). Tensor-parallel
/// ranks sum the contributions of their heads to the weight's gradient.
at::Tensor head_norm(
    const at::Tensor& x_BHTK, const Param& weight, double eps, double offset, StepContext& context);
/// The layer norm over each head's channels (Megatron-LM): weight and bias [K] as above.
at::Tensor head_layer_norm(const at::Tensor& x_BHTK,
                           const Param& weight,
                           const Param& bias,
                           double eps,
                           StepContext& context);
/// The RMS norm without a weight (Llama 4).
at::Tensor plain_head_norm(const at::Tensor& x_BHTK, double eps);
/// The RMS norm over the channels of all heads together (OLMo 2): `weight` [H * K] is split as the
/// heads are; tensor-parallel ranks sum the squares.
at::Tensor all_heads_norm(
    const at::Tensor& x_BHTK, const Param& weight, double eps, double offset, StepContext& context);
/// [B, H, T, K] -> [B, T, H * K].
at::Tensor merge_heads(const at::Tensor& x_BHTK);
at::Tensor activate(const at::Tensor& x, ops::Activation activation);
/// Applies a gated activation: x [..., 2 F] from a projection by a weight [2, F, I], gate rows
/// first, then up rows -> [..., F].
at::Tensor gated(const at::Tensor& x, ops::Activation activation);
/// The rotary table for the queries and keys of this rank, from the positions that positions()
/// returns for the samples and tokens that attention sees here. `ids_BT` and `starts_BT` are the
/// tensors of the batch. `factor` multiplies sines and cosines.
ops::RotaryTable rotary_table(const at::Tensor& ids_BT,
                              std::int64_t most,
                              const std::vector<double>& frequencies,
                              const StepContext& context,
                              const at::Tensor& starts_BT = {},
                              double factor = 1.0);
/// Rotates queries or keys by the positions of their tokens.
at::Tensor rotary(const at::Tensor& x_BHTK, const ops::RotaryTable& table);
/// Multiplies queries by 1 + scale * log(1 + floor((p + 1) / floor)), where p is the position of
/// the token (Llama 4). `ids_BT`, `most` and `starts_BT` are those of rotary_table().
struct Temperature {
  double scale = 0.1;
  std::int64_t floor = 8192;  ///< tokens
};
at::Tensor by_position(const at::Tensor& q_BHTK,
                       const Temperature& temperature,
                       const at::Tensor& ids_BT,
                       std::int64_t most,
                       const StepContext& context,
                       const at::Tensor& starts_BT = {});
at::Tensor dropout(const at::Tensor& x, const ops::DropoutKey& key);
/// dropout() of the output features [..., F] of a layer with `weight`, of which each
/// tensor-parallel rank holds a share. Throws Error{Unsupported} if the shares are not equal.
at::Tensor dropout_features(const at::Tensor& x,
                            const Param& weight,
                            ops::DropoutKey key,
                            const StepContext& context);
/// Adds a branch to a residual stream: x + dropout(branch) in one pass.
at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const ops::DropoutKey& key);

/// The sum of all elements in fp64, 0-d, for a loss term. `x` is a value that passes between
/// layers, or an elementwise function of one. If tensor-parallel ranks hold shares of it, the sum
/// covers all shares, and each rank passes back the gradient of its own. Ranks that share a context
/// each return the sum over their own tokens, as loss terms do.
at::Tensor flow_sum(const at::Tensor& x, StepContext& context);

/// Selects one token of each sample: x [B, T, C] between layers and the token's position in each of
/// all samples -> [B, 1, C]; on a grid of ranks, for this rank's samples and channels. If ranks
/// share or split the tokens, the rank that holds a token sends it to all others, and the gradients
/// are summed: see shared_gradient().
at::Tensor select_tokens(const at::Tensor& x_BTC,
                         const at::Tensor& positions_B,
                         StepContext& context);
/// The mean over each sample's tokens, x [B, T, C] between layers -> [B, C]. `mask_BS` covers all
/// tokens of the samples and is 0 for tokens that do not count; undefined: all count. Ranks that
/// share or split the tokens sum their partial sums. On a grid of ranks `x_BTC` must come from
/// gather_flow().
at::Tensor mean_of_tokens(const at::Tensor& x_BTC, const at::Tensor& mask_BS, StepContext& context);
/// Corrects the gradient of what a head computes from select_tokens() or mean_of_tokens(). All
/// ranks that split the tokens compute the same value, and the gradients of parameters between
/// layers are summed over these ranks; therefore each rank passes on an equal part of the gradient.
/// Ranks that share a context all count the value as a term, in the sum and in the denominator.
at::Tensor shared_gradient(const at::Tensor& x, StepContext& context);
/// Gathers x [B, T, ...] of this rank's tokens, if tensor-parallel ranks split them, over these
/// ranks. The gradient must be the same on all of them; each takes its own part of it.
at::Tensor uncut_tokens(const at::Tensor& x_BTC, StepContext& context);
/// Gathers values of tokens, x [B, T, ...], of all ranks that share a context, in the samples'
/// order: [B, P T, ...]. For objectives that compute the same terms of whole samples on all of
/// these ranks (Objective::reads_whole_samples()): the gradient of this rank's tokens is that of
/// all ranks' terms. It costs an all-gather forward and nothing backward.
at::Tensor values_of_samples(const at::Tensor& x_BT, StepContext& context);
/// Throws Error{Unsupported} on a grid of ranks if the block has a grid_obstacle().
void refuse_grid(const Block& block, const StepContext& context);
/// Gathers x [B, ..., C] between layers to all samples and channels, on every tensor-parallel rank:
/// an all-gather if a grid of ranks splits them, else x itself. The gradient must be the same on
/// all ranks; each takes its own part of it. linear() and vocab_logits() multiply the result by
/// weights that are not split over ranks.
at::Tensor gather_flow(const at::Tensor& x, StepContext& context);
/// The inverse of gather_flow(): x [B, ..., C], which every tensor-parallel rank has, as it is
/// between layers. Its gradient is gathered.
at::Tensor take_flow(const at::Tensor& x, StepContext& context);

struct VocabLoss {
  at::Tensor sum;     ///< 0-d fp64, differentiable through x and weight
  at::Tensor logits;  ///< fp32 [B, T, V] if the context requests them
};
/// Head and cross-entropy: logits = x weight^T in fp32. labels [B, T], -100 ignored. The gradient
/// is computed in the forward pass.
VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context);
/// The logits alone (Eval without labels, Prefill, Decode): fp32 [B, T, V] for x [B, T, C], or [B,
/// V] for [B, C].
at::Tensor vocab_logits(const at::Tensor& x_BTC, const Param& weight_VC, StepContext& context);

}  // namespace tessera::nn
