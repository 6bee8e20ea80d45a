// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/attention_blocks.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/packed_attention.h"

namespace tessera::ops {
namespace {

double scale_of(const AttentionArgs& args, const at::Tensor& q) {
  return args.scale != 0.0 ? args.scale : 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

/// A query that sees every key needs no mask: one new token after a cache, for example.
bool sees_all(const AttentionArgs& args, std::int64_t keys) {
  return !args.causal || args.query_offset + 1 >= keys;
}

/// The random bits of these heads: they know neither the heads nor the tokens of other ranks.
DropoutKey dropout_of(const AttentionArgs& args, const at::Tensor& probabilities) {
  DropoutKey key = args.dropout;
  key.parts.clear();
  key.element_offset += args.first_head * probabilities.size(2) * probabilities.size(3);
  return key;
}

/// Which kernel makes it.
enum class Way {
  Blocks,  ///< our flash kernel
  Flash,   ///< ATen's, whose causal triangle starts at query 0 = key 0
  Plain,   ///< all probabilities at once: masks and dropout
};
Way way(const AttentionArgs& args, const at::Tensor& q, const at::Tensor& k) {
  if (args.mask_BS.defined() || args.dropout.active()) return Way::Plain;
  if (cpu::attention_blocks_fit(q.scalar_type())) return Way::Blocks;
  const bool fits = sees_all(args, k.size(2)) || (args.query_offset == 0 && q.size(2) == k.size(2));
  return fits ? Way::Flash : Way::Plain;
}

/// Inputs as the flash kernel should see them: bf16 only where the CPU multiplies it, and never
/// fp16, whose backward is slower there than fp32's even with AVX512-FP16.
at::Tensor for_flash(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  const bool widens = dtype == at::kHalf || (dtype == at::kBFloat16 && !native_bf16());
  return widens ? x.to(at::kFloat) : x;
}

/// ATen's kernel wants keys and values for every head.
at::Tensor repeated(const at::Tensor& x_BGSK, std::int64_t heads) {
  return x_BGSK.size(1) == heads ? x_BGSK : x_BGSK.repeat_interleave(heads / x_BGSK.size(1), 1);
}
/// And its gradients [B, H, S, K] are of every head's.
at::Tensor summed(const at::Tensor& d_BHSK, std::int64_t shared) {
  const std::int64_t heads = d_BHSK.size(1);
  if (heads == shared) return d_BHSK;
  return d_BHSK.to(at::kFloat).unflatten(1, {shared, heads / shared}).sum(2);
}

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
      "attention of q " + cpu::shape(q) + ", k " + cpu::shape(k) + ", v " + cpu::shape(v),
      "expected [batch, heads, tokens, channels] that agree but for the tokens, in one dtype; "
      "heads "
      "of keys and values divide those of queries");
  TESSERA_REQUIRE(
      !args.mask_BS.defined() || (args.mask_BS.dim() == 2 && args.mask_BS.size(0) == q.size(0) &&
                                  args.mask_BS.size(1) == k.size(2)),
      Shape,
      "attention mask of " + cpu::shape(args.mask_BS) + " for keys " + cpu::shape(k),
      "expected [batch, keys]");
}

/// Softmax of scaled, masked scores [B, H, T, S] in place.
void softmax_(const at::Tensor& scores, const AttentionArgs& args, double scale) {
  const at::Tensor mask = args.mask_BS.defined() ? cpu::plain_float(args.mask_BS) : at::Tensor();
  const cpu::SoftmaxRows rows{.scores = scores.data_ptr<float>(),
                              .mask_BS = mask.defined() ? mask.data_ptr<float>() : nullptr,
                              .heads = scores.size(1),
                              .queries = scores.size(2),
                              .keys = scores.size(3),
                              .query_offset = args.query_offset,
                              .causal = args.causal,
                              .scale = static_cast<float>(scale)};
  const auto kernel = cpu::kernels().softmax;
  cpu::parallel(scores.numel() / scores.size(3), 16, [&](std::int64_t begin, std::int64_t end) {
    kernel(rows, begin, end);
  });
}

AttentionOut math_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const AttentionArgs& args) {
  const std::int64_t shared = k.size(1);
  const at::Tensor probabilities = at::matmul(cpu::by_shared_heads(cpu::plain_float(q), shared),
                                              cpu::plain_float(k).transpose(2, 3))
                                       .contiguous()
                                       .view({q.size(0), q.size(1), q.size(2), k.size(2)});
  softmax_(probabilities, args, scale_of(args, q));
  const at::Tensor dropped = dropout(probabilities, dropout_of(args, probabilities));
  const at::Tensor y =
      at::matmul(cpu::by_shared_heads(dropped, shared), cpu::plain_float(v)).view(q.sizes());
  return {y.to(q.scalar_type()), probabilities};
}

