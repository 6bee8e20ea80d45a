// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/attention_blocks.h"
#include "tessera/ops/cpu/dropout_rows.h"
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
  TESSERA_REQUIRE(k.size(2) > 0 || q.size(2) == 0,
                  Shape,
                  "attention of q " + cpu::shape(q) + " to no keys",
                  "give it at least one");
  TESSERA_REQUIRE(
      args.query_offset >= 0 && args.scale >= 0.0,
      Config,
      fmt::format("attention with query_offset {} and scale {}", args.query_offset, args.scale),
      "neither may be negative");
  if (args.dropout.active()) check_dropout(q, args.dropout);
}

/// The channels of a head side by side and its rows apart, as the kernels want them.
at::Tensor in_rows(const at::Tensor& x) {
  const bool apart = x.size(2) <= 1 || x.stride(2) >= x.size(3);
  return x.stride(3) == 1 && apart ? x : x.contiguous();
}

/// The arguments as the kernels want them.
class Blocks {
 public:
  Blocks(const AttentionArgs& args, const at::Tensor& q, const at::Tensor& k)
      : key_(args.dropout),
        how_{.causal = args.causal,
             .query_offset = args.query_offset,
             .scale = static_cast<float>(scale_of(args, q))} {
    if (args.mask_BS.defined())
      how_.bias_BS = cpu::plain_float((1.0 - args.mask_BS.to(at::kFloat)) * -10000.0);
    if (!key_.active()) return;
    key_.parts.clear();  // those of the tokens between layers
    rows_.emplace(key_, window_of(args, q.size(2), k.size(2)));
    TESSERA_REQUIRE(rows_->rows() == q.size(2) && rows_->columns() == k.size(2),
                    Shape,
                    fmt::format("attention of q {} and k {} whose place has {} queries and {} keys",
                                cpu::shape(q),
                                cpu::shape(k),
                                rows_->rows(),
                                rows_->columns()),
                    "give the place of these very tokens");
    how_.dropout = &*rows_;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  operator const cpu::AttentionBlocks&() const { return how_; }

 private:
  static DropoutWindow window_of(const AttentionArgs& args, std::int64_t T, std::int64_t S) {
    if (!args.place.has_value()) {
      return {.first_matrix = args.first_head,
              .rows = T,
              .columns = S,
              .row_runs = {{0, T}},
              .column_runs = {{0, S}}};
    }
    return {.first_matrix = args.first_head,
            .rows = args.place->tokens,
            .columns = args.place->tokens,
            .row_runs = args.place->queries,
            .column_runs = args.place->keys};
  }

  DropoutKey key_;
  std::optional<cpu::DropoutRows> rows_;
  cpu::AttentionBlocks how_;
};

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
  cpu::attention_blocks(in_rows(q), in_rows(k), in_rows(v), Blocks(args, q, k), y, log_sum);
  return {y, log_sum};
}

/// Text is made one query at a time, in every dtype; what is saved is the same.
bool is_one_query(const AttentionArgs& args, const at::Tensor& q, const at::Tensor& k) {
  return !args.mask_BS.defined() && !args.dropout.active() && isa() != Isa::Portable &&
         q.size(2) == 1 && sees_all(args, k.size(2)) && k.size(2) > 0;
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
  return {cpu::rounded(y, q_BHTK.scalar_type()), log_sum};
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
                                 Blocks(args, q, k),
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
  if (q_BHTK.is_meta()) {
    return {at::empty_like(q_BHTK),
            at::empty({q_BHTK.size(0), q_BHTK.size(1), q_BHTK.size(2)},
                      q_BHTK.options().dtype(at::kFloat))};
  }
  // Scores and sums.
  const OpScope scope("attention", [&] { return work_of(args, q_BHTK, k_BGSK, 2, 2, 2); });
  if (is_one_query(args, q_BHTK, k_BGSK)) return one_query(q_BHTK, k_BGSK, v_BGSK, args);
  return blocks_attention(q_BHTK, k_BGSK, v_BGSK, args);
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
  return blocks_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
}

}  // namespace tessera::ops
