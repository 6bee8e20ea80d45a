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
  /// Sample b goes on from what sample `rows`[b] has seen: int64 [B]. Copies the cache.
  void select(const at::Tensor& rows_B);

 private:
  at::Tensor keys_, values_;
  std::int64_t length_ = 0;
};

/// The caches of texts that differ in length, each of one sample, by the number of the text.
struct KvCaches {
  std::vector<KvCache> texts;
  KvCache& of(std::size_t text) {
    if (texts.size() <= text) texts.resize(text + 1);
    return texts[text];
  }
};

// Tensors of a batch in Prefill and Decode, int64 [B].
/// Where the rows are texts that differ in length: the number of the cache that each has, and the
/// position of its first token of the flow; StepContext::position is then the largest of these.
inline constexpr const char* kTextNumber = "text_number";
inline constexpr const char* kTextPosition = "text_position";
/// Where beams change places: the row of the cache that each row goes on from.
inline constexpr const char* kCacheRow = "cache_row";

struct TextRow {
  std::size_t text = 0;
  std::int64_t position = 0;
};
/// Of kTextNumber and kTextPosition; empty where all texts are of one length.
std::vector<TextRow> text_rows(const Batch& batch);

}  // namespace tessera::nn