AttentionGrads math_backward(const at::Tensor& dy,
                             const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const at::Tensor& probabilities,
                             const AttentionArgs& args) {
  const DropoutKey key = dropout_of(args, probabilities);
  const std::int64_t shared = k.size(1);
  const at::Tensor g = cpu::by_shared_heads(cpu::plain_float(dy), shared),
                   dropped = cpu::by_shared_heads(dropout(probabilities, key), shared);
  const at::Tensor dv = at::matmul(dropped.transpose(2, 3), g);
  at::Tensor dscores =
      at::matmul(g, cpu::plain_float(v).transpose(2, 3)).contiguous().view(probabilities.sizes());
  dscores = dropout(dscores, key);
  const std::int64_t S = dscores.size(3);
  const auto kernel = cpu::kernels().softmax_grad;
  const float scale = static_cast<float>(scale_of(args, q));
  cpu::parallel(dscores.numel() / S, 16, [&](std::int64_t begin, std::int64_t end) {
    kernel(probabilities.data_ptr<float>(), dscores.data_ptr<float>(), S, scale, begin, end);
  });
  dscores = cpu::by_shared_heads(dscores, shared);
  const at::Tensor queries = cpu::by_shared_heads(cpu::plain_float(q), shared);
  return {at::matmul(dscores, cpu::plain_float(k)).view(q.sizes()).to(q.scalar_type()),
          at::matmul(dscores.transpose(2, 3), queries).to(q.scalar_type()),
          dv.to(q.scalar_type())};
}

AttentionOut meta_attention(const at::Tensor& q, const at::Tensor& k, Way how) {
  const auto options = q.options().dtype(at::kFloat);
  const at::Tensor saved = how == Way::Plain
                               ? at::empty({q.size(0), q.size(1), q.size(2), k.size(2)}, options)
                               : at::empty({q.size(0), q.size(1), q.size(2)}, options);
  return {at::empty_like(q), saved};
}

/// The channels of a head side by side, as the kernels want them.
at::Tensor in_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

cpu::AttentionBlocks blocks_of(const AttentionArgs& args, const at::Tensor& q) {
  return {.causal = args.causal,
          .query_offset = args.query_offset,
          .scale = static_cast<float>(scale_of(args, q))};
}

/// [B, H, N, K] whose memory is [B, N, parts, H, K]: what a fused projection makes, and takes back.
std::vector<at::Tensor> fused_heads(const at::Tensor& like, std::int64_t parts) {
  const at::Tensor all =
      at::empty({like.size(0), like.size(2), parts, like.size(1), like.size(3)}, like.options());
  std::vector<at::Tensor> out;
  for (std::int64_t part = 0; part < parts; ++part)
    out.push_back(all.select(2, part).transpose(1, 2));
  return out;
}

AttentionOut blocks_attention(const at::Tensor& q,
                              const at::Tensor& k,
                              const at::Tensor& v,
                              const AttentionArgs& args) {
  const at::Tensor y = fused_heads(q, 1)[0];
  const at::Tensor log_sum =
      at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  cpu::attention_blocks(in_rows(q), in_rows(k), in_rows(v), blocks_of(args, q), y, log_sum);
  return {y, log_sum};
}

/// Text is made one query at a time, in every dtype; what is saved is what both flash kernels save.
bool is_one_query(const AttentionArgs& args, const at::Tensor& q, const at::Tensor& k, Way how) {
  return how != Way::Plain && isa() != Isa::Portable && q.size(2) == 1 &&
         sees_all(args, k.size(2)) && k.size(2) > 0;
}

