// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <optional>
#include <vector>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cpu/attention_blocks.h"
#include "tessera/ops/cpu/attention_parts.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/dropout_rows.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Makes the channels of a head contiguous and its rows separate, as the kernels require.
at::Tensor in_rows(const at::Tensor& x) {
  const bool apart = x.size(2) <= 1 || x.stride(2) >= x.size(3);
  return x.stride(3) == 1 && apart ? x : x.contiguous();
}

/// The slopes for the heads of q only.
std::vector<float> slopes_of(const AttentionArgs& args, const at::Tensor& q) {
  if (args.alibi.empty()) return {};
  const auto first = args.alibi.begin() + args.first_head;
  return {first, first + q.size(1)};
}

/// The arguments in the kernels' form.
class Blocks {
 public:
  Blocks(const AttentionArgs& args,
         const at::Tensor& q,
         const at::Tensor& k,
         const at::Tensor& dbias_HTS = {})
      : key_(args.dropout),
        how_{.band = key_band(args),
             .query_offset = args.query_offset,
             .scale = static_cast<float>(attention_scale(args, q)),
             .softcap = static_cast<float>(args.softcap),
             .alibi = slopes_of(args, q),
             .dbias_HTS = dbias_HTS} {
    if (args.mask_BS.defined())
      how_.bias_BS = plain_float((1.0 - args.mask_BS.to(at::kFloat)) * -10000.0);
    if (args.bias_HTS.defined())
      how_.bias_HTS = args.bias_HTS.stride(2) == 1 ? args.bias_HTS : args.bias_HTS.contiguous();
    if (!key_.active()) return;
    key_.parts.clear();  // the parts describe tokens between layers
    rows_.emplace(key_, attention_window(args, q, k));
    how_.dropout = &*rows_;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  operator const AttentionBlocks&() const { return how_; }

 private:
  DropoutKey key_;
  std::optional<DropoutRows> rows_;
  AttentionBlocks how_;
};

AttentionOut blocks_attention(const at::Tensor& q,
                              const at::Tensor& k,
                              const at::Tensor& v,
                              const AttentionArgs& args) {
  const at::Tensor y = fused_heads(q, 1)[0];
  const at::Tensor log_sum =
      at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  attention_blocks(in_rows(q), in_rows(k), in_rows(v), Blocks(args, q, k), y, log_sum);
  return {y, log_sum};
}

/// Generation has one query at a time, in every dtype; the saved values are the same.
bool is_one_query(const AttentionArgs& args, const at::Tensor& q, const at::Tensor& k) {
  if (args.mask_BS.defined() || args.dropout.active() || q.size(2) != 1) return false;
  const Run seen = key_band(args).of(0, 1, k.size(2));
  return seen.begin < seen.end;
}

/// Each query on its own, whatever their number: the same bits as if it were the only one.
AttentionOut by_queries(const at::Tensor& q_BHTK,
                        const at::Tensor& k_BGSK,
                        const at::Tensor& v_BGSK,
                        const AttentionArgs& args) {
  const std::int64_t B = q_BHTK.size(0), H = q_BHTK.size(1), T = q_BHTK.size(2), K = q_BHTK.size(3),
                     G = k_BGSK.size(1), S = k_BGSK.size(2);
  const KeyBand band = key_band(args);
  const at::Tensor q = plain_float(q_BHTK), k = in_rows(k_BGSK), v = in_rows(v_BGSK);
  const at::Tensor y = at::empty({B, H, T, K}, q.options()),
                   log_sum = at::empty({B, H, T}, q.options());
  const at::Tensor scores = at::empty({at::get_num_threads(), S}, q.options());
  const Blocks blocks(args, q, k_BGSK);
  const auto kernel = kernels().attend_one[float_of(k)];
  const auto rows_of = [&](const at::Tensor& x, std::int64_t head, std::int64_t first) {
    const std::int64_t element =
        head / H * x.stride(0) + head % H / (H / G) * x.stride(1) + first * x.stride(2);
    return StridedRows{static_cast<char*>(x.data_ptr()) + element * x.element_size(), x.stride(2)};
  };
  parallel(B * H * T, 1, [&](std::int64_t begin, std::int64_t end) {
    float* const own = scores.data_ptr<float>() + at::get_thread_num() * S;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t head = i / T, query = i % T;
      const Run seen = band.of(query, 1, S);
      kernel({.query = q.data_ptr<float>() + i * K,
              .keys = rows_of(k, head, seen.begin),
              .values = rows_of(v, head, seen.begin),
              .count = seen.end - seen.begin,
              .channels = K,
              .form = score_form(blocks, H, head, query, seen.begin),
              .scores = own,
              .y = y.data_ptr<float>() + i * K,
              .log_sum = log_sum.data_ptr<float>() + i});
    }
  });
  return {rounded(y, q_BHTK.scalar_type()), log_sum};
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
  const at::Tensor dbias = args.bias_HTS.defined()
                               ? at::zeros(args.bias_HTS.sizes(), args.bias_HTS.options())
                               : at::Tensor();
  attention_blocks_backward(in_rows(dy.to(q.scalar_type())),
                            in_rows(q),
                            in_rows(k),
                            in_rows(v),
                            in_rows(out.y_BHTK),
                            out.saved,
                            Blocks(args, q, k, dbias),
                            d[0],
                            d[1],
                            d[2]);
  return {d[0], d[1], d[2], dbias};
}

