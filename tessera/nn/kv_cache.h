// SPDX-License-Identifier: Apache-2.0
// The KV cache of a block: keys and values of the tokens it has seen. It lives in
// StepContext::state, never in the block.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

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

 private:
  at::Tensor keys_, values_;
  std::int64_t length_ = 0;
};

}  // namespace tessera::nn