AttentionOut one_query(const at::Tensor& q_BHTK,
                       const at::Tensor& k_BGSK,
                       const at::Tensor& v_BGSK,
                       const AttentionArgs& args) {
  const std::int64_t B = q_BHTK.size(0), H = q_BHTK.size(1), G = k_BGSK.size(1), S = k_BGSK.size(2),
                     K = q_BHTK.size(3);
  const at::Tensor q = cpu::plain_float(q_BHTK), k = in_rows(k_BGSK), v = in_rows(v_BGSK);
  const at::Tensor y = at::empty({B, H, 1, K}, q.options()),
                   log_sum = at::empty({B, H, 1}, q.options());
  const at::Tensor scores = at::empty({B * H, S}, q.options());
  const auto kernel = cpu::kernels().attend_one[cpu::float_of(k)];
  const auto rows_of = [&](const at::Tensor& x, std::int64_t head) {
    const std::int64_t first = head / H * x.stride(0) + head % H / (H / G) * x.stride(1);
    return cpu::StridedRows{static_cast<char*>(x.data_ptr()) + first * x.element_size(),
                            x.stride(2)};
  };
  cpu::parallel(B * H, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      kernel({.query = q.data_ptr<float>() + head * K,
              .keys = rows_of(k, head),
              .values = rows_of(v, head),
              .count = S,
              .channels = K,
              .scale = static_cast<float>(scale_of(args, q)),
              .scores = scores.data_ptr<float>() + head * S,
              .y = y.data_ptr<float>() + head * K,
              .log_sum = log_sum.data_ptr<float>() + head});
    }
  });
  return {y.to(q_BHTK.scalar_type()), log_sum};
}

AttentionGrads blocks_backward(const at::Tensor& dy,
                               const at::Tensor& q,
                               const at::Tensor& k,
                               const at::Tensor& v,
                               const AttentionOut& out,
                               const AttentionArgs& args) {
  std::vector<at::Tensor> d;
  if (q.sizes() == k.sizes()) {
    d = fused_heads(q, 3);
  } else {
    d = {fused_heads(q, 1)[0], fused_heads(k, 1)[0], fused_heads(k, 1)[0]};
  }
  cpu::attention_blocks_backward(in_rows(dy.to(q.scalar_type())),
                                 in_rows(q),
                                 in_rows(k),
                                 in_rows(v),
                                 in_rows(out.y_BHTK),
                                 out.saved,
                                 blocks_of(args, q),
                                 d[0],
                                 d[1],
                                 d[2]);
  return {d[0], d[1], d[2]};
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
  const Way how = way(args, q_BHTK, k_BGSK);
  if (q_BHTK.is_meta()) return meta_attention(q_BHTK, k_BGSK, how);
  // Scores and sums.
  const OpScope scope("attention", [&] { return work_of(args, q_BHTK, k_BGSK, 2, 2, 2); });
  if (how == Way::Plain) return math_attention(q_BHTK, k_BGSK, v_BGSK, args);
  if (is_one_query(args, q_BHTK, k_BGSK, how)) return one_query(q_BHTK, k_BGSK, v_BGSK, args);
  if (how == Way::Blocks) return blocks_attention(q_BHTK, k_BGSK, v_BGSK, args);
  const bool causal = !sees_all(args, k_BGSK.size(2));
  auto [y, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(for_flash(q_BHTK),
                                                      repeated(for_flash(k_BGSK), q_BHTK.size(1)),
                                                      repeated(for_flash(v_BGSK), q_BHTK.size(1)),
                                                      0.0,
                                                      causal,
                                                      std::nullopt,
                                                      scale_of(args, q_BHTK));
  return {y.to(q_BHTK.scalar_type()), logsumexp};
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
  const Way how = way(args, q_BHTK, k_BGSK);
  if (how == Way::Plain) return math_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out.saved, args);
  if (how == Way::Blocks) return blocks_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
  const bool causal = !sees_all(args, k_BGSK.size(2));
  const at::Tensor dy = dy_BHTK.to(q_BHTK.scalar_type());
  const std::int64_t shared = k_BGSK.size(1);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      for_flash(dy),
      for_flash(q_BHTK),
      repeated(for_flash(k_BGSK), q_BHTK.size(1)),
      repeated(for_flash(v_BGSK), q_BHTK.size(1)),
      for_flash(out.y_BHTK),
      out.saved,
      0.0,
      causal,
      std::nullopt,
      scale_of(args, q_BHTK));
  const at::ScalarType dtype = q_BHTK.scalar_type();
  return {dq.to(dtype), summed(dk, shared).to(dtype), summed(dv, shared).to(dtype)};
}

}  // namespace tessera::ops
