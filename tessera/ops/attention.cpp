// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/meta_device.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"
#include "tessera/ops/packed_attention.h"
#include "tessera/tensor/dtype.h"

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
  TESSERA_REQUIRE((args.query_offset >= 0 || !args.causal) && args.scale >= 0.0 &&
                      args.window >= 0 && args.softcap >= 0.0,
                  Config,
                  fmt::format("attention with query_offset {}, scale {}, window {} and softcap {}",
                              args.query_offset,
                              args.scale,
                              args.window,
                              args.softcap),
                  "none may be negative");
  if (args.dropout.active()) check_dropout(q, args.dropout);
}

/// Checks the arguments that add to the scores of each head: ALiBi slopes and the bias.
void check_biases(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args) {
  const std::int64_t heads = args.first_head + q.size(1);
  TESSERA_REQUIRE(
      args.alibi.empty() || std::ssize(args.alibi) >= heads,
      Shape,
      fmt::format("{} slopes of ALiBi for head {} of a layer", args.alibi.size(), heads - 1),
      "give one for each head of the layer");
  const at::Tensor& bias = args.bias_HTS;
  TESSERA_REQUIRE(
      !bias.defined() ||
          (bias.dim() == 3 && bias.size(0) == q.size(1) && bias.size(1) == q.size(2) &&
           bias.size(2) == k.size(2) && bias.scalar_type() == at::kFloat),
      Shape,
      std::string("an attention bias of ") +
          (bias.defined() ? c10::toString(bias.scalar_type()) + shape(bias) : "nothing") +
          " for queries " + shape(q) + " and keys " + shape(k),
      "expected fp32 [heads, queries, keys]");
}

/// Number of pairs of a query and a visible key, for one head.
double visible_pairs(const AttentionArgs& args, std::int64_t T, std::int64_t S) {
  if (!args.causal && args.window == 0) return static_cast<double>(T) * static_cast<double>(S);
  const KeyBand band = key_band(args);
  double pairs = 0;
  for (std::int64_t t = 0; t < T; ++t) {
    const Run keys = band.of(t, 1, S);
    pairs += static_cast<double>(keys.end - keys.begin);
  }
  return pairs;
}

/// The same for all samples; a query sees keys of its own document.
double visible_pairs_of_batch(const AttentionArgs& args,
                              std::int64_t B,
                              std::int64_t T,
                              std::int64_t S) {
  if (!args.starts_BT.defined()) return static_cast<double>(B) * visible_pairs(args, T, S);
  double pairs = 0;
  for (const std::vector<Run>& runs : documents_of(args.starts_BT)) {
    for (const Run& run : runs)
      pairs += visible_pairs(args, run.end - run.begin, run.end - run.begin);
  }
  return pairs;
}

/// True if documents are passed to the backend one by one.
bool one_by_one(const at::Tensor& q, const at::Tensor& k, const AttentionArgs& args) {
  return args.starts_BT.defined() &&
         (q.is_meta() || !backend(q.device()).takes_documents(q, k, args));
}

/// `products`: number of products of size [T, S] with K terms or results each; `queries` and
/// `keys`: numbers of tensors of their sizes.
OpWork work_of(const AttentionArgs& args,
               const at::Tensor& q,
               const at::Tensor& k,
               double products,
               double queries,
               double keys) {
  const auto B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2), K = q.size(3);
  const double heads = static_cast<double>(H) * static_cast<double>(K);
  return {
      .flops = products * 2.0 * heads * visible_pairs_of_batch(args, B, T, S),
      .bytes = queries * static_cast<double>(q.nbytes()) + keys * static_cast<double>(k.nbytes()),
      .shape = fmt::format("B{} H{} T{} S{} K{}", B, H, T, S, K),
      .shape_class = ShapeClass::Attention,
      .dtype = from_torch(q.scalar_type())};
}

/// Slopes for a power of two of heads: b, b^2 and so on with b = 2^(-8 / heads).
std::vector<double> slopes_of_power(std::int64_t heads) {
  std::vector<double> out;
  for (std::int64_t head = 1; head <= heads; ++head)
    out.push_back(std::exp2(-8.0 * static_cast<double>(head) / static_cast<double>(heads)));
  return out;
}

/// The scratch memory of the kernels, allocated on meta.
at::Tensor scratch_of(const at::Tensor& q,
                      const at::Tensor& k,
                      const AttentionArgs& args,
                      bool backward) {
  return meta_scratch(meta_backend().attention_scratch(q, k, args, backward));
}

}  // namespace

std::vector<double> alibi_slopes(std::int64_t heads) {
  TESSERA_REQUIRE(heads > 0,
                  Config,
                  fmt::format("slopes of ALiBi for {} heads", heads),
                  "give at least one head");
  std::int64_t power = 1;
  while (2 * power <= heads)
    power *= 2;
  std::vector<double> out = slopes_of_power(power);
  // The other heads use every second slope of twice as many heads.
  const std::vector<double> finer = slopes_of_power(2 * power);
  for (std::size_t i = 0; std::ssize(out) < heads; i += 2)
    out.push_back(finer[i]);
  return out;
}

AttentionOut attention(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args) {
  check(q_BHTK, k_BGSK, v_BGSK, args);
  check_biases(q_BHTK, k_BGSK, args);
  if (one_by_one(q_BHTK, k_BGSK, args)) return packed_attention(q_BHTK, k_BGSK, v_BGSK, args);
  // Two products: scores and sums.
  const OpScope scope("attention", [&] { return work_of(args, q_BHTK, k_BGSK, 2, 2, 2); });
  if (q_BHTK.is_meta()) {
    const at::Tensor scratch = scratch_of(q_BHTK, k_BGSK, args, /*backward=*/false);
    return {at::empty_like(q_BHTK),
            at::empty({q_BHTK.size(0), q_BHTK.size(1), q_BHTK.size(2)},
                      q_BHTK.options().dtype(at::kFloat))};
  }
  AttentionOut out = backend(q_BHTK.device()).attention(q_BHTK, k_BGSK, v_BGSK, args);
  trace_call("tessera::attention",
             [&] {
               return std::vector<c10::IValue>{q_BHTK,
                                               k_BGSK,
                                               v_BGSK,
                                               args.mask_BS,
                                               args.bias_HTS,
                                               args.causal,
                                               args.query_offset,
                                               args.scale,
                                               args.window,
                                               args.softcap,
                                               args.alibi};
             },
             {out.y_BHTK});
  return out;
}

AttentionGrads attention_backward(const at::Tensor& dy_BHTK,
                                  const at::Tensor& q_BHTK,
                                  const at::Tensor& k_BGSK,
                                  const at::Tensor& v_BGSK,
                                  const AttentionOut& out,
                                  const AttentionArgs& args) {
  check(q_BHTK, k_BGSK, v_BGSK, args);
  check_biases(q_BHTK, k_BGSK, args);
  if (one_by_one(q_BHTK, k_BGSK, args))
    return packed_attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
  // Five products: scores again, gradients of probabilities, queries, keys and values.
  const OpScope scope("attention backward", [&] { return work_of(args, q_BHTK, k_BGSK, 5, 4, 4); });
  if (q_BHTK.is_meta()) {
    const at::Tensor scratch = scratch_of(q_BHTK, k_BGSK, args, /*backward=*/true);
    return {at::empty_like(q_BHTK),
            at::empty_like(k_BGSK),
            at::empty_like(v_BGSK),
            args.bias_HTS.defined() ? at::empty_like(args.bias_HTS) : at::Tensor()};
  }
  return backend(q_BHTK.device()).attention_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
}

}  // namespace tessera::ops
