// SPDX-License-Identifier: Apache-2.0
// The KV cache of a block: keys and values of the tokens it has seen, of sequences of one length or
// in pages. It lives in StepContext::state, never in the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/cache_form.h"
#include "tessera/ops/paged_attention.h"

namespace tessera::nn {

/// Legend: B batch, H heads, S tokens seen, K channels of a head. Not differentiable.
class KvCache {
 public:
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Writes T tokens at `position` and forgets everything from there on. The memory holds at least
  /// `capacity` tokens and is doubled when a sequence outgrows it. Values may be undefined: then
  /// values() are the keys (latent attention). Throws Error{Bug} if tokens between length() and
  /// `position` are missing.
  void write(std::int64_t position,
             const at::Tensor& k_BHTK,
             const at::Tensor& v_BHTK,
             std::int64_t capacity);
  [[nodiscard]] at::Tensor keys() const;  ///< [B, H, S, K], a view
  [[nodiscard]] at::Tensor values() const;
  /// Lets sample b continue from the cache of sample `rows_B[b]`: int64 [B]; B may be another
  /// number of samples than before. Copies the cache unless each continues its own.
  void select(const at::Tensor& rows_B);

 private:
  at::Tensor keys_, values_;
  std::int64_t length_ = 0;
};

/// Keys and values of many sequences in pages of kPageTokens tokens (ops/paged_attention.h). Which
/// pages a sequence has is decided for all blocks at once (nn/page_tables.h), and comes with every
/// batch. Not differentiable.
class PagedKvCache {
 public:
  /// Writes the tokens of each row at the positions that the batch says, after copying the pages
  /// that it says. Values may be undefined, as in KvCache. The memory holds at least `capacity`
  /// tokens and is doubled when there are more pages.
  void write(const at::Tensor& k_BHTK,
             const at::Tensor& v_BHTK,
             const Batch& batch,
             std::int64_t capacity);
  [[nodiscard]] const ops::KvPages& pages() const { return pages_; }

 private:
  ops::KvPages pages_;
};
inline constexpr std::int64_t kPageTokens = 16;

// Tensors of a batch in Prefill and Decode, int64 [B] unless stated otherwise.
/// The position of each row's first token in the flow. The batch has it if rows are sequences of
/// different lengths; StepContext::position is then the largest of these.
inline constexpr const char* kTextPosition = "text_position";
/// The pages of each row in the order of positions, [B, W]. The batch has them if caches are paged;
/// Decode then has kTextPosition, and Prefill begins at position 0.
inline constexpr const char* kPageTable = "page_table";
/// The CacheForm of the pages, a single number; absent: CacheForm::Same.
inline constexpr const char* kPageForm = "page_form";
/// Pages that are copied before anything is written: [M, 2], source and target of each.
inline constexpr const char* kPageCopies = "page_copies";
/// The number under which each row keeps its encoder's output. The batch has it if rows of
/// different lengths have one.
inline constexpr const char* kTextNumber = "text_number";
/// If rows are reordered, repeated or removed: the row of the cache that each row continues.
inline constexpr const char* kCacheRow = "cache_row";

class StepContext;
/// Writes keys and values [B, G, T, K] of tokens from position 0 on into the cache of `block`, for
/// tokens that attention() reads later. Values may be undefined, as in KvCache. In Prefill only,
/// for tokens that also see later tokens, or whose own attention uses other keys.
void fill_cache(const at::Tensor& k, const at::Tensor& v, const Block& block, StepContext& context);

/// Returns true if the batch says which pages its rows have.
bool is_paged(const Batch* batch);
/// Returns the numbers of kTextNumber; empty if the batch has none.
std::vector<std::size_t> text_numbers(const Batch& batch);
/// Returns the position of each row's first token of a paged batch, int64 [B] in host memory.
at::Tensor first_positions(const Batch& batch);

}  // namespace tessera::nn
