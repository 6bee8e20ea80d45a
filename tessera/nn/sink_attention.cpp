// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/sink_attention.h"

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/ops/attention_sinks.h"
#include "tessera/ops/paged_attention.h"

// Legend: B samples, H heads, G heads of keys and values, T queries, S keys, K channels of a head.
namespace tessera::nn {
namespace {

using namespace detail;

/// The values of a vector in fp32, whose gradient becomes the parameter's.
struct ValuesNode : torch::autograd::Function<ValuesNode> {
  struct Use {
    const Param* vector;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node, const at::Tensor& vector, Use use) {
    keep(node, use);
    // A copy, because the result of a node must not be its input.
    return vector.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).view({-1});
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use use = kept<Use>(node);
    if (node->needs_input_grad(0)) {
      weight_gradient(*use.context, [grad = grads[0], use] { use.vector->grad().write(grad); });
    }
    return {{}, {}};
  }
};

struct SinkNode : torch::autograd::Function<SinkNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const at::Tensor& sinks_H,
                            ops::AttentionArgs args) {
    const ops::AttentionOut out = ops::with_sinks(ops::attention(q, k, v, args), sinks_H);
    save(node, {q, k, v, sinks_H, out.y_BHTK, out.saved});
    keep(node, std::move(args));
    return out.y_BHTK;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const ops::AttentionOut out = {saved[4], saved[5]};
    const ops::AttentionGrads d = ops::attention_backward(
        grads[0], saved[0], saved[1], saved[2], out, kept<ops::AttentionArgs>(node));
    return {d.dq_BHTK, d.dk_BGSK, d.dv_BGSK, ops::sinks_grad(grads[0], out, saved[3]), {}};
  }
};

at::Tensor attend(std::vector<at::Tensor> inputs, ops::AttentionArgs args, StepContext& context) {
  return context.region(
      "attention",
      [args = std::move(args)](const std::vector<at::Tensor>& in) {
        return detail::apply<SinkNode>(in.at(0), in.at(1), in.at(2), in.at(3), args);
      },
      inputs);
}

/// The keys or values of a sequence of `length` tokens, from its pages: [1, G, length, K].
at::Tensor gathered(const at::Tensor& of_PGNK,
                    const at::Tensor& scales_PGN,
                    const at::Tensor& pages_W,
                    std::int64_t length,
                    at::ScalarType dtype) {
  at::Tensor x = of_PGNK.index_select(0, pages_W);
  if (scales_PGN.defined()) x = x.to(at::kFloat) * scales_PGN.index_select(0, pages_W).unsqueeze(3);
  return x.transpose(0, 1).flatten(1, 2).narrow(1, 0, length).unsqueeze(0).to(dtype);
}

/// One query of each sequence, at its own position.
at::Tensor attend_to_pages(const at::Tensor& q_BH1K,
                           const ops::KvPages& pages,
                           const at::Tensor& sinks_H,
                           const ops::AttentionArgs& args,
                           StepContext& context) {
  const at::Tensor table_BW = context.batch->tensor(kPageTable).cpu(),
                   lengths_B = first_positions(*context.batch) + 1;
  const std::int64_t N = pages.page_tokens();
  std::vector<at::Tensor> out;
  for (std::int64_t b = 0; b < q_BH1K.size(0); ++b) {
    const auto length = lengths_B[b].item<std::int64_t>();
    const at::Tensor used =
        table_BW[b].narrow(0, 0, (length + N - 1) / N).to(pages.keys_PGNK.device());
    ops::AttentionArgs own = args;
    own.query_offset = length - 1;
    out.push_back(attend(
        {q_BH1K.narrow(0, b, 1),
         gathered(pages.keys_PGNK, pages.key_scales_PGN, used, length, q_BH1K.scalar_type()),
         gathered(pages.values_PGNK, pages.value_scales_PGN, used, length, q_BH1K.scalar_type()),
         sinks_H},
        std::move(own),
        context));
  }
  return at::cat(out);
}

}  // namespace

at::Tensor sink_attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          ops::AttentionArgs args,
                          const Param& sinks,
                          const Block& block,
                          StepContext& context) {
  TESSERA_REQUIRE(!context.shares_tokens() && !context.splits_samples(),
                  Unsupported,
                  "block " + context.block_name +
                      " has attention sinks, and ranks share its tokens or split its samples",
                  "leave parallel.context at 1 and parallel.tensor.mode at 1d");
  const at::Tensor sinks_H =
      detail::apply<ValuesNode>(sinks.tensor(), ValuesNode::Use{&sinks, &context});
  const bool generates = context.mode() == Mode::Prefill || context.mode() == Mode::Decode;
  if (!generates) return attend({q, k, v, sinks_H}, std::move(args), context);
  if (is_paged(context.batch)) {
    auto& cache = context.state<PagedKvCache>(block);
    cache.write(k, v, *context.batch, context.cache_capacity);
    return context.mode() == Mode::Prefill
               ? attend({q, k, v, sinks_H}, std::move(args), context)
               : attend_to_pages(q, cache.pages(), sinks_H, args, context);
  }
  auto& cache = context.state<KvCache>(block);
  if (context.batch != nullptr && context.batch->has(kCacheRow))
    cache.select(context.batch->tensor(kCacheRow));
  cache.write(context.position, k, v, context.cache_capacity);
  args.query_offset = context.position;
  return attend({q, cache.keys(), cache.values(), sinks_H}, std::move(args), context);
}

}  // namespace tessera::nn
