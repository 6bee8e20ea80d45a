// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <numeric>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/transport.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct AttentionNode : torch::autograd::Function<AttentionNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const std::optional<at::Tensor>& bias,
                            ops::AttentionArgs args) {
    args.bias_HTS = bias ? *bias : at::Tensor();
    // A rank of a grid may have no samples.
    const ops::AttentionOut out =
        q.size(0) == 0 ? ops::AttentionOut{at::empty_like(q), q} : ops::attention(q, k, v, args);
    save(node, {q, k, v, out.y_BHTK, out.saved, std::move(args.bias_HTS)});
    args.bias_HTS = at::Tensor();
    keep(node, std::move(args));
    return out.y_BHTK;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& bias = saved[5];
    if (saved[0].size(0) == 0) {
      return {at::empty_like(saved[0]),
              at::empty_like(saved[1]),
              at::empty_like(saved[2]),
              bias.defined() ? at::zeros_like(bias) : at::Tensor(),
              {}};
    }
    ops::AttentionArgs args = kept<ops::AttentionArgs>(node);
    args.bias_HTS = bias;
    const ops::AttentionGrads d =
        ops::attention_backward(grads[0], saved[0], saved[1], saved[2], {saved[3], saved[4]}, args);
    return {d.dq_BHTK, d.dk_BGSK, d.dv_BGSK, d.dbias_HTS, {}};
  }
};

using Attend = at::Tensor (*)(const std::vector<at::Tensor>& inputs,
                              const ops::AttentionArgs& args,
                              StepContext& context);

/// Computes attention of the inputs q, k, v and optionally a bias.
at::Tensor attend_here(const std::vector<at::Tensor>& inputs,
                       const ops::AttentionArgs& args,
                       StepContext& /*context*/) {
  const std::optional<at::Tensor> bias =
      inputs.size() > 3 ? std::optional(inputs[3]) : std::nullopt;
  return detail::apply<AttentionNode>(inputs[0], inputs[1], inputs[2], bias, args);
}

at::Tensor attend_in_ring(const std::vector<at::Tensor>& inputs,
                          const ops::AttentionArgs& args,
                          StepContext& context) {
  const std::optional<at::Tensor> bias =
      inputs.size() > 3 ? std::optional(inputs[3]) : std::nullopt;
  return ring_attention(inputs[0], inputs[1], inputs[2], bias, args, context);
}

at::Tensor in_region(Attend attend,
                     std::vector<at::Tensor> inputs,
                     ops::AttentionArgs args,
                     StepContext& context) {
  if (args.bias_HTS.defined()) inputs.push_back(std::exchange(args.bias_HTS, at::Tensor()));
  return context.region(
      "attention",
      [attend, args = std::move(args), &context](const std::vector<at::Tensor>& in) {
        return attend(in, args, context);
      },
      inputs);
}

/// Attention over all tokens for this rank's share of the heads.
at::Tensor attend_exchanged(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            ops::AttentionArgs args,
                            StepContext& context) {
  std::vector<at::Tensor> qkv;
  if (k.size(1) == q.size(1)) {
    qkv = tokens_to_heads(at::cat({q, k, v}), context).chunk(3);
  } else {
    // If there are fewer heads of keys and values than ranks, some ranks have the same ones.
    const std::int64_t shared = k.size(1), ranks = context.context_parallel->group->size();
    at::Tensor kv = at::cat({k, v});
    if (shared % ranks != 0) kv = kv.repeat_interleave(std::lcm(shared, ranks) / shared, 1);
    qkv = tokens_to_heads(kv, context).chunk(2);
    qkv.insert(qkv.begin(), tokens_to_heads(q, context));
  }
  args.first_head += context.context_parallel->group->index * qkv[0].size(1);
  return heads_to_tokens(in_region(attend_here, qkv, std::move(args), context), context);
}

/// Attention with a paged cache: of whole prompts, or of one token of each sequence.
at::Tensor attend_in_pages(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           ops::AttentionArgs args,
                           const Block& block,
                           StepContext& context) {
  const Batch& batch = *context.batch;
  auto& cache = context.state<PagedKvCache>(block);
  cache.write(k, v, batch, context.cache_capacity);
  if (context.mode() == Mode::Prefill)
    return in_region(attend_here, {q, k, v}, std::move(args), context);
  return ops::paged_attention(q,
                              cache.pages(),
                              batch.tensor(kPageTable).cpu().contiguous(),
                              first_positions(batch) + 1,
                              args);
}

}  // namespace

at::Tensor attention(const at::Tensor& q,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     ops::AttentionArgs args,
                     const Block& block,
                     StepContext& context) {
  if (context.on_grid()) grid::cut_attention(args, context);
  // A rank of a grid may have no samples; then none of the ranks that share its tokens has any.
  if (context.shares_tokens() && q.size(0) > 0) {
    return context.context_parallel->mode == ContextMode::Ring
               ? in_region(attend_in_ring, {q, k, v}, std::move(args), context)
               : attend_exchanged(q, k, v, std::move(args), context);
  }
  std::vector<at::Tensor> inputs = {q, k, v};
  if (args.causal && (context.mode() == Mode::Prefill || context.mode() == Mode::Decode)) {
    if (is_paged(context.batch)) return attend_in_pages(q, k, v, std::move(args), block, context);
    auto& cache = context.state<KvCache>(block);
    if (context.batch != nullptr && context.batch->has(kCacheRow))
      cache.select(context.batch->tensor(kCacheRow));
    cache.write(context.position, k, v, context.cache_capacity);
    inputs = {q, cache.keys(), cache.values()};
    args.query_offset = context.position;
  }
  return in_region(attend_here, inputs, std::move(args), context);
}

void fill_cache(const at::Tensor& k,
                const at::Tensor& v,
                const Block& block,
                StepContext& context) {
  TESSERA_ASSERT(context.mode() == Mode::Prefill && context.position == 0);
  if (is_paged(context.batch)) {
    context.state<PagedKvCache>(block).write(k, v, *context.batch, context.cache_capacity);
    return;
  }
  context.state<KvCache>(block).write(0, k, v, context.cache_capacity);
}

at::Tensor cross_attention(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           ops::AttentionArgs args,
                           StepContext& context) {
  TESSERA_REQUIRE(
      !context.on_grid(),
      Unsupported,
      "attention to another text, of block " + context.block_name + ", on a grid of ranks",
      "set parallel.tensor.mode to 1d");
  if (!context.shares_tokens()) return in_region(attend_here, {q, k, v}, std::move(args), context);
  const std::vector<at::Tensor> kv = keys_of_all_ranks(at::cat({k, v}), context).chunk(2);
  if (args.dropout.active()) {
    const std::int64_t ranks = context.context_parallel->group->size();
    const std::vector<std::int64_t> chunks = own_chunks(context);
    const std::int64_t each = q.size(2) / std::ssize(chunks), keys = kv[0].size(2);
    ops::AttentionPlace place{.tokens = q.size(2) * ranks, .keys = {{0, keys}}, .of_keys = keys};
    for (const std::int64_t chunk : chunks)
      place.queries.push_back({chunk * each, (chunk + 1) * each});
    args.place = std::move(place);
  }
  return in_region(attend_here, {q, kv[0], kv[1]}, std::move(args), context);
}

}  // namespace tessera::nn
