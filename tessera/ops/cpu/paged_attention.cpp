// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/paged_attention.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// The addresses of one head's rows in each page of a table's row. Pages that do not exist have the
/// address of page 0, and are never read.
template <class T>
void point(const at::Tensor& of_PGN,
           std::int64_t head,
           const std::int64_t* pages,
           std::int64_t count,
           T* to) {
  const auto* const data = static_cast<const std::byte*>(of_PGN.const_data_ptr());
  const std::int64_t width = of_PGN.element_size();
  for (std::int64_t w = 0; w < count; ++w) {
    const std::int64_t page = std::max<std::int64_t>(pages[w], 0);
    to[w] = reinterpret_cast<T>(data + (page * of_PGN.stride(0) + head * of_PGN.stride(1)) * width);
  }
}

}  // namespace

at::Tensor CpuBackend::paged_attention(const at::Tensor& q_BH1K,
                                       const KvPages& pages,
                                       const at::Tensor& table_BW,
                                       const at::Tensor& lengths_B,
                                       const AttentionArgs& args) const {
  const std::int64_t B = q_BH1K.size(0), H = q_BH1K.size(1), K = q_BH1K.size(3),
                     G = pages.keys_PGNK.size(1), N = pages.page_tokens(), W = table_BW.size(1);
  const at::Tensor q = plain_float(q_BH1K);
  const at::Tensor y = at::empty({B, H, 1, K}, q.options());
  const auto* const lengths = lengths_B.const_data_ptr<std::int64_t>();
  const auto* const table = table_BW.const_data_ptr<std::int64_t>();
  const bool int8 = pages.key_scales_PGN.defined();
  const auto kernel =
      int8 ? kernels().attend_pages_int8 : kernels().attend_pages[float_of(pages.keys_PGNK)];
  const ScoreForm same{.scale = static_cast<float>(attention_scale(args, q_BH1K)),
                       .cap = static_cast<float>(args.softcap)};
  const at::Tensor bias = args.bias_HTS.defined() && args.bias_HTS.stride(2) != 1
                              ? args.bias_HTS.contiguous()
                              : args.bias_HTS;
  const std::int64_t most = B == 0 ? 0 : *std::max_element(lengths, lengths + B);
  const at::Tensor scores = at::empty({at::get_num_threads(), most}, q.options());
  parallel(B * H, 1, [&](std::int64_t begin, std::int64_t end) {
    float* const own = scores.data_ptr<float>() + at::get_thread_num() * most;
    const auto columns = static_cast<std::size_t>(W);
    std::vector<const void*> keys(columns), values(columns);
    std::vector<const float*> key_scales(columns), value_scales(columns);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t b = i / H, head = i % H, shared = head / (H / G), length = lengths[b];
      AttentionArgs place = {};
      place.window = window_at(args, length - 1);
      place.query_offset = length - 1;
      const Run seen = key_band(place).of(0, 1, length);
      const std::int64_t from = seen.begin / N, count = (seen.end + N - 1) / N - from;
      const auto* const row = table + b * W + from;
      point(pages.keys_PGNK, shared, row, count, keys.data());
      point(pages.values_PGNK, shared, row, count, values.data());
      if (int8) {
        point(pages.key_scales_PGN, shared, row, count, key_scales.data());
        point(pages.value_scales_PGN, shared, row, count, value_scales.data());
      }
      ScoreForm form = same;
      if (bias.defined()) {
        // The bias of the longest sequence ends with that of a shorter one.
        form.of_pairs = bias.const_data_ptr<float>() + head * bias.stride(0) +
                        (bias.size(1) - 1) * bias.stride(1) + bias.size(2) - length + seen.begin;
        form.pair_stride = bias.stride(1);
      }
      if (!args.alibi.empty()) {
        form.slope =
            static_cast<float>(args.alibi[static_cast<std::size_t>(args.first_head + head)]);
        form.distance = seen.begin - (length - 1);
      }
      kernel({.query = q.data_ptr<float>() + i * K,
              .keys = keys.data(),
              .values = values.data(),
              .key_scales = int8 ? key_scales.data() : nullptr,
              .value_scales = int8 ? value_scales.data() : nullptr,
              .page = N,
              .first = seen.begin - from * N,
              .count = seen.end - seen.begin,
              .channels = K,
              .form = form,
              .scores = own,
              .y = y.data_ptr<float>() + i * K});
    }
  });
  return rounded(y, q_BH1K.scalar_type());
}

}  // namespace tessera::ops::cpu
