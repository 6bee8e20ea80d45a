// SPDX-License-Identifier: Apache-2.0
// Attention of one query per sequence to keys and values that lie in pages of a fixed number of
// tokens, so that sequences of different lengths share memory (Kwon et al. 2023, "Efficient memory
// management for large language model serving with PagedAttention"). Legend: P pages, N tokens of a
// page, B sequences, W columns of a table, H heads, G heads of keys and values, T tokens, K
// channels of a head.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"

namespace tessera::ops {

/// Pages of keys and values. Their elements have any floating dtype, or are 8-bit integers with a
/// scale for each token and head.
struct KvPages {
  at::Tensor keys_PGNK, values_PGNK;
  at::Tensor key_scales_PGN, value_scales_PGN;  ///< fp32 if the elements are int8, else undefined
  [[nodiscard]] std::int64_t count() const { return keys_PGNK.size(0); }
  [[nodiscard]] std::int64_t page_tokens() const { return keys_PGNK.size(2); }
};

/// Returns memory for `pages` pages of keys like `k_BGTK` in `dtype`. The memory is not
/// initialized; on a host, an operating system provides it when a page is first written.
KvPages kv_pages(std::int64_t pages,
                 std::int64_t page_tokens,
                 const at::Tensor& k_BGTK,
                 at::ScalarType dtype);

/// Writes T tokens of each sequence from position first_B on. `table_BW`: int64, column w is the
/// page of the positions from w * N on; `first_B`: int64. Both are in host memory. Keys and values
/// are rounded to the dtype of the pages. Throws Error{Bug} for positions without a page and
/// Error{Numeric} for values that are not finite, if the pages are int8.
void write_pages(const KvPages& pages,
                 const at::Tensor& k_BGTK,
                 const at::Tensor& v_BGTK,
                 const at::Tensor& table_BW,
                 const at::Tensor& first_B);

/// The window of a query at `position`: args.window, or what args.chunk leaves of it; 0: none.
std::int64_t window_at(const AttentionArgs& args, std::int64_t position);

/// Copies whole pages: `copies_M2` has rows of source and target, int64 in host memory.
void copy_pages(const KvPages& pages, const at::Tensor& copies_M2);

/// Returns the attention [B, H, 1, K] of one query per sequence, at position lengths_B - 1, to the
/// lengths_B tokens of its pages. `args` gives scale, window, chunk, softcap, ALiBi and bias; it
/// must be causal and have neither a mask nor dropout. A bias [H, 1, S] has the keys of the longest
/// sequence, and depends only on distances: a shorter sequence uses its end. On a CPU, the bits are
/// those of attention() for the same keys and values in contiguous memory.
at::Tensor paged_attention(const at::Tensor& q_BH1K,
                           const KvPages& pages,
                           const at::Tensor& table_BW,
                           const at::Tensor& lengths_B,
                           const AttentionArgs& args);

}  // namespace tessera::ops
