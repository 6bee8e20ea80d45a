// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/position_embedding.h"

#include <ATen/ATen.h>

#include "tessera/models/self_attention.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens of this rank, S all tokens, C embed.
namespace tessera::models {

using enum LogicalAxis;

namespace {

/// The number of padding tokens before each token, within its document: [B, T].
at::Tensor padding_before(const nn::Batch& batch, const nn::StepContext& context) {
  const at::Tensor masked_BS = batch.tensor("attention_mask").eq(0).to(at::kLong);
  at::Tensor padding_BS = at::cumsum(masked_BS, 1);
  const at::Tensor starts_BS = document_starts(batch);
  if (starts_BS.defined()) {
    // Padding before the first token of the document.
    const at::Tensor before_BS = padding_BS - masked_BS;
    padding_BS = padding_BS - at::gather(before_BS, 1, starts_BS);
  }
  if (context.shares_tokens()) return nn::own_tokens(padding_BS, *context.context_parallel);
  // With a KV cache the mask also covers the cached tokens.
  const std::int64_t tokens = batch.tensor("input_ids").size(1);
  return padding_BS.narrow(1, padding_BS.size(1) - tokens, tokens);
}

}  // namespace

void PositionEmbedding::declare(nn::Params& params) {
  table_ = params.add(spec_.name,
                      {spec_.offset + spec_.max_positions, spec_.hidden_size},
                      {None, Embed},
                      spec_.init,
                      {.without_prefix = true, .role = Role::PositionTable});
}

at::Tensor PositionEmbedding::operator()(const nn::Batch& batch, nn::StepContext& context) const {
  at::Tensor rows_BT = nn::positions(
      batch.tensor("input_ids"), spec_.max_positions, context, document_starts(batch));
  if (spec_.skip_padding && batch.has("attention_mask"))
    rows_BT = (rows_BT - padding_before(batch, context)).clamp_min(0);
  if (spec_.offset > 0) rows_BT = rows_BT + spec_.offset;
  return nn::embedding(rows_BT, *table_, context);
}

at::Tensor PositionEmbedding::of(const at::Tensor& ids_BT, nn::StepContext& context) const {
  at::Tensor rows_BT = nn::positions(ids_BT, spec_.max_positions, context);
  if (spec_.offset > 0) rows_BT = rows_BT + spec_.offset;
  return nn::embedding(rows_BT, *table_, context);
}

}  // namespace tessera::models