/// Bytes of scores, and of fp32 copies of 16-bit queries and results.
std::int64_t by_queries_scratch(const at::Tensor& q_BHTK, const at::Tensor& k_BGSK) {
  const std::int64_t wide = q_BHTK.scalar_type() == at::kFloat ? 0 : 2 * q_BHTK.numel();
  return static_cast<std::int64_t>(sizeof(float)) * (at::get_num_threads() * k_BGSK.size(2) + wide);
}

}  // namespace

bool CpuBackend::takes_documents(const at::Tensor& /*q_BHTK*/,
                                 const at::Tensor& /*k_BGSK*/,
                                 const AttentionArgs& /*args*/) const {
  return false;
}

AttentionOut CpuBackend::attention(const at::Tensor& q_BHTK,
                                   const at::Tensor& k_BGSK,
                                   const at::Tensor& v_BGSK,
                                   const AttentionArgs& args) const {
  if (is_one_query(args, q_BHTK, k_BGSK)) return by_queries(q_BHTK, k_BGSK, v_BGSK, args);
  return blocks_attention(q_BHTK, k_BGSK, v_BGSK, args);
}

AttentionGrads CpuBackend::attention_backward(const at::Tensor& dy_BHTK,
                                              const at::Tensor& q_BHTK,
                                              const at::Tensor& k_BGSK,
                                              const at::Tensor& v_BGSK,
                                              const AttentionOut& out,
                                              const AttentionArgs& args) const {
  return blocks_backward(dy_BHTK, q_BHTK, k_BGSK, v_BGSK, out, args);
}

std::int64_t CpuBackend::attention_scratch(const at::Tensor& q_BHTK,
                                           const at::Tensor& k_BGSK,
                                           const AttentionArgs& args,
                                           bool backward) const {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  if (!backward && is_one_query(args, q_BHTK, k_BGSK)) return by_queries_scratch(q_BHTK, k_BGSK);
  const Blocks blocks(args, q_BHTK, k_BGSK);
  return kFloat * at::get_num_threads() * attention_blocks_floats(q_BHTK, k_BGSK, blocks, backward);
}

AttentionOut BatchInvariantBackend::attention(const at::Tensor& q_BHTK,
                                              const at::Tensor& k_BGSK,
                                              const at::Tensor& v_BGSK,
                                              const AttentionArgs& args) const {
  if (args.dropout.active()) return CpuBackend::attention(q_BHTK, k_BGSK, v_BGSK, args);
  return by_queries(q_BHTK, k_BGSK, v_BGSK, args);
}

std::int64_t BatchInvariantBackend::attention_scratch(const at::Tensor& q_BHTK,
                                                      const at::Tensor& k_BGSK,
                                                      const AttentionArgs& args,
                                                      bool backward) const {
  if (backward || args.dropout.active())
    return CpuBackend::attention_scratch(q_BHTK, k_BGSK, args, backward);
  return by_queries_scratch(q_BHTK, k_BGSK);
}

}  // namespace tessera::ops::cpu
