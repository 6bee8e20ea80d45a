// SPDX-License-Identifier: Apache-2.0
// The sources of keys and values for the queries of this rank: its own, those of the ranks that
// share the tokens, or a cache. Each way is a class; the kinds of attention in functional.h ask for
// the class and do not branch themselves. Legend: B samples, H heads, G heads of keys and values, T
// tokens, S tokens of the keys, K channels of a head.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/step_context.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {

/// A strategy without state; shared by all threads.
class AttentionSource {
 public:
  virtual ~AttentionSource() = default;
  /// Attention of q [B, H, T, K] to k and v [B, G, T, K] of the same tokens.
  [[nodiscard]] virtual at::Tensor attend(std::vector<at::Tensor> qkv,
                                          ops::AttentionArgs args,
                                          const Block& block,
                                          StepContext& context) const = 0;
};

/// The queries, keys and values of a call after the exchange between the ranks that share tokens.
struct SharedTokens {
  std::vector<at::Tensor> qkv;
  std::vector<ops::Run> queries;  ///< runs of the samples' tokens, in the order of q
};

/// The sources of a step that has all tokens of its samples, on one rank or on several.
class TokenSource : public AttentionSource {
 public:
  /// The number of ranks that share the tokens.
  [[nodiscard]] virtual std::int64_t ranks(const StepContext& context) const = 0;
  /// attend() where the last of the ranks' tokens are padding: samples have `tokens`. Not causal.
  [[nodiscard]] virtual at::Tensor attend_padded(std::vector<at::Tensor> qkv,
                                                 ops::AttentionArgs args,
                                                 std::int64_t tokens,
                                                 StepContext& context) const = 0;
  /// The keys and values of all tokens for the queries of this rank.
  [[nodiscard]] virtual SharedTokens with_all_keys(std::vector<at::Tensor> qkv,
                                                   ops::AttentionArgs& args,
                                                   StepContext& context) const = 0;
  /// Brings the result for the queries of with_all_keys() back to this rank's tokens.
  [[nodiscard]] virtual at::Tensor to_own_tokens(const at::Tensor& y,
                                                 StepContext& context) const = 0;
};

/// The source for a step of training or evaluation. A rank of a grid may have no samples; then none
/// of the ranks that share its tokens has any, and there is nothing to exchange.
const TokenSource& token_source(const at::Tensor& q, const StepContext& context);
/// The same, or the cache of keys and values if a text is generated.
const AttentionSource& attention_source(const at::Tensor& q,
                                        const ops::AttentionArgs& args,
                                        const StepContext& context);

/// Attention of the inputs q, k and v, in a region that recomputation may run again.
at::Tensor attend_here(std::vector<at::Tensor> qkv, ops::AttentionArgs args, StepContext& context);

}  // namespace tessera::nn
