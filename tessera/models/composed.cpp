// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/composed.h"

#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/cross_attention.h"
#include "tessera/models/feed_forward.h"
#include "tessera/models/position_embedding.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/ops/rotary.h"

// Legend: B batch, S tokens of the encoder, T tokens of the decoder, C embed.
namespace tessera::models {
namespace {

using enum LogicalAxis;

constexpr std::int64_t kSegments = 3;  // 0 is padding

NormSpec norm_of(const ComposedShape& shape) {
  return {.kind = shape.norm, .eps = shape.norm_eps};
}

/// A stack whose layers do not end with a norm gets one at its end.
NormSpec last_norm_of(const ComposedShape& shape) {
  return shape.residual == ResidualOrder::PreNorm ? norm_of(shape)
                                                  : NormSpec{.kind = NormKind::None};
}

HeadSpecs heads_of(const ComposedShape& shape) {
  HeadSpecs out;
  if (!shape.causal) out.pooling = Pooling::FirstToken;
  const auto of_sample = [&](const std::string& target) {
    const std::string head = fmt::format("target.{}.", target);
    return HeadSpec{.dense = shape.pooler ? head + "linear_1" : "",
                    .output = head + "linear_2",
                    .output_bias = head + "linear_2.bias"};
  };
  if (!shape.sample_head.empty()) out.sample = of_sample(shape.sample_head);
  if (shape.pair_head) out.pair = of_sample("sp");
  // TencentPretrain's tagger: one linear layer, whatever the targets.
  if (!shape.embedding.patches && !shape.writes())
    out.token = HeadSpec{.output = "output_layer", .output_bias = "output_layer.bias"};
  if (shape.masked_lm) {
    out.masked_lm = HeadSpec{.dense = "target.mlm.linear_1",
                             .activation = shape.activation,
                             .norm = {.kind = NormKind::LayerNorm, .eps = shape.norm_eps},
                             .norm_name = "target.mlm.layer_norm",
                             .output = "target.mlm.linear_2",
                             .output_bias = "target.mlm.linear_2.bias"};
  }
  return out;
}

TrunkOutput output_of(const ComposedShape& shape) {
  const double scale =
      shape.scale_output ? 1.0 / std::sqrt(static_cast<double>(shape.hidden_size)) : 1.0;
  TrunkOutput out = {.hidden_size = shape.hidden_size,
                     .norm = last_norm_of(shape),
                     .norm_name = shape.writes() ? "decoder.layer_norm" : "encoder.layer_norm",
                     .vocabulary = {"embedding.word.embedding.weight",
                                    shape.vocab_size,
                                    shape.tie_embeddings,
                                    shape.lm_bias},
                     .init_std = shape.init_std,
                     .causal = shape.causal || shape.writes(),
                     .modality = shape.embedding.patches ? Modality::Images : Modality::Text,
                     .heads = heads_of(shape)};
  if (shape.writes()) {
    out.target = TargetText{.start_token = shape.start_token, .pad_token = shape.pad_token};
    out.state_factor = scale;
  }
  return out;
}

SelfAttentionSpec self_attention_of(const ComposedShape& shape, bool writes) {
  const Init init = Init::normal(shape.init_std);
  SelfAttentionSpec out = {.hidden_size = shape.hidden_size,
                           .num_heads = shape.num_heads,
                           .num_kv_heads = shape.num_heads,
                           .head_dim = shape.head_dim,
                           .qkv_name = "self_attn.qkv",
                           .output_name = "self_attn.final_linear",
                           .qkv_bias = shape.bias,
                           .output_bias = shape.bias,
                           .qkv_init = init,
                           .output_init = init,
                           .dropout = shape.dropout,
                           .causal = writes || shape.causal,
                           .scale = shape.scale_attention ? 0.0 : 1.0,
                           .mask_name = writes ? "decoder_attention_mask" : "attention_mask"};
  if (shape.qk_norm) {
    out.qk_norm = shape.norm == NormKind::LayerNorm ? QkNorm::LayerPerHead : QkNorm::PerHead;
    out.qk_norm_eps = shape.norm_eps;
  }
  if (shape.embedding.patches) out.sample_tokens = patches_of(shape).tokens();
  if (shape.order == ComposedOrder::Relative) {
    out.relative_bias = RelativeBiasSpec{
        .name = std::string(writes ? "decoder.self_pos_emb" : "encoder.relative_pos_emb") +
                ".relative_attention_bias.weight",
        .buckets = {shape.buckets, shape.max_distance, !writes},
        .init = init};
  }
  if (shape.order == ComposedOrder::Rotary) {
    const std::int64_t channels =
        shape.rotary_channels > 0 ? shape.rotary_channels : shape.head_dim;
    out.rotary_frequencies = ops::rotary_frequencies(channels, shape.rope_theta);
    out.max_positions = shape.max_positions;
    out.rotary_interleaved = true;
  }
  return out;
}

CrossAttentionSpec cross_attention_of(const ComposedShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .num_heads = shape.num_heads,
          .head_dim = shape.head_dim,
          .q_name = "context_attn.q",
          .kv_name = "context_attn.kv",
          .output_name = "context_attn.final_linear",
          .bias = shape.bias,
          .q_init = init,
          .kv_init = init,
          .output_init = init,
          .dropout = shape.dropout,
          .scale = shape.scale_attention ? 0.0 : 1.0};
}

MlpSpec mlp_of(const ComposedShape& shape) {
  const Init init = Init::normal(shape.init_std);
  return {.hidden_size = shape.hidden_size,
          .ffn_hidden_size = shape.ffn_hidden_size,
          .input_name = shape.gated ? "feed_forward.gated_linear" : "feed_forward.linear_1",
          .output_name = "feed_forward.linear_2",
          .bias = shape.bias,
          .input_init = init,
          .output_init = init,
          .activation = shape.activation,
          .gated = shape.gated};
}

std::shared_ptr<PositionEmbedding> positions_of(const ComposedShape& shape,
                                                const std::string& prefix) {
  return std::make_shared<PositionEmbedding>(
      PositionSpec{.name = prefix + ".pos.embedding.weight",
                   .max_positions = shape.max_positions,
                   .hidden_size = shape.hidden_size,
                   .offset = shape.embedding.position_offset,
                   .skip_padding = shape.embedding.position_offset > 0,
                   .init = Init::normal(shape.init_std)});
}

/// Positions, segments and the norm of one text's tokens, with names that begin with `prefix`.
class TextEmbedding {
 public:
  /// `positions`: those of another text, which it declares; null: its own.
  TextEmbedding(const ComposedShape& shape,
                std::string prefix,
                std::shared_ptr<PositionEmbedding> positions = nullptr)
      : shape_(shape),
        prefix_(std::move(prefix)),
        shares_(positions != nullptr),
        positions_(shares_ ? std::move(positions) : positions_of(shape, prefix_)),
        norm_(norm_of(shape)) {}

