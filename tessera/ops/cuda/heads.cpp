// SPDX-License-Identifier: Apache-2.0
// The functions of CudaBackend for heads of attention, packed numbers and tokens.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/cuda/backend.h"
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/nf4.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::cuda {
namespace {

static_assert(kNf4Block == kNf4Numbers);

Nf4Table nf4_table() {
  Nf4Table out{};
  std::copy(std::begin(kNf4Values), std::end(kNf4Values), std::begin(out.values));
  std::copy(std::begin(kNf4Midpoints), std::end(kNf4Midpoints), std::begin(out.midpoints));
  return out;
}

at::Tensor plain(const at::Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}
const float* values_of(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

/// The slopes of ALiBi for the heads of a tensor.
at::Tensor slopes_for(const AttentionArgs& args, std::int64_t heads, c10::Device device) {
  if (args.alibi.empty()) return {};
  return on_device(at::tensor(args.alibi, at::kDouble)
                       .narrow(0, args.first_head, heads)
                       .to(at::kFloat)
                       .contiguous(),
                   device);
}

}  // namespace

void CudaBackend::linear_bias_grad(const at::Tensor& dy_NO,
                                   bool accumulate,
                                   const at::Tensor& db_O) const {
  const at::Tensor dy = dy_NO.contiguous();
  const std::int64_t rows = dy.size(0), columns = dy.size(1);
  if (rows == 0 || !db_O.is_contiguous())
    return GpuBackend::linear_bias_grad(dy_NO, accumulate, db_O);
  const at::Tensor parts = at::empty({norm_parts(rows), columns}, dy.options().dtype(at::kFloat));
  column_sums(
      from_torch(dy.scalar_type()), dy.const_data_ptr(), rows, columns, parts.data_ptr<float>());
  add_parts(
      parts.const_data_ptr<float>(), parts.size(0), columns, accumulate, db_O.data_ptr<float>());
}

void CudaBackend::rotary(const at::Tensor& x_BHTK,
                         const RotaryTable& table,
                         int direction,
                         const at::Tensor& y_BHTK) const {
  const at::Tensor x = x_BHTK.stride(3) == 1 ? x_BHTK : x_BHTK.contiguous();
  if (y_BHTK.stride(3) != 1) return GpuBackend::rotary(x_BHTK, table, direction, y_BHTK);
  const at::Tensor cosine = plain(table.cosine_BTP), sine = plain(table.sine_BTP);
  cuda::rotary(from_torch(x.scalar_type()),
               {.x = x.const_data_ptr(),
                .y = y_BHTK.data_ptr(),
                .cosine = values_of(cosine),
                .sine = values_of(sine),
                .samples = x.size(0),
                .heads = x.size(1),
                .tokens = x.size(2),
                .channels = x.size(3),
                .pairs = cosine.size(2),
                .x_at = {x.stride(0), x.stride(1), x.stride(2)},
                .y_at = {y_BHTK.stride(0), y_BHTK.stride(1), y_BHTK.stride(2)},
                .table_of_sample = cosine.size(0) == 1 ? 0 : cosine.size(1) * cosine.size(2),
                .interleaved = table.interleaved,
                .direction = static_cast<float>(direction)});
}

void CudaBackend::widen_int8(const at::Tensor& rows_NI,
                             const at::Tensor& scales_N,
                             const at::Tensor& out_NI) const {
  if (!out_NI.is_contiguous() || rows_NI.numel() == 0)
    return GpuBackend::widen_int8(rows_NI, scales_N, out_NI);
  const at::Tensor rows = rows_NI.contiguous(), scales = plain(scales_N);
  cuda::widen_int8(rows.const_data_ptr<std::int8_t>(),
                   values_of(scales),
                   rows.numel(),
                   rows.size(-1),
                   from_torch(out_NI.scalar_type()),
                   out_NI.data_ptr());
}

void CudaBackend::widen_nf4(const at::Tensor& codes,
                            const at::Tensor& scales,
                            const at::Tensor& out) const {
  cuda::widen_nf4(codes.const_data_ptr<std::uint8_t>(),
                  values_of(scales),
                  nf4_table(),
                  out.numel(),
                  from_torch(out.scalar_type()),
                  out.data_ptr());
}

void CudaBackend::narrow_nf4(const at::Tensor& values,
                             const at::Tensor& codes_out,
                             const at::Tensor& scales_out) const {
  cuda::narrow_nf4(values.const_data_ptr<float>(),
                   values.numel(),
                   nf4_table(),
                   codes_out.data_ptr<std::uint8_t>(),
                   scales_out.data_ptr<float>());
}

at::Tensor CudaBackend::paged_attention(const at::Tensor& q_BH1K,
                                        const KvPages& pages,
                                        const at::Tensor& table_BW,
                                        const at::Tensor& lengths_B,
                                        const AttentionArgs& args) const {
  if (q_BH1K.size(3) > kMostPagedChannels)
    return GpuBackend::paged_attention(q_BH1K, pages, table_BW, lengths_B, args);
  const c10::Device device = q_BH1K.device();
  const std::int64_t heads = q_BH1K.size(1);
  const at::Tensor q = q_BH1K.contiguous(), y = fused_heads(q_BH1K, 1)[0];
  const at::Tensor table = on_device(table_BW.contiguous(), device),
                   lengths = on_device(lengths_B.contiguous(), device);
  const at::Tensor slopes = slopes_for(args, heads, device), bias = plain(args.bias_HTS);
  const at::Tensor key_scales = plain(pages.key_scales_PGN),
                   value_scales = plain(pages.value_scales_PGN);
  cuda::paged_attention(from_torch(q.scalar_type()),
                        from_torch(pages.keys_PGNK.scalar_type()),
                        {.q = q.const_data_ptr(),
                         .y = y.data_ptr(),
                         .keys = pages.keys_PGNK.const_data_ptr(),
                         .values = pages.values_PGNK.const_data_ptr(),
                         .key_scales = values_of(key_scales),
                         .value_scales = values_of(value_scales),
                         .table = table.const_data_ptr<std::int64_t>(),
                         .lengths = lengths.const_data_ptr<std::int64_t>(),
                         .slopes = values_of(slopes),
                         .bias = values_of(bias),
                         .heads = heads,
                         .groups = pages.keys_PGNK.size(1),
                         .page_tokens = pages.page_tokens(),
                         .channels = q.size(3),
                         .columns = table.size(1),
                         .bias_keys = bias.defined() ? bias.size(2) : 0,
                         .window = args.window,
                         .chunk = args.chunk,
                         .scale = static_cast<float>(attention_scale(args, q_BH1K)),
                         .softcap = static_cast<float>(args.softcap)},
                        q.size(0));
  return y;
}

std::int64_t CudaBackend::sample_token(const at::Tensor& logits_V,
                                       std::int64_t vocab,
                                       const SamplerOptions& options,
                                       std::uint64_t seed,
                                       std::int64_t position) const {
  const at::Tensor logits = logits_V.reshape({-1}).narrow(0, 0, vocab).to(at::kFloat).contiguous();
  const at::Tensor found = at::zeros({3}, logits.options().dtype(at::kLong));
  const bool greedy = options.temperature == 0.0;
  at::Tensor weights, ids;
  if (!greedy) weights = at::empty({vocab}, logits.options().dtype(at::kDouble));
  token_weights(logits.const_data_ptr<float>(),
                vocab,
                options.temperature,
                greedy ? nullptr : weights.data_ptr<double>(),
                found.data_ptr<std::int64_t>());
  if (!greedy) {
    std::int64_t count = vocab;
    const bool few = options.top_k > 0 && options.top_k < vocab;
    if (few || options.top_p < 1.0) {
      // Among equal weights the lower id comes first.
      std::tie(weights, ids) = weights.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
      if (few) count = options.top_k;
    }
    const Philox::Block words = Philox{seed}(static_cast<std::uint64_t>(position));
    draw_token(weights.const_data_ptr<double>(),
               ids.defined() ? ids.const_data_ptr<std::int64_t>() : nullptr,
               count,
               options.top_p,
               uniform_double(words[0], words[1]),
               found.data_ptr<std::int64_t>());
  }
  const at::Tensor results = found.cpu();  // the one wait for a token
  const auto* const numbers = results.const_data_ptr<std::int64_t>();
  TESSERA_REQUIRE(numbers[kUndefinedLogit] < 0,
                  Numeric,
                  "logit " + std::to_string(numbers[kUndefinedLogit]) + " is not a number",
                  "");
  return numbers[greedy ? kBestToken : kDrawnToken];
}

}  // namespace tessera::ops::cuda
