// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/position_embedding.h"

#include <ATen/ATen.h>

#include "tessera/models/self_attention.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/tensor/upload.h"

// Legend: B batch, T tokens of this rank, S all tokens, C embed.
namespace tessera::models {

using enum LogicalAxis;

namespace {

/// Takes the columns of this rank's tokens, or, with a KV cache, of the tokens that are not cached.
at::Tensor own_columns(const at::Tensor& of_BS,
                       const nn::Batch& batch,
                       const nn::StepContext& context) {
  if (context.shares_tokens()) return nn::own_tokens(of_BS, *context.context_parallel);
  const std::int64_t tokens = batch.tensor("input_ids").size(1);
  return of_BS.narrow(1, of_BS.size(1) - tokens, tokens);
}

/// The values on the host, which knows those of a batch without a wait; x itself on meta.
at::Tensor on_host(const at::Tensor& x) {
  return x.defined() && !x.is_meta() ? host_values(x) : x;
}

/// Returns the positions without the padding before them within their document, -1 for padding:
/// [B, T], as `rows_BT`, which are on the host or on meta.
at::Tensor without_padding(const at::Tensor& rows_BT,
                           const nn::Batch& batch,
                           const nn::StepContext& context) {
  const at::Tensor masked_BS = on_host(batch.tensor("attention_mask")).eq(0).to(at::kLong);
  at::Tensor padding_BS = at::cumsum(masked_BS, 1);
  const at::Tensor starts_BS = on_host(document_starts(batch));
  if (starts_BS.defined()) {
    // Padding before the first token of the document.
    const at::Tensor before_BS = padding_BS - masked_BS;
    padding_BS = padding_BS - at::gather(before_BS, 1, starts_BS);
  }
  const at::Tensor masked_BT = own_columns(masked_BS, batch, context);
  return at::where(masked_BT.ne(0),
                   at::full({}, -1, rows_BT.options()),
                   rows_BT - own_columns(padding_BS, batch, context));
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
  const at::Tensor positions_BT = nn::positions(
      batch.tensor("input_ids"), spec_.max_positions, context, document_starts(batch));
  const bool skips = spec_.skip_padding && batch.has("attention_mask");
  if (!skips && spec_.offset == 0) return nn::embedding(positions_BT, *table_, context);
  // Rows of a device are computed on the host, so that layers can check them without a wait.
  at::Tensor rows_BT = on_host(positions_BT);
  if (skips) rows_BT = without_padding(rows_BT, batch, context);
  if (spec_.offset > 0) rows_BT = rows_BT + spec_.offset;
  return nn::embedding(on_device(rows_BT.contiguous(), positions_BT.device()), *table_, context);
}

at::Tensor PositionEmbedding::of(const at::Tensor& ids_BT, nn::StepContext& context) const {
  const at::Tensor rows_BT = nn::positions(ids_BT, spec_.max_positions, context);
  if (spec_.offset == 0) return nn::embedding(rows_BT, *table_, context);
  const at::Tensor moved_BT = (on_host(rows_BT) + spec_.offset).contiguous();
  return nn::embedding(on_device(moved_BT, rows_BT.device()), *table_, context);
}

at::Tensor PositionEmbedding::of_all(const at::Tensor& ids_BS, nn::StepContext& context) const {
  const bool uploads = !ids_BS.is_meta();
  const at::Tensor rows_BS =
      at::arange(spec_.offset,
                 spec_.offset + ids_BS.size(1),
                 uploads ? ids_BS.options().device(at::kCPU) : ids_BS.options())
          .expand_as(ids_BS);
  return nn::whole_embedding(
      uploads ? on_device(rows_BS.contiguous(), ids_BS.device()) : rows_BS, *table_, context);
}

}  // namespace tessera::models
