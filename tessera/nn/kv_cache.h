// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens that a block has seen. Lives in StepContext::state, never in a
// block.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// Legend: B batch, H heads, S tokens seen, K channels of a head. Not differentiable.
class KvCache {
 public:
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Puts T tokens at `position` (everything from there on is forgotten) into memory for at least
  /// `capacity` tokens; a longer text doubles it. Error{Bug} where tokens between length() and
  /// `position` are missing.
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
