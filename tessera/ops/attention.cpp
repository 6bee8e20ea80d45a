// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/packed_attention.h"

namespace tessera::ops {
namespace {

void check(const at::Tensor& q,
           const at::Tensor& k,
           const at::Tensor& v,
           const AttentionArgs& args) {
  const bool fits = q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() &&
                    q.size(0) == k.size(0) && k.size(1) > 0 && q.size(1) % k.size(1) == 0 &&
                    q.size(3) == k.size(3) && q.scalar_type() == k.scalar_type() &&
                    k.scalar_type() == v.scalar_type();
  TESSERA_REQUIRE(
      fits,
      Shape,
      "attention of q " + shape(q) + ", k " + shape(k) + ", v " + shape(v),
      "expected [batch, heads, tokens, channels] that agree but for the tokens, in one dtype; "
      "heads "
      "of keys and values divide those of queries");
  TESSERA_REQUIRE(
      !args.mask_BS.defined() || (args.mask_BS.dim() == 2 && args.mask_BS.size(0) == q.size(0) &&
                                  args.mask_BS.size(1) == k.size(2)),
      Shape,
      "attention mask of " + shape(args.mask_BS) + " for keys " + shape(k),
      "expected [batch, keys]");
  TESSERA_REQUIRE(k.size(2) > 0 || q.size(2) == 0,
                  Shape,
                  "attention of q " + shape(q) + " to no keys",
                  "give it at least one");
  TESSERA_REQUIRE(
      args.query_offset >= 0 && args.scale >= 0.0,
      Config,
      fmt::format("attention with query_offset {} and scale {}", args.query_offset, args.scale),
      "neither may be negative");
  if (args.dropout.active()) check_dropout(q, args.dropout);
}

/// Pairs of a query and a key that it sees, of one head.
double visible_pairs(const AttentionArgs& args, std::int64_t T, std::int64_t S) {
  if (!args.causal) return static_cast<double>(T) * static_cast<double>(S);
  double pairs = 0;
  for (std::int64_t t = 0; t < T; ++t)
    pairs += static_cast<double>(std::min(S, args.query_offset + t + 1));
  return pairs;
}

/// `products` of [T, S] with K terms or results each; `queries` and `keys` tensors of their sizes.
OpWork work_of(const AttentionArgs& args,
               const at::Tensor& q,
               const at::Tensor& k,
               double products,
               double queries,
               double keys) {
  const auto B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2), K = q.size(3);
  const double heads = static_cast<double>(B * H) * static_cast<double>(K);
  return {
      .flops = products * 2.0 * heads * visible_pairs(args, T, S),
      .bytes = queries * static_cast<double>(q.nbytes()) + keys * static_cast<double>(k.nbytes()),
      .shape = fmt::format("B{} H{} T{} S{} K{}", B, H, T, S, K)};
}

}  // namespace

AttentionOut attention(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args) {
  check(q_BHTK, k_BGSK, v_BGSK, args);
  if (args.starts_BT.defined()) return packed_attention(q_BHTK, k_BGSK, v_BGSK, args);
  if (q_BHTK.is_meta()) {
    return {at::empty_like(q_BHTK),
            at::empty({q_BHTK.size(0), q_BHTK.size(1), q_BHTK.size(2)},
                      q_BHTK.options().dtype(at::kFloat))};
  }
  // Scores and sums.
  const OpScope scope("attention", [&] { return work_of(args, q_BHTK, k_BGSK, 2, 2, 2); });
  return backend(q_BHTK.device()).attention(q_BHTK, k_BGSK, v_BGSK, args);
}

AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                  const at::Tensor& q_BHTK,
                                  const at::Tensor& k_BGSK,
                                  const at::Tensor& v_BGSK,
                                  const AttentionOut& out,
                                  const AttentionArgs& args) {
  check(q_BHTK, k_BGSK, v_BGSK, args);
  if (args.starts_BT.defined())
    return packed_attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
  if (q_BHTK.is_meta())
    return {at::empty_like(q_BHTK), at::empty_like(k_BGSK), at::empty_like(v_BGSK)};
  // Scores again, gradients of probabilities, queries, keys and values.
  const OpScope scope("attention backward", [&] { return work_of(args, q_BHTK, k_BGSK, 5, 4, 4); });
  return backend(q_BHTK.device()).attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
}

}  // namespace tessera::ops