  [[nodiscard]] const std::shared_ptr<PositionEmbedding>& positions() const { return positions_; }

  void declare(nn::Params& params) {
    if (shape_.embedding.positions && !shares_) positions_->declare(params);
    if (shape_.embedding.segments) {
      segments_ = params.add(prefix_ + ".seg.embedding.weight",
                             {kSegments, shape_.hidden_size},
                             {None, Embed},
                             Init::normal(shape_.init_std),
                             {.without_prefix = true, .role = Role::PositionTable});
    }
    if (shape_.embedding.norm)
      norm_.declare(params, prefix_ + ".layer_norm", shape_.hidden_size, kGlobalName);
  }

  /// Completes the embedding of the batch's "input_ids"; x is their word embedding.
  [[nodiscard]] at::Tensor of_input(at::Tensor x_BSC,
                                    const nn::Batch& batch,
                                    const char* site,
                                    nn::StepContext& context) const {
    if (shape_.embedding.positions) x_BSC = x_BSC + (*positions_)(batch, context);
    return finished(std::move(x_BSC), segments_of(batch), site, context);
  }
  /// Completes the embedding x of an answer, whose tokens are all in the first segment. `ids_BT`
  /// covers the tokens of all ranks that split them; only its shape is read.
  [[nodiscard]] at::Tensor of(at::Tensor x_BTC,
                              const at::Tensor& ids_BT,
                              const char* site,
                              nn::StepContext& context) const {
    const at::Tensor first_BT = at::ones_like(ids_BT, ids_BT.options().dtype(at::kLong));
    if (shape_.embedding.positions) x_BTC = x_BTC + positions_->of(first_BT, context);
    return finished(std::move(x_BTC), first_BT, site, context);
  }
  /// Completes the embedding x of all patches, and returns that of this rank's.
  [[nodiscard]] at::Tensor of_patches(at::Tensor x_BSC,
                                      const nn::Batch& batch,
                                      const char* site,
                                      nn::StepContext& context) const {
    if (shape_.embedding.positions) {
      // A rank of a grid has some of the images.
      const at::Tensor ids_BS = at::empty({batch.tensor("pixel_values").size(0), x_BSC.size(1)},
                                          x_BSC.options().dtype(at::kLong));
      x_BSC = x_BSC + positions_->of_all(ids_BS, context);
    }
    return finished(nn::take_tokens(x_BSC, context), {}, site, context);
  }

