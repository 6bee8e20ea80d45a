// SPDX-License-Identifier: Apache-2.0
// Stand-ins for the kernels of cuBLAS, flash attention and cuDNN behind libtorch's operations,
// which libtorch has for CUDA only. They refuse arguments that the real ones refuse, compute in
// fp32 or better with plain operations, and take another way than ops/aten.
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/library.h>

namespace tessera::test {
namespace {

bool has_16_bits(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

at::Tensor mm_dtype(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && has_16_bits(a) && a.dtype() == b.dtype() && out == at::kFloat,
      "mm.dtype takes 16-bit matrices and gives fp32");
  return at::mm(a.to(at::kDouble), b.to(at::kDouble)).to(at::kFloat);
}

at::Tensor& addmm_dtype_out(const at::Tensor& self,
                            const at::Tensor& a,
                            const at::Tensor& b,
                            at::ScalarType dtype,
                            const at::Scalar& beta,
                            const at::Scalar& alpha,
                            at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == dtype || self.scalar_type() == a.scalar_type(),
              "self dtype must match either out_dtype or mat1 dtype");
  TORCH_CHECK(out.scalar_type() == dtype, "out has another dtype than out_dtype");
  const at::Tensor product = mm_dtype(a, b, dtype) * alpha;
  // As in BLAS, beta 0 does not read the matrix.
  out.copy_(beta.toDouble() == 0.0 ? product : self * beta + product);
  return out;
}

/// The scores [B, H, T, S] with -inf for invisible keys; the last query sees the last key.
at::Tensor scores_of(const at::Tensor& q_BHTK,
                     const at::Tensor& k_BHSK,
                     double scale,
                     bool causal,
                     std::int64_t left,
                     std::int64_t right) {
  const std::int64_t T = q_BHTK.size(2), S = k_BHSK.size(2);
  if (causal) right = 0;
  const at::Tensor distance = at::arange(S).view({1, S}) - at::arange(T).view({T, 1}) - (S - T);
  at::Tensor scores = at::einsum("bhtk,bhsk->bhts", {q_BHTK, k_BHSK}) * scale;
  if (right >= 0) scores = scores.masked_fill(distance > right, -INFINITY);
  if (left >= 0) scores = scores.masked_fill(-distance > left, -INFINITY);
  return scores;
}

/// fp64, one head of keys and values for each of the queries, from [B, G, S, K].
at::Tensor wide(const at::Tensor& x_BGSK, std::int64_t heads) {
  return x_BGSK.to(at::kDouble).repeat_interleave(heads / x_BGSK.size(1), 1);
}
at::Tensor shared(const at::Tensor& d_BHSK, std::int64_t groups) {
  return d_BHSK.unflatten(1, {groups, -1}).sum(2);
}

struct Attention {
  at::Tensor q, k, v;  ///< [B, H, T or S, K]
  double scale;
  bool causal;
  std::int64_t left = -1, right = -1;
  [[nodiscard]] at::Tensor scores() const {
    const std::int64_t H = q.size(1);
    return scores_of(wide(q, H), wide(k, H), scale, causal, left, right);
  }
};

std::tuple<at::Tensor, at::Tensor> forward(const Attention& a) {
  const at::Tensor scores = a.scores();
  const at::Tensor y = at::einsum("bhts,bhsk->bhtk", {scores.softmax(3), wide(a.v, a.q.size(1))});
  return {y.to(a.q.scalar_type()), scores.logsumexp(3).to(at::kFloat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const Attention& a,
                                                        const at::Tensor& dy_BHTK,
                                                        const at::Tensor& y_BHTK,
                                                        const at::Tensor& lse_BHT) {
  const std::int64_t H = a.q.size(1), G = a.k.size(1);
  const at::Tensor p = (a.scores() - lse_BHT.to(at::kDouble).unsqueeze(3)).exp();
  const at::Tensor dy = dy_BHTK.to(at::kDouble);
  const at::Tensor mean = (dy * y_BHTK.to(at::kDouble)).sum(3, true);
  const at::Tensor ds = p * (at::einsum("bhtk,bhsk->bhts", {dy, wide(a.v, H)}) - mean) * a.scale;
  const auto narrow = [&](const at::Tensor& x) { return x.to(a.q.scalar_type()); };
  return {narrow(at::einsum("bhts,bhsk->bhtk", {ds, wide(a.k, H)})),
          narrow(shared(at::einsum("bhts,bhtk->bhsk", {ds, wide(a.q, H)}), G)),
          narrow(shared(at::einsum("bhts,bhtk->bhsk", {p, dy}), G))};
}

void check_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  for (const at::Tensor& x : {q, k, v}) {
    TORCH_CHECK(has_16_bits(x), "FlashAttention only support fp16 and bf16 data type");
    TORCH_CHECK(x.dim() == 4 && x.stride(3) == 1,
                "Input tensor must have contiguous last dimension");
    TORCH_CHECK(x.size(3) % 8 == 0 && x.size(3) <= 256, "head size");
  }
  TORCH_CHECK(q.size(2) % k.size(2) == 0, "heads of keys must divide those of queries");
}

/// fn(first row, rows) for each document, whose ends are int32 [documents + 1].
template <class Fn>
void each_document(const at::Tensor& ends, const at::Tensor& rows, std::int64_t longest, Fn fn) {
  TORCH_CHECK(ends.scalar_type() == at::kInt && ends.dim() == 1 && ends.is_contiguous(),
              "cu_seqlens must be contiguous and int32");
  TORCH_CHECK(rows.dim() == 3 && rows.stride(2) == 1, "rows of documents are [total, heads, size]");
  const auto* const end = ends.const_data_ptr<std::int32_t>();
  const std::int64_t count = ends.numel() - 1;
  TORCH_CHECK(end[0] == 0 && end[count] == rows.size(0), "cu_seqlens must cover the rows");
  for (std::int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(end[i + 1] > end[i] && end[i + 1] - end[i] <= longest, "max_seqlen");
    fn(end[i], end[i + 1] - end[i]);
  }
}
/// Rows [first, first + count) of [total, heads, size] as a sample [1, count, heads, size].
at::Tensor document(const at::Tensor& rows, std::int64_t first, std::int64_t count) {
  return rows.narrow(0, first, count).unsqueeze(0);
}

using Maybe = std::optional<at::Tensor>;
using Number = std::optional<c10::SymInt>;

Attention flash_arguments(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          bool causal,
                          std::optional<double> scale,
                          const Number& left,
                          const Number& right) {
  check_flash(q, k, v);
  const auto of = [](const Number& number) {
    return number ? number->expect_int() : std::int64_t{-1};
  };
  return {
      q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), *scale, causal, of(left), of(right)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Maybe& cum_q,
    const Maybe& cum_k,
    c10::SymInt max_q,
    c10::SymInt max_k,
    double dropout,
    bool causal,
    bool /*debug*/,
    std::optional<double> scale,
    Number left,
    Number right,
    const Maybe& /*used*/,
    const Maybe& alibi) {
  TORCH_CHECK(dropout == 0.0 && !alibi, "not expected by these tests");
  const at::Tensor none = at::empty({0}, at::kLong);
  if (cum_q && cum_q->defined()) {
    TORCH_CHECK(cum_k && at::equal(*cum_q, *cum_k) && max_q == max_k, "self-attention");
    const at::Tensor y = at::empty_like(q, at::MemoryFormat::Contiguous),
                     lse = at::empty({q.size(1), q.size(0)}, at::kFloat);
    each_document(*cum_q, q, max_q.expect_int(), [&](std::int64_t first, std::int64_t count) {
      const auto of = [&](const at::Tensor& x) { return document(x, first, count); };
      const auto [part, sums] =
          forward(flash_arguments(of(q), of(k), of(v), causal, scale, left, right));
      of(y).copy_(part.transpose(1, 2));
      lse.narrow(1, first, count).copy_(sums[0]);
    });
    return {y, lse, none, none, none};
  }
  auto [y, lse] = forward(flash_arguments(q, k, v, causal, scale, left, right));
  return {y.transpose(1, 2).contiguous(), lse, none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(const at::Tensor& dy,
                                                              const at::Tensor& q,
                                                              const at::Tensor& k,
                                                              const at::Tensor& v,
                                                              const at::Tensor& y,
                                                              const at::Tensor& lse,
                                                              const at::Tensor& cum_q,
                                                              const at::Tensor& cum_k,
                                                              c10::SymInt max_q,
                                                              c10::SymInt max_k,
                                                              double /*dropout*/,
                                                              bool causal,
                                                              const at::Tensor& /*state*/,
                                                              const at::Tensor& /*unused*/,
                                                              std::optional<double> scale,
                                                              Number left,
                                                              Number right) {
  TORCH_CHECK(dy.stride(-1) == 1 && y.stride(-1) == 1,
              "dout and out must have contiguous last dimension");
  TORCH_CHECK(dy.scalar_type() == q.scalar_type(), "query and dout must have the same dtype");
  if (cum_q.defined()) {
    TORCH_CHECK(at::equal(cum_q, cum_k) && max_q == max_k, "self-attention");
    TORCH_CHECK(lse.sizes() == at::IntArrayRef({q.size(1), q.size(0)}) && lse.is_contiguous(),
                "softmax_lse of documents is [heads, total]");
    const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    each_document(cum_q, q, max_q.expect_int(), [&](std::int64_t first, std::int64_t count) {
      const auto of = [&](const at::Tensor& x) { return document(x, first, count); };
      const auto made = backward(flash_arguments(of(q), of(k), of(v), causal, scale, left, right),
                                 of(dy).transpose(1, 2),
                                 of(y).transpose(1, 2),
                                 lse.narrow(1, first, count).unsqueeze(0));
      of(dq).copy_(std::get<0>(made).transpose(1, 2));
      of(dk).copy_(std::get<1>(made).transpose(1, 2));
      of(dv).copy_(std::get<2>(made).transpose(1, 2));
    });
    return {dq, dk, dv};
  }
  const auto [dq, dk, dv] = backward(flash_arguments(q, k, v, causal, scale, left, right),
                                     dy.transpose(1, 2),
                                     y.transpose(1, 2),
                                     lse);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

std::tuple<at::Tensor,
           at::Tensor,
           at::Tensor,
           at::Tensor,
           c10::SymInt,
           c10::SymInt,
           at::Tensor,
           at::Tensor,
           at::Tensor>
cudnn(const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const Maybe& /*bias*/,
      bool log_sums,
      double /*dropout*/,
      bool causal,
      bool /*debug*/,
      std::optional<double> scale) {
  TORCH_CHECK(has_16_bits(q) && log_sums && q.size(1) == k.size(1) && q.size(3) <= 128, "cuDNN");
  auto [y, lse] = forward({q, k, v, *scale, causal});
  const at::Tensor none = at::empty({0}, at::kLong);
  return {y.contiguous(), lse.unsqueeze(3), none, none, q.size(2), k.size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(const at::Tensor& dy,
                                                              const at::Tensor& q,
                                                              const at::Tensor& k,
                                                              const at::Tensor& v,
                                                              const at::Tensor& y,
                                                              const at::Tensor& lse,
                                                              const at::Tensor& /*seed*/,
                                                              const at::Tensor& /*offset*/,
                                                              const at::Tensor& /*bias*/,
                                                              const at::Tensor& /*cum_q*/,
                                                              const at::Tensor& /*cum_k*/,
                                                              c10::SymInt /*max_q*/,
                                                              c10::SymInt /*max_k*/,
                                                              double /*dropout*/,
                                                              bool causal,
                                                              std::optional<double> scale) {
  TORCH_CHECK(lse.dim() == 4 && lse.size(3) == 1, "cuDNN's log sums are [B, H, T, 1]");
  return backward({q, k, v, *scale, causal}, dy, y, lse.squeeze(3));
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("mm.dtype", TORCH_FN(mm_dtype));
  m.impl("addmm.dtype_out", TORCH_FN(addmm_dtype_out));
  m.impl("_flash_attention_forward", TORCH_FN(flash));
  m.impl("_flash_attention_backward", TORCH_FN(flash_backward));
  m.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnn));
  m.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnn_backward));
}

}  // namespace
}  // namespace tessera::test
