// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/aten/backend.h"
#include "tessera/ops/aten/philox.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::aten {
namespace {

/// Expands keys or values to every head of the queries: [B, H, S, K] in fp32.
at::Tensor for_heads(const at::Tensor& x_BGSK, std::int64_t heads) {
  return x_BGSK.to(at::kFloat).repeat_interleave(heads / x_BGSK.size(1), 1);
}

/// Sums over the heads that share keys and values.
at::Tensor sum_of_shared(const at::Tensor& d_BHSK, std::int64_t groups) {
  return d_BHSK.reshape({d_BHSK.size(0), groups, -1, d_BHSK.size(2), d_BHSK.size(3)}).sum(2);
}

struct Scores {
  at::Tensor scores;  ///< with masks and biases: [B, H, T, S] in fp32
  /// Derivative of the soft cap, in the same shape; undefined without one.
  at::Tensor slope_of_cap;
};

/// Adds the terms that depend on the positions of query and key: ALiBi, and -inf for invisible
/// keys.
at::Tensor placed_scores(at::Tensor scores, const AttentionArgs& args) {
  if (args.alibi.empty() && !args.causal && args.window == 0) return scores;
  const std::int64_t T = scores.size(2), S = scores.size(3);
  const at::TensorOptions whole = scores.options().dtype(at::kLong);
  const at::Tensor query = at::arange(T, whole).view({T, 1}) + args.query_offset,
                   key = at::arange(S, whole);
  if (!args.alibi.empty()) {
    const at::Tensor slopes = on_device(at::tensor(args.alibi, at::kDouble)
                                            .narrow(0, args.first_head, scores.size(1))
                                            .to(at::kFloat),
                                        scores.device());
    scores = scores + slopes.view({-1, 1, 1}) * (key - query).to(at::kFloat);
  }
  if (args.causal) scores = scores.masked_fill(key > query, -INFINITY);
  if (args.window == 0) return scores;
  return scores.masked_fill(
      args.causal ? query - key >= args.window : (query - key).abs() > args.window, -INFINITY);
}

Scores scores_of(const at::Tensor& q_BHTK, const at::Tensor& k_BHSK, const AttentionArgs& args) {
  Scores out;
  out.scores = at::matmul(q_BHTK, k_BHSK.transpose(2, 3)) * attention_scale(args, q_BHTK);
  if (args.softcap > 0.0) {
    const at::Tensor share = (out.scores / args.softcap).tanh();
    out.slope_of_cap = 1.0 - share.square();
    out.scores = share * args.softcap;
  }
  if (args.mask_BS.defined()) {
    const at::Tensor bias = (1.0 - args.mask_BS.to(at::kFloat)) * -10000.0;
    out.scores = out.scores + bias.view({bias.size(0), 1, 1, bias.size(1)});
  }
  if (args.bias_HTS.defined()) out.scores = out.scores + args.bias_HTS;
  out.scores = placed_scores(out.scores, args);
  return out;
}

/// e^(score - log_sum), and 0 if nothing is visible.
at::Tensor probabilities_of(const at::Tensor& scores, const at::Tensor& log_sum_BHT) {
  const at::Tensor log_sum = log_sum_BHT.masked_fill(log_sum_BHT == -INFINITY, 0.0);
  return (scores - log_sum.unsqueeze(3)).exp();
}

at::Tensor positions_of(const std::vector<Run>& runs, const at::TensorOptions& options) {
  std::vector<at::Tensor> out;
  for (const Run& run : runs)
    out.push_back(at::arange(run.begin, run.end, options));
  return at::cat(out);
}

/// The probabilities that dropout keeps: bool [B, H, T, S].
at::Tensor kept_probabilities(const AttentionArgs& args,
                              const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGSK) {
  const DropoutWindow window = attention_window(args, q_BHTK, k_BGSK);
  const at::TensorOptions whole = q_BHTK.options().dtype(at::kLong);
  const at::Tensor heads =
      (at::arange(q_BHTK.size(1), whole) + window.first_matrix).view({1, -1, 1, 1});
  const at::Tensor rows = positions_of(window.row_runs, whole).view({1, 1, -1, 1});
  const at::Tensor columns = positions_of(window.column_runs, whole);
  const at::Tensor elements = (heads * window.rows + rows) * window.columns + columns;
  return kept_elements(elements, sample_numbers(args.dropout, 4, q_BHTK.device()), args.dropout);
}

}  // namespace

bool AtenBackend::takes_documents(const at::Tensor& /*q_BHTK*/,
                                  const at::Tensor& /*k_BGSK*/,
                                  const AttentionArgs& /*args*/) const {
  return false;
}

AttentionOut AtenBackend::attention(const at::Tensor& q_BHTK,
                                    const at::Tensor& k_BGSK,
                                    const at::Tensor& v_BGSK,
                                    const AttentionArgs& args) const {
  const std::int64_t H = q_BHTK.size(1);
  const at::Tensor scores = scores_of(q_BHTK.to(at::kFloat), for_heads(k_BGSK, H), args).scores;
  const at::Tensor log_sum = scores.logsumexp(3);
  at::Tensor p = probabilities_of(scores, log_sum);
  if (args.dropout.active()) p = drop(p, kept_probabilities(args, q_BHTK, k_BGSK), args.dropout);
  const at::Tensor y = fused_heads(q_BHTK, 1)[0];
  y.copy_(at::matmul(p, for_heads(v_BGSK, H)));
  return {y, log_sum};
}