 private:
  /// Rows of the segment table: those of the token types; else a prefix is the first segment, and
  /// what follows the second.
  [[nodiscard]] at::Tensor segments_of(const nn::Batch& batch) const {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    if (batch.has("token_type_ids")) return batch.tensor("token_type_ids") + 1;
    const at::Tensor first_BT = at::ones_like(ids_BT);
    if (!shape_.prefix || !batch.has("prefix_lengths")) return first_BT;
    at::Tensor numbers_BT = at::arange(ids_BT.size(1), ids_BT.options()).unsqueeze(0);
    if (const at::Tensor starts_BT = document_starts(batch); starts_BT.defined())
      numbers_BT = numbers_BT - starts_BT;
    // One length for each sample, or that of its document for each token.
    const at::Tensor& lengths = batch.tensor("prefix_lengths");
    return first_BT + numbers_BT.ge(lengths.dim() == 1 ? lengths.unsqueeze(1) : lengths);
  }
  [[nodiscard]] at::Tensor finished(at::Tensor x_BTC,
                                    const at::Tensor& types_BT,
                                    const char* site,
                                    nn::StepContext& context) const {
    if (segments_ != nullptr) x_BTC = x_BTC + nn::embedding(types_BT, *segments_, context);
    if (shape_.embedding.norm) x_BTC = norm_(x_BTC, context);
    return nn::dropout(x_BTC, context.dropout(site, shape_.dropout));
  }

  ComposedShape shape_;
  std::string prefix_;
  bool shares_;
  std::shared_ptr<PositionEmbedding> positions_;
  Norm norm_;
  Param* segments_ = nullptr;
};

/// The embedding of the tokens of one text, of an image, or of a text and its answer.
class ComposedInput final : public nn::Block {
 public:
  explicit ComposedInput(const ComposedShape& shape)
      : shape_(shape),
        output_(output_of(shape)),
        patches_(patches_of(shape)),
        input_(shape, "embedding"),
        answer_(shape, "tgt_embedding", shape.shared_positions ? input_.positions() : nullptr) {}

  void declare(nn::Params& params) override {
    if (shape_.embedding.patches) {
      patches_.declare(params);
    } else {
      words_ = declare_table(params, output_);
    }
    input_.declare(params);
    if (shape_.writes()) answer_.declare(params);
  }

