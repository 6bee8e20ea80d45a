// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/context_parallel/context_parallel.h"

#include <numeric>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/block.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/step_context.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {

std::int64_t num_chunks(ContextMode mode, std::int64_t ranks) {
  return mode == ContextMode::Ring ? 2 * ranks : ranks;
}

std::vector<std::int64_t> chunks_of(ContextMode mode, std::int64_t ranks, std::int64_t index) {
  if (mode == ContextMode::Ulysses) return {index};
  return {index, 2 * ranks - 1 - index};
}

at::Tensor own_tokens(const at::Tensor& x_BT, const ContextParallel& context) {
  const std::int64_t ranks = context.group->size(), chunks = num_chunks(context.mode, ranks);
  TESSERA_REQUIRE(
      x_BT.dim() >= 2 && x_BT.size(1) % chunks == 0,
      Shape,
      fmt::format("{} tokens cannot be cut into {} chunks for {} context-parallel ranks",
                  x_BT.dim() >= 2 ? x_BT.size(1) : 0,
                  chunks,
                  ranks),
      fmt::format("choose a sequence length that is a multiple of {}", chunks));
  const std::int64_t size = x_BT.size(1) / chunks;
  std::vector<at::Tensor> own;
  for (const std::int64_t chunk : chunks_of(context.mode, ranks, context.group->index))
    own.push_back(x_BT.narrow(1, chunk * size, size));
  return at::cat(own, 1);
}

Batch own_tokens(const Batch& batch, const ContextParallel& context, const Objective* objective) {
  const bool whole_labels = objective != nullptr && objective->reads_whole_samples();
  Batch out = batch;
  for (const char* const name : {"input_ids", "token_type_ids", "decoder_input_ids"}) {
    if (batch.has(name)) out.set(name, own_tokens(batch.tensor(name), context));
  }
  if (batch.has("labels") && !whole_labels)
    out.set("labels", own_tokens(batch.tensor("labels"), context));
  return out;
}

at::Tensor all_tokens(const at::Tensor& own_BT, const ContextParallel& context) {
  const std::int64_t ranks = context.group->size(), chunks = num_chunks(context.mode, ranks),
                     each = chunks / ranks, size = own_BT.size(1) / each;
  const at::Tensor own = own_BT.contiguous();
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  const at::Tensor all = at::empty(sizes, own.options());
  if (own.numel() > 0) {
    const comm::WorkPtr work = context.world->transport().all_gather(
        *context.group, span_of(own), span_of(all), TESSERA_HERE("all tokens"));
    work->wait();
    work->wait_reusable();
  }
  std::vector<at::Tensor> in_order(static_cast<std::size_t>(chunks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t place = 0;
    for (const std::int64_t chunk : chunks_of(context.mode, ranks, rank))
      in_order[static_cast<std::size_t>(chunk)] = all[rank].narrow(1, size * place++, size);
  }
  return at::cat(in_order, 1);
}

std::vector<std::int64_t> own_chunks(const StepContext& context) {
  if (!context.shares_tokens()) return {};
  const ContextParallel& with = *context.context_parallel;
  return chunks_of(with.mode, with.group->size(), with.group->index);
}

std::vector<std::int64_t> parts_of_sample(const StepContext& context) {
  const bool shared = context.shares_tokens();
  if (!shared && !context.cuts_tokens()) return {};
  const std::vector<std::int64_t> chunks =
      shared ? own_chunks(context) : std::vector<std::int64_t>{0};
  const std::int64_t shares = context.cuts_tokens() ? context.tensor->group->size() : 1,
                     share = context.cuts_tokens() ? context.tensor->group->index : 0;
  // Neither a chunk's bounds nor a share's bounds split a unit.
  const std::int64_t units = std::lcm(std::ssize(chunks), shares);
  const std::int64_t of_chunk = units / std::ssize(chunks), of_share = units / shares;
  std::vector<std::int64_t> parts;
  for (std::int64_t unit = share * of_share; unit < (share + 1) * of_share; ++unit) {
    parts.push_back(chunks[static_cast<std::size_t>(unit / of_chunk)] * of_chunk + unit % of_chunk);
  }
  return parts;
}

at::Tensor positions(const at::Tensor& ids_BT,
                     std::int64_t most,
                     const StepContext& context,
                     const at::Tensor& starts_BT) {
  const bool shared = context.shares_tokens();
  const std::int64_t length =
      ids_BT.size(1) * (shared ? context.context_parallel->group->size() : 1);
  const std::int64_t first = context.position, last = first + length;
  TESSERA_REQUIRE(last <= most,
                  Shape,
                  fmt::format("{} tokens are more than the model has positions ({})", last, most),
                  fmt::format("give it at most {} tokens at a time", most));
  // Those of a device are computed on the host, so that layers can check them without a wait.
  const bool uploads = !ids_BT.is_cpu() && !ids_BT.is_meta();
  const auto here = [&](const at::Tensor& x) { return uploads ? host_values(x) : x; };
  at::Tensor all =
      at::arange(first, last, uploads ? ids_BT.options().device(at::kCPU) : ids_BT.options())
          .unsqueeze(0);
  if (context.batch != nullptr && context.batch->has(kTextPosition))
    all = here(context.batch->tensor(kTextPosition)).unsqueeze(1) + (all - first);
  if (starts_BT.defined()) all = all - here(starts_BT);
  if (shared) all = own_tokens(all, *context.context_parallel);
  all = all.expand_as(ids_BT);
  return uploads ? on_device(all.contiguous(), ids_BT.device()) : all;
}

}  // namespace tessera::nn