AttentionGrads AtenBackend::attention_backward(const at::Tensor& dy_BHTK,
                                               const at::Tensor& q_BHTK,
                                               const at::Tensor& k_BGSK,
                                               const at::Tensor& v_BGSK,
                                               const AttentionOut& out,
                                               const AttentionArgs& args) const {
  const std::int64_t H = q_BHTK.size(1), G = k_BGSK.size(1);
  const at::Tensor q = q_BHTK.to(at::kFloat), k = for_heads(k_BGSK, H), v = for_heads(v_BGSK, H);
  const at::Tensor dy = dy_BHTK.to(q_BHTK.scalar_type()).to(at::kFloat);
  const Scores scores = scores_of(q, k, args);
  const at::Tensor p = probabilities_of(scores.scores, out.saved);
  at::Tensor dp = at::matmul(dy, v.transpose(2, 3)), dropped = p;
  if (args.dropout.active()) {
    const at::Tensor kept = kept_probabilities(args, q_BHTK, k_BGSK);
    dropped = drop(p, kept, args.dropout);
    dp = drop(dp, kept, args.dropout);
  }
  // The mean of dp weighted by p equals the mean of dy weighted by y: over all keys, also if these
  // are only a block.
  const at::Tensor mean = (dy * out.y_BHTK.to(at::kFloat)).sum(3, /*keepdim=*/true);
  const at::Tensor dscores = p * (dp - mean);
  at::Tensor ds = dscores * attention_scale(args, q_BHTK);
  if (scores.slope_of_cap.defined()) ds = ds * scores.slope_of_cap;
  std::vector<at::Tensor> d;
  if (q_BHTK.sizes() == k_BGSK.sizes()) {
    d = fused_heads(q_BHTK, 3);
  } else {
    d = {fused_heads(q_BHTK, 1)[0], fused_heads(k_BGSK, 1)[0], fused_heads(k_BGSK, 1)[0]};
  }
  d[0].copy_(at::matmul(ds, k));
  d[1].copy_(sum_of_shared(at::matmul(ds.transpose(2, 3), q), G));
  d[2].copy_(sum_of_shared(at::matmul(dropped.transpose(2, 3), dy), G));
  return {d[0], d[1], d[2], args.bias_HTS.defined() ? dscores.sum(0) : at::Tensor()};
}

std::int64_t AtenBackend::attention_scratch(const at::Tensor& q_BHTK,
                                            const at::Tensor& k_BGSK,
                                            const AttentionArgs& args,
                                            bool backward) const {
  const std::int64_t B = q_BHTK.size(0), H = q_BHTK.size(1), T = q_BHTK.size(2), S = k_BGSK.size(2),
                     K = q_BHTK.size(3);
  // Number of fp32 score tensors alive at once. The forward has those without and with the last
  // term and a mask; the backward also has the derivative of a cap, probabilities, their gradients,
  // and those of the scores. Dropout needs several 64-bit numbers per element for its counters and
  // random words.
  const std::int64_t scores =
      (backward ? 6 : 3) + (args.softcap > 0.0 ? 2 : 0) + (args.dropout.active() ? 12 : 0);
  // Queries, keys, values and results, in fp32 for each head.
  const std::int64_t rows = backward ? 3 * T + 3 * S : 2 * T + 2 * S;
  return 4 * B * H * (scores * T * S + rows * K);
}

/// Each sequence on its own, with its pages gathered.
at::Tensor AtenBackend::paged_attention(const at::Tensor& q_BH1K,
                                        const KvPages& pages,
                                        const at::Tensor& table_BW,
                                        const at::Tensor& lengths_B,
                                        const AttentionArgs& args) const {
  const std::int64_t N = pages.page_tokens();
  const auto* const lengths = lengths_B.const_data_ptr<std::int64_t>();
  std::vector<at::Tensor> out;
  for (std::int64_t b = 0; b < q_BH1K.size(0); ++b) {
    const std::int64_t length = lengths[b];
    const at::Tensor used =
        on_device(table_BW[b].narrow(0, 0, (length + N - 1) / N), pages.keys_PGNK.device());
    const auto gathered = [&](const at::Tensor& of_PGNK, const at::Tensor& scales_PGN) {
      at::Tensor x = of_PGNK.index_select(0, used);
      if (scales_PGN.defined())
        x = x.to(at::kFloat) * scales_PGN.index_select(0, used).unsqueeze(3);
      return x.transpose(0, 1).flatten(1, 2).narrow(1, 0, length).unsqueeze(0);
    };
    AttentionArgs own = args;
    own.query_offset = length - 1;
    own.window = window_at(args, length - 1);
    own.chunk = 0;
    if (args.bias_HTS.defined())
      own.bias_HTS = args.bias_HTS.narrow(2, args.bias_HTS.size(2) - length, length);
    out.push_back(attention(q_BH1K.narrow(0, b, 1),
                            gathered(pages.keys_PGNK, pages.key_scales_PGN),
                            gathered(pages.values_PGNK, pages.value_scales_PGN),
                            own)
                      .y_BHTK);
  }
  return at::cat(out);
}

}  // namespace tessera::ops::aten