  [[nodiscard]] std::string grid_obstacle() const override {
    return segments_by_prefix() ? "segments that a prefix determines" : "";
  }

  [[nodiscard]] bool works_by_token() const override { return !segments_by_prefix(); }

  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    if (!grid_obstacle().empty()) nn::refuse_grid(*this, context);
    if (shape_.embedding.patches) {
      const at::Tensor x_BSC = patches_(batch, context);
      return {.flow = {.diff = {input_.of_patches(x_BSC, batch, "embedding", context)}}};
    }
    const at::Tensor words_BSC = nn::embedding(batch.tensor("input_ids"), *words_, context);
    if (!shape_.writes())
      return {.flow = {.diff = {input_.of_input(words_BSC, batch, "embedding", context)}}};
    // During generation the encoder reads nothing after the first token.
    const bool read = words_BSC.size(1) > 0;
    const at::Tensor answer_BT = decoder_input(batch, *output_.target, context);
    const at::Tensor answer_BTC = nn::embedding(answer_BT, *words_, context);
    return {
        .flow = {.diff = {read ? input_.of_input(words_BSC, batch, "source", context) : words_BSC,
                          answer_.of(answer_BTC, answer_BT, "target", context)}}};
  }

 private:
  /// Segments by a prefix are found by the number of a token in its whole sample.
  [[nodiscard]] bool segments_by_prefix() const {
    return shape_.prefix && shape_.embedding.segments;
  }

  ComposedShape shape_;
  TrunkOutput output_;
  PatchEmbedding patches_;
  TextEmbedding input_, answer_;
  Param* words_ = nullptr;
};

/// A layer of either stack. It changes the first tensor of the flow and passes on the second, which
/// is the embedded target in the encoder, and the encoder's output in the decoder.
class ComposedLayer final : public nn::Block {
 public:
  ComposedLayer(const ComposedShape& shape, bool writes)
      : shape_(shape),
        writes_(writes),
        attention_(self_attention_of(shape, writes)),
        cross_(cross_attention_of(shape)),
        feed_forward_(make_feed_forward(mlp_of(shape))),
        attention_norm_(norm_of(shape)),
        cross_norm_(norm_of(shape)),
        mlp_norm_(norm_of(shape)) {}

  void declare(nn::Params& params) override {
    const std::int64_t C = shape_.hidden_size;
    attention_norm_.declare(params, "layer_norm_1", C);
    attention_.declare(params);
    if (writes_) {
      cross_norm_.declare(params, "layer_norm_2", C);
      cross_.declare(params);
    }
    mlp_norm_.declare(params, writes_ ? "layer_norm_3" : "layer_norm_2", C);
    feed_forward_->declare(params);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor x_BTC = in.diff.at(0);
    // During generation the encoder reads nothing after the first token.
    if (!writes_ && x_BTC.size(1) == 0) return {.flow = std::move(in)};
    const at::Tensor memory_BSC = writes_ ? in.diff.at(1) : at::Tensor();
    nn::Outcome out;
    in.diff.at(0) = shape_.residual == ResidualOrder::PreNorm
                        ? pre_norm(x_BTC, memory_BSC, batch, context, out.terms)
                        : post_norm(x_BTC, memory_BSC, batch, context, out.terms);
    out.flow = std::move(in);
    return out;
  }

