// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/attention_source.h"

#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/transport.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/tensor/upload.h"

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
at::Tensor attend_plainly(const std::vector<at::Tensor>& inputs,
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

/// Exchanges this rank's tokens for its share of the heads, with all tokens.
std::vector<at::Tensor> exchanged(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  ops::AttentionArgs& args,
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
  return qkv;
}

/// All tokens are here.
class Here final : public TokenSource {
 public:
  [[nodiscard]] std::int64_t ranks(const StepContext& /*context*/) const override { return 1; }
  [[nodiscard]] at::Tensor attend(std::vector<at::Tensor> qkv,
                                  ops::AttentionArgs args,
                                  const Block& /*block*/,
                                  StepContext& context) const override {
    return attend_here(std::move(qkv), std::move(args), context);
  }
  [[nodiscard]] at::Tensor attend_padded(std::vector<at::Tensor> qkv,
                                         ops::AttentionArgs args,
                                         std::int64_t tokens,
                                         StepContext& context) const override {
    return attend_to_some(std::move(qkv), std::move(args), tokens, context);
  }
  [[nodiscard]] SharedTokens with_all_keys(std::vector<at::Tensor> qkv,
                                           ops::AttentionArgs& /*args*/,
                                           StepContext& /*context*/) const override {
    const std::int64_t tokens = qkv[0].size(2);
    return {std::move(qkv), {{0, tokens}}};
  }
  [[nodiscard]] at::Tensor to_own_tokens(const at::Tensor& y,
                                         StepContext& /*context*/) const override {
    return y;
  }

  /// Attention of the first `tokens` tokens; the result for the others is 0.
  static at::Tensor attend_to_some(std::vector<at::Tensor> qkv,
                                   ops::AttentionArgs args,
                                   std::int64_t tokens,
                                   StepContext& context) {
    const std::int64_t padding = qkv[0].size(2) - tokens;
    for (at::Tensor& x : qkv)
      x = x.narrow(2, 0, tokens);
    if (args.bias_HTS.defined())
      args.bias_HTS = args.bias_HTS.narrow(1, 0, tokens).narrow(2, 0, tokens).contiguous();
    return at::constant_pad_nd(attend_here(std::move(qkv), std::move(args), context),
                               {0, 0, 0, padding});
  }
};

/// Keys and values pass through the ranks in a ring.
class Ring final : public TokenSource {
 public:
  [[nodiscard]] std::int64_t ranks(const StepContext& context) const override {
    return context.context_parallel->group->size();
  }
  [[nodiscard]] at::Tensor attend(std::vector<at::Tensor> qkv,
                                  ops::AttentionArgs args,
                                  const Block& /*block*/,
                                  StepContext& context) const override {
    return in_region(attend_in_ring, std::move(qkv), std::move(args), context);
  }
  [[nodiscard]] at::Tensor attend_padded(std::vector<at::Tensor> qkv,
                                         ops::AttentionArgs args,
                                         std::int64_t tokens,
                                         StepContext& context) const override {
    args.place = ops::AttentionPlace{.tokens = tokens};
    return in_region(attend_in_ring, std::move(qkv), std::move(args), context);
  }
  [[nodiscard]] SharedTokens with_all_keys(std::vector<at::Tensor> qkv,
                                           ops::AttentionArgs& /*args*/,
                                           StepContext& context) const override {
    SharedTokens out;
    out.qkv = keys_of_all_ranks(at::cat({qkv[1], qkv[2]}), context).chunk(2);
    out.qkv.insert(out.qkv.begin(), qkv[0]);
    const std::vector<std::int64_t> chunks = own_chunks(context);
    const std::int64_t each = qkv[0].size(2) / std::ssize(chunks);
    for (const std::int64_t chunk : chunks)
      out.queries.push_back({chunk * each, (chunk + 1) * each});
    return out;
  }
  [[nodiscard]] at::Tensor to_own_tokens(const at::Tensor& y,
                                         StepContext& /*context*/) const override {
    return y;
  }
};

/// Ranks exchange their tokens for a share of the heads with all tokens (Ulysses).
class Exchange final : public TokenSource {
 public:
  [[nodiscard]] std::int64_t ranks(const StepContext& context) const override {
    return context.context_parallel->group->size();
  }
  [[nodiscard]] at::Tensor attend(std::vector<at::Tensor> qkv,
                                  ops::AttentionArgs args,
                                  const Block& /*block*/,
                                  StepContext& context) const override {
    std::vector<at::Tensor> own = exchanged(qkv[0], qkv[1], qkv[2], args, context);
    return heads_to_tokens(attend_here(std::move(own), std::move(args), context), context);
  }
  [[nodiscard]] at::Tensor attend_padded(std::vector<at::Tensor> qkv,
                                         ops::AttentionArgs args,
                                         std::int64_t tokens,
                                         StepContext& context) const override {
    std::vector<at::Tensor> own = exchanged(qkv[0], qkv[1], qkv[2], args, context);
    return heads_to_tokens(Here::attend_to_some(std::move(own), std::move(args), tokens, context),
                           context);
  }
  [[nodiscard]] SharedTokens with_all_keys(std::vector<at::Tensor> qkv,
                                           ops::AttentionArgs& args,
                                           StepContext& context) const override {
    std::vector<at::Tensor> own = exchanged(qkv[0], qkv[1], qkv[2], args, context);
    const std::int64_t tokens = own[0].size(2);
    return {std::move(own), {{0, tokens}}};
  }
  [[nodiscard]] at::Tensor to_own_tokens(const at::Tensor& y, StepContext& context) const override {
    return heads_to_tokens(y, context);
  }
};

/// Generation: the tokens before are in the cache of the block.
class Cache final : public AttentionSource {
 public:
  [[nodiscard]] at::Tensor attend(std::vector<at::Tensor> qkv,
                                  ops::AttentionArgs args,
                                  const Block& block,
                                  StepContext& context) const override {
    auto& cache = context.state<KvCache>(block);
    if (context.batch != nullptr && context.batch->has(kCacheRow))
      cache.select(context.batch->tensor(kCacheRow));
    cache.write(context.position, qkv[1], qkv[2], context.cache_capacity);
    args.query_offset = context.position;
    return attend_here({qkv[0], cache.keys(), cache.values()}, std::move(args), context);
  }
};

/// The same with a paged cache: of whole prompts, or of one token of each sequence.
class Pages final : public AttentionSource {
 public:
  [[nodiscard]] at::Tensor attend(std::vector<at::Tensor> qkv,
                                  ops::AttentionArgs args,
                                  const Block& block,
                                  StepContext& context) const override {
    const Batch& batch = *context.batch;
    auto& cache = context.state<PagedKvCache>(block);
    cache.write(qkv[1], qkv[2], batch, context.cache_capacity);
    if (context.mode() == Mode::Prefill)
      return attend_here(std::move(qkv), std::move(args), context);
    return ops::paged_attention(qkv[0],
                                cache.pages(),
                                host_values(batch.tensor(kPageTable)).contiguous(),
                                first_positions(batch) + 1,
                                args);
  }
};

}  // namespace

at::Tensor attend_here(std::vector<at::Tensor> qkv, ops::AttentionArgs args, StepContext& context) {
  return in_region(attend_plainly, std::move(qkv), std::move(args), context);
}

const TokenSource& token_source(const at::Tensor& q, const StepContext& context) {
  static const Here here;
  static const Ring ring;
  static const Exchange exchange;
  if (!context.shares_tokens() || q.size(0) == 0) return here;
  if (context.context_parallel->mode == ContextMode::Ring) return ring;
  return exchange;
}

const AttentionSource& attention_source(const at::Tensor& q,
                                        const ops::AttentionArgs& args,
                                        const StepContext& context) {
  static const Cache cache;
  static const Pages pages;
  const bool generates = context.mode() == Mode::Prefill || context.mode() == Mode::Decode;
  if (!args.causal || !generates) return token_source(q, context);
  if (is_paged(context.batch)) return pages;
  return cache;
}

}  // namespace tessera::nn
