// SPDX-License-Identifier: Apache-2.0
// The KV cache of a block: keys and values of the tokens it has seen. It lives in
// StepContext::state, never in the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Legend: B batch, H heads, S tokens seen, K channels of a head. Not differentiable.
class KvCache {
 public:
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Writes T tokens at `position` and forgets everything from there on. The memory holds at least
  /// `capacity` tokens and is doubled when a sequence outgrows it. Throws Error{Bug} if tokens
  /// between length() and `position` are missing.
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

/// The caches of sequences of different lengths, by the number of the sequence; each has one
/// sample.
struct KvCaches {
  std::vector<KvCache> texts;
  KvCache& of(std::size_t text) {
    if (texts.size() <= text) texts.resize(text + 1);
    return texts[text];
  }
};

// Tensors of a batch in Prefill and Decode, int64 [B].
/// If rows are sequences of different lengths: the number of each row's cache, and the position of
/// its first token in the flow; StepContext::position is then the largest of these.
inline constexpr const char* kTextNumber = "text_number";
inline constexpr const char* kTextPosition = "text_position";
/// If rows are reordered, repeated or removed: the row of the cache that each row continues.
inline constexpr const char* kCacheRow = "cache_row";

class StepContext;
/// Writes keys and values [B, G, T, K] of tokens from position 0 on into the cache of `block`, for
/// tokens that attention() reads later. In Prefill only, for tokens that also see later tokens.
void fill_cache(const at::Tensor& k, const at::Tensor& v, const Block& block, StepContext& context);

struct TextRow {
  std::size_t text = 0;
  std::int64_t position = 0;
};
/// Returns the rows from kTextNumber and kTextPosition; empty if all sequences have the same
/// length.
std::vector<TextRow> text_rows(const Batch& batch);

}  // namespace tessera::nn
