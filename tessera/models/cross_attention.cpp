// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/cross_attention.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, S tokens of the encoder's sequence, C embed, H heads, K channels of a
// head.
namespace tessera::models {

using enum LogicalAxis;

void CrossAttention::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, H = spec_.num_heads, K = spec_.head_dim;
  q_weight_ = params.add(spec_.q_name + ".weight",
                         {1, H, K, C},
                         {None, Heads, None, Embed},
                         spec_.q_init,
                         {.matrix_shape = {H * K, C}});
  kv_weight_ = params.add(spec_.kv_name + ".weight",
                          {2, H, K, C},
                          {None, Heads, None, Embed},
                          spec_.kv_init,
                          {.matrix_shape = {2 * H * K, C}});
  output_weight_ = params.add(
      spec_.output_name + ".weight", {C, H * K}, {Embed, Heads}, spec_.output_init, {.unit = K});
  if (!spec_.bias) return;
  const auto bias_of_heads = [&](const std::string& name, std::int64_t parts) {
    return params.add(name + ".bias",
                      {parts, H, K},
                      {None, Heads, None},
                      Init::zeros(),
                      {.matrix_shape = {parts * H * K}});
  };
  q_bias_ = bias_of_heads(spec_.q_name, 1);
  kv_bias_ = bias_of_heads(spec_.kv_name, 2);
  output_bias_ = params.add(spec_.output_name + ".bias", {C}, {Embed}, Init::zeros());
}

CrossAttention::Memory CrossAttention::made_of(const at::Tensor& memory_BSC,
                                               nn::StepContext& context) const {
  std::vector<at::Tensor> kv = nn::split_heads(
      nn::linear(memory_BSC, *kv_weight_, kv_bias_, context), 2, nn::heads_of(*kv_weight_).count);
  return {std::move(kv[0]), std::move(kv[1])};
}

CrossAttention::Memory CrossAttention::memory_of(const at::Tensor& memory_BSC,
                                                 const nn::Block& block,
                                                 nn::StepContext& context) const {
  if (context.mode() == nn::Mode::Decode) return context.state<Memory>(block);
  Memory memory = made_of(memory_BSC, context);
  if (context.mode() == nn::Mode::Prefill)
    context.state<Memory>(block) = {memory.k_BHSK.contiguous(), memory.v_BHSK.contiguous()};
  return memory;
}

at::Tensor CrossAttention::attend_by_text(const std::vector<std::size_t>& numbers,
                                          const at::Tensor& q_BHTK,
                                          const at::Tensor& memory_BSC,
                                          const ops::AttentionArgs& args,
                                          const nn::Block& block,
                                          nn::StepContext& context) const {
  // The numbers are those of all samples, and a rank of a grid has some of them.
  TESSERA_REQUIRE(!context.splits_samples(),
                  Unsupported,
                  "block " + context.block_name + " answers several texts on a grid of ranks",
                  "set parallel.tensor.mode to 1d");
  std::vector<Memory>& texts = context.state<Memories>(block).texts;
  Memory made;
  if (context.mode() == nn::Mode::Prefill) made = made_of(memory_BSC, context);
  std::vector<at::Tensor> out;
  for (std::int64_t b = 0; b < q_BHTK.size(0); ++b) {
    const std::size_t text = numbers[static_cast<std::size_t>(b)];
    if (texts.size() <= text) texts.resize(text + 1);
    if (made.k_BHSK.defined())
      texts[text] = {made.k_BHSK.narrow(0, b, 1).contiguous(),
                     made.v_BHSK.narrow(0, b, 1).contiguous()};
    out.push_back(nn::cross_attention(
        q_BHTK.narrow(0, b, 1), texts[text].k_BHSK, texts[text].v_BHSK, args, context));
  }
  return out.size() == 1 ? out.front() : at::cat(out);
}

at::Tensor CrossAttention::operator()(const at::Tensor& h_BTC,
                                      const at::Tensor& memory_BSC,
                                      const nn::Batch& batch,
                                      const nn::Block& block,
                                      nn::StepContext& context) const {
  const std::vector<std::size_t> numbers = nn::text_numbers(batch);
  const Memory memory = !numbers.empty() ? Memory() : memory_of(memory_BSC, block, context);
  const nn::HeadRange heads = nn::heads_of(*q_weight_);
  const at::Tensor q_BHTK =
      nn::split_heads(nn::linear(h_BTC, *q_weight_, q_bias_, context), 1, heads.count)[0];
  ops::AttentionArgs args;
  args.causal = false;
  args.scale = spec_.scale;
  args.first_head = heads.first;
  if (batch.has("attention_mask")) args.mask_BS = batch.tensor("attention_mask");
  args.dropout = context.dropout("cross_attention", spec_.dropout);
  const at::Tensor y_BHTK =
      !numbers.empty() ? attend_by_text(numbers, q_BHTK, memory_BSC, args, block, context)
                       : nn::cross_attention(q_BHTK, memory.k_BHSK, memory.v_BHSK, args, context);
  return nn::linear(nn::merge_heads(y_BHTK), *output_weight_, output_bias_, context);
}

}  // namespace tessera::models