 private:
  [[nodiscard]] at::Tensor pre_norm(const at::Tensor& x_BTC,
                                    const at::Tensor& memory_BSC,
                                    const nn::Batch& batch,
                                    nn::StepContext& context,
                                    std::vector<nn::Term>& terms) const {
    const double p = shape_.dropout;
    const nn::Normed begin = attention_norm_.residual(x_BTC, context);
    at::Tensor x = begin.x_BTC, branch = attention_(begin.normed_BTC, batch, *this, context);
    ops::DropoutKey key = context.dropout("attention_output", p);
    if (writes_) {
      const nn::Normed middle = cross_norm_.residual(x, context, branch, key);
      x = middle.x_BTC;
      branch = cross_(middle.normed_BTC, memory_BSC, batch, *this, context);
      key = context.dropout("context_output", p);
    }
    const nn::Normed last = mlp_norm_.residual(x, context, branch, key);
    const at::Tensor f_BTC = (*feed_forward_)(last.normed_BTC, context, terms);
    return nn::add_dropout(last.x_BTC, f_BTC, context.dropout("mlp_output", p));
  }
  [[nodiscard]] at::Tensor post_norm(const at::Tensor& x_BTC,
                                     const at::Tensor& memory_BSC,
                                     const nn::Batch& batch,
                                     nn::StepContext& context,
                                     std::vector<nn::Term>& terms) const {
    const double p = shape_.dropout;
    const at::Tensor a_BTC = attention_(x_BTC, batch, *this, context);
    at::Tensor h_BTC =
        attention_norm_.residual(x_BTC, context, a_BTC, context.dropout("attention_output", p))
            .normed_BTC;
    if (writes_) {
      const at::Tensor c_BTC = cross_(h_BTC, memory_BSC, batch, *this, context);
      h_BTC = cross_norm_.residual(h_BTC, context, c_BTC, context.dropout("context_output", p))
                  .normed_BTC;
    }
    const at::Tensor f_BTC = (*feed_forward_)(h_BTC, context, terms);
    return mlp_norm_.residual(h_BTC, context, f_BTC, context.dropout("mlp_output", p)).normed_BTC;
  }

  ComposedShape shape_;
  bool writes_;
  SelfAttention attention_;
  CrossAttention cross_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm attention_norm_, cross_norm_, mlp_norm_;
};

/// The last norm of the encoder; after it the target is the first tensor of the flow.
class ComposedTurn final : public nn::Block {
 public:
  explicit ComposedTurn(const ComposedShape& shape) : shape_(shape), norm_(last_norm_of(shape)) {}

  void declare(nn::Params& params) override {
    norm_.declare(params, "encoder.layer_norm", shape_.hidden_size, kGlobalName);
  }

  [[nodiscard]] bool works_by_token() const override { return true; }

  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor &x_BSC = in.diff.at(0), &target_BTC = in.diff.at(1);
    const bool read = x_BSC.size(1) > 0;
    return {.flow = {.diff = {target_BTC, read ? norm_(x_BSC, context) : x_BSC}}};
  }

 private:
  ComposedShape shape_;
  Norm norm_;
};

}  // namespace

PatchSpec patches_of(const ComposedShape& shape) {
  return {.image_size = shape.image_size,
          .patch_size = shape.patch_size,
          .num_channels = shape.num_channels,
          .hidden_size = shape.hidden_size,
          .class_name = "patch.cls_emb",
          .projection = "patch.projection",
          .bias = false,
          .init = Init::normal(shape.init_std)};
}

Trunk composed_trunk(const ComposedShape& shape) {
  Trunk trunk{.output = output_of(shape)};
  trunk.blocks.push_back({"embedding", [shape] { return std::make_unique<ComposedInput>(shape); }});
  const auto add = [&](const char* stack, std::int64_t count, bool writes) {
    for (std::int64_t i = 0; i < count; ++i)
      trunk.blocks.push_back({fmt::format("{}.{}", stack, i), [shape, writes] {
                                return std::make_unique<ComposedLayer>(shape, writes);
                              }});
  };
  add("encoder.transformer", shape.num_layers, /*writes=*/false);
  if (!shape.writes()) return trunk;
  trunk.blocks.push_back(
      {"encoder.final", [shape] { return std::make_unique<ComposedTurn>(shape); }});
  add("decoder.transformer_decoder", shape.num_decoder_layers, /*writes=*/true);
  return trunk;
}

}  // namespace tessera::models
