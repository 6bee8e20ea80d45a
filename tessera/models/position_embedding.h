// SPDX-License-Identifier: Apache-2.0
// Learned positions: a table row for each token's position in its sequence.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {

struct PositionSpec {
  std::string name;  ///< of the table, global: "wpe.weight"
  std::int64_t max_positions = 0;
  std::int64_t hidden_size = 0;
  std::int64_t offset = 0;  ///< row of the first position
  /// A token's position is the number of non-padding tokens before it, which differs from its index
  /// in the sample if padding precedes it. Padding has the row before the first position, so that
  /// `offset` must be positive.
  bool skip_padding = false;
  Init init;
};

class PositionEmbedding {
 public:
  explicit PositionEmbedding(PositionSpec spec) : spec_(std::move(spec)) {}
  /// Declares `name` [offset + max_positions, hidden_size].
  void declare(nn::Params& params);
  /// The rows for this rank's tokens, [B, T, C]. Reads "input_ids", "attention_mask" and
  /// "document_starts" of the batch. Throws Error{Shape} for more than max_positions tokens.
  [[nodiscard]] at::Tensor operator()(const nn::Batch& batch, nn::StepContext& context) const;
  /// Returns the positions of another sequence without padding, ids [B, T], such as an answer.
  [[nodiscard]] at::Tensor of(const at::Tensor& ids_BT, nn::StepContext& context) const;
  /// Returns the positions of all tokens of a sequence on every rank, for nn::take_tokens(), such
  /// as those of an image. Of `ids_BS`, int64, only the shape is read.
  [[nodiscard]] at::Tensor of_all(const at::Tensor& ids_BS, nn::StepContext& context) const;

 private:
  PositionSpec spec_;
  Param* table_ = nullptr;
};

}  // namespace tessera::models
