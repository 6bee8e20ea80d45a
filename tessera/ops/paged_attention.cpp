// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/paged_attention.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/op_log.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

/// True for int64 values in host memory.
bool is_list(const at::Tensor& x) {
  return x.scalar_type() == at::kLong && x.device().is_cpu() && x.is_contiguous();
}

/// Writes rows [B, T, G, ...] of the tokens to the places `at_2M` = pages and slots.
void write_rows(const at::Tensor& to_PGN, const at::Tensor& at_2M, const at::Tensor& from_BGT) {
  to_PGN.transpose(1, 2).index_put_({at_2M[0], at_2M[1]}, from_BGT.transpose(1, 2).flatten(0, 1));
}

/// Writes values in the form of the pages.
void put_rounded(const at::Tensor& to_PGNK,
                 const at::Tensor& scales_PGN,
                 const at::Tensor& at_2M,
                 const at::Tensor& from_BGTK) {
  if (!scales_PGN.defined()) return write_rows(to_PGNK, at_2M, from_BGTK.to(to_PGNK.scalar_type()));
  const Int8Rows rounded = to_int8(from_BGTK.reshape({-1, from_BGTK.size(3)}));
  write_rows(to_PGNK, at_2M, rounded.rows_OI.view(from_BGTK.sizes()));
  write_rows(scales_PGN, at_2M, rounded.scales_O.view(from_BGTK.sizes().slice(0, 3)));
}

}  // namespace

KvPages kv_pages(std::int64_t pages,
                 std::int64_t page_tokens,
                 const at::Tensor& k_BGTK,
                 at::ScalarType dtype) {
  const auto sizes = {pages, k_BGTK.size(1), page_tokens, k_BGTK.size(3)};
  const auto of = k_BGTK.options().dtype(dtype);
  KvPages out{at::empty(sizes, of), at::empty(sizes, of), {}, {}};
  if (dtype != at::kChar) return out;
  const auto rows = {pages, k_BGTK.size(1), page_tokens};
  out.key_scales_PGN = at::empty(rows, k_BGTK.options().dtype(at::kFloat));
  out.value_scales_PGN = at::empty_like(out.key_scales_PGN);
  return out;
}

void write_pages(const KvPages& pages,
                 const at::Tensor& k_BGTK,
                 const at::Tensor& v_BGTK,
                 const at::Tensor& table_BW,
                 const at::Tensor& first_B) {
  const std::int64_t B = k_BGTK.size(0), T = k_BGTK.size(2), N = pages.page_tokens(),
                     W = table_BW.size(1);
  TESSERA_ASSERT(is_list(table_BW) && is_list(first_B) && table_BW.size(0) == B &&
                 first_B.size(0) == B && k_BGTK.sizes() == v_BGTK.sizes());
  const at::Tensor places_2M = at::empty({2, B * T}, at::kLong);
  auto *const page = places_2M.data_ptr<std::int64_t>(), *const slot = page + B * T;
  const auto *table = table_BW.const_data_ptr<std::int64_t>(),
             *first = first_B.const_data_ptr<std::int64_t>();
  for (std::int64_t b = 0, i = 0; b < B; ++b) {
    for (std::int64_t t = 0; t < T; ++t, ++i) {
      const std::int64_t position = first[b] + t;
      TESSERA_ASSERT(position >= 0 && position / N < W);
      page[i] = table[b * W + position / N];
      slot[i] = position % N;
      TESSERA_ASSERT(page[i] >= 0 && page[i] < pages.count());
    }
  }
  const at::Tensor at_2M = on_device(places_2M, k_BGTK.device());
  put_rounded(pages.keys_PGNK, pages.key_scales_PGN, at_2M, k_BGTK);
  put_rounded(pages.values_PGNK, pages.value_scales_PGN, at_2M, v_BGTK);
}

void copy_pages(const KvPages& pages, const at::Tensor& copies_M2) {
  TESSERA_ASSERT(is_list(copies_M2) && copies_M2.size(1) == 2);
  const at::Tensor from_to = on_device(copies_M2, pages.keys_PGNK.device());
  const at::Tensor from_M = from_to.select(1, 0), to_M = from_to.select(1, 1);
  for (const at::Tensor& of :
       {pages.keys_PGNK, pages.values_PGNK, pages.key_scales_PGN, pages.value_scales_PGN}) {
    if (of.defined()) of.index_copy_(0, to_M, of.index_select(0, from_M));
  }
}

std::int64_t window_at(const AttentionArgs& args, std::int64_t position) {
  if (args.chunk == 0) return args.window;
  const std::int64_t of_chunk = position % args.chunk + 1;
  return args.window == 0 ? of_chunk : std::min(args.window, of_chunk);
}

at::Tensor paged_attention(const at::Tensor& q_BH1K,
                           const KvPages& pages,
                           const at::Tensor& table_BW,
                           const at::Tensor& lengths_B,
                           const AttentionArgs& args) {
  const at::Tensor& keys = pages.keys_PGNK;
  TESSERA_REQUIRE(q_BH1K.dim() == 4 && q_BH1K.size(2) == 1 && keys.dim() == 4 &&
                      q_BH1K.size(1) % keys.size(1) == 0 && q_BH1K.size(3) == keys.size(3),
                  Shape,
                  "attention of q " + shape(q_BH1K) + " to pages of " + shape(keys),
                  "expected [batch, heads, 1, channels], and pages with as many channels, whose "
                  "heads divide those of q");
  TESSERA_ASSERT(args.causal && !args.mask_BS.defined() && !args.starts_BT.defined() &&
                 !args.dropout.active() && is_list(table_BW) && is_list(lengths_B) &&
                 table_BW.size(0) == q_BH1K.size(0) && lengths_B.size(0) == q_BH1K.size(0));
  const auto* const lengths = lengths_B.const_data_ptr<std::int64_t>();
  double tokens = 0;
  for (std::int64_t b = 0; b < q_BH1K.size(0); ++b) {
    TESSERA_ASSERT(lengths[b] > 0 && lengths[b] <= table_BW.size(1) * pages.page_tokens() &&
                   (!args.bias_HTS.defined() || lengths[b] <= args.bias_HTS.size(2)));
    tokens += static_cast<double>(lengths[b]);
  }
  const OpScope scope("attention", [&] {
    const double elements = tokens * static_cast<double>(keys.size(1) * keys.size(3));
    return OpWork{
        .flops = 4.0 * tokens * static_cast<double>(q_BH1K.size(1) * q_BH1K.size(3)),
        .bytes = 2.0 * static_cast<double>(q_BH1K.nbytes()) +
                 2.0 * elements * static_cast<double>(keys.element_size()),
        .shape = fmt::format("B{} H{} pages K{}", q_BH1K.size(0), q_BH1K.size(1), q_BH1K.size(3)),
        .shape_class = ShapeClass::Attention,
        .dtype = from_torch(q_BH1K.scalar_type())};
  });
  return backend(q_BH1K.device()).paged_attention(q_BH1K, pages, table_BW, lengths_B, args);
}

}  // namespace tessera::ops
