// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/encoders.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/models/megatron_names.h"

namespace tessera::interop::megatron {
namespace {

constexpr Candidates kEncoderLayers = {
    "encoder.layers.", "language_model.encoder.layers.", "language_model.transformer.layers."};
constexpr Candidates kDecoderLayers = {"decoder.layers.", "language_model.decoder.layers."};
constexpr Candidates kEncoderNorm = {"encoder.final_layernorm.",
                                     "language_model.encoder.final_layernorm.",
                                     "language_model.encoder.final_norm.",
                                     "language_model.transformer.final_layernorm."};
constexpr Candidates kDecoderNorm = {"decoder.final_layernorm.",
                                     "language_model.decoder.final_layernorm.",
                                     "language_model.decoder.final_norm."};
constexpr Candidates kTokenTypes = {"embedding.tokentype_embeddings.weight",
                                    "language_model.embedding.tokentype_embeddings.weight"};
// A decoder's layer has a norm before attention to the encoder, where an encoder's layer has the
// one before the MLP.
constexpr Candidates kCrossNorm = {
    "pre_cross_attn_layernorm.", "post_attention_layernorm.", "post_attention_norm."};
constexpr Candidates kDecoderMlpNorm = {"pre_mlp_layernorm.",
                                        "mlp.linear_fc1.layer_norm_",
                                        "post_inter_attention_layernorm.",
                                        "post_inter_attention_norm."};
constexpr Candidates kCrossQueries = {"cross_attention.linear_q.", "inter_attention.query."};
constexpr Candidates kCrossKeyValues = {"cross_attention.linear_kv.", "inter_attention.key_value."};
constexpr Candidates kCrossProjection = {"cross_attention.linear_proj.", "inter_attention.dense."};
constexpr Candidates kHeadDense = {"lm_head.dense."};
constexpr Candidates kHeadNorm = {"lm_head.layer_norm.", "lm_head.layernorm.", "lm_head.norm."};
constexpr Candidates kHeadBias = {"output_layer.bias", "lm_head.output_layer.bias", "lm_head.bias"};
constexpr Candidates kPooler = {"pooler.dense.", "language_model.pooler.dense."};
constexpr Candidates kPairHead = {"binary_head."};
constexpr std::int64_t kTypes = 2;

class EncoderReader final : public Reader {
 public:
  EncoderReader(const std::filesystem::path& path, ModelKind kind) : Reader(path), kind_(kind) {}

 private:
  [[nodiscard]] bool writes() const { return kind_ == ModelKind::EncoderDecoder; }
  [[nodiscard]] const models::MegatronLearnedNames& names() const {
    return models::megatron_learned_names_of(writes(), first().path.string());
  }
  [[nodiscard]] std::string table_name() const override { return names().table; }
  [[nodiscard]] std::string head_name() const override { return names().head; }
  [[nodiscard]] bool has(StageOf at, Candidates candidates, const char* after) const {
    return weights(at).has(named(weights(at), "", candidates, after) + after);
  }

  void read_sizes() override {
    read_learned_sizes();
    decoder_layers_ = layers_;
    if (has_number("decoder_num_layers")) decoder_layers_ = size("decoder_num_layers");
    if (has_number("encoder_num_layers")) layers_ = size("encoder_num_layers");
    has_types_ = has(stages().front(), kTokenTypes, "");
    has_bias_ = has(stages().back(), kHeadBias, "");
    has_pairs_ = has(stages().back(), kPairHead, "weight");
    refuse(writes() && has_types_, "it has an encoder, a decoder and types of tokens");
    (void)names();
  }
  [[nodiscard]] std::vector<Stack> stacks() const override {
    std::vector<Stack> out = {{kEncoderLayers, layers_}};
    if (writes()) out.push_back({kDecoderLayers, decoder_layers_});
    return out;
  }
  [[nodiscard]] std::string state_obstacle() const override {
    return writes() ? "its two stacks share a table of positions, of which each has its own here"
                    : "";
  }

  void add_first(StageOf at) override {
    for (const std::string& name : names().positions)
      replicated(at, named(weights(at), "", kPositions), name, {positions_, width_});
    if (names().token_types.empty()) return;
    if (has_types_) {
      replicated(at, named(weights(at), "", kTokenTypes), names().token_types, {kTypes, width_});
    } else {
      add_zeros(names().token_types, {kTypes, width_});  // --bert-no-binary-head
    }
  }

  /// Adds a projection or a norm that every tensor-parallel rank has.
  void add_whole(StageOf at, const std::string& theirs, const std::string& name, Shape shape) {
    replicated(at, theirs + "weight", name + ".weight", shape);
    shape.resize(1);
    replicated(at, theirs + "bias", name + ".bias", shape);
  }
  void add_norm(StageOf at, const std::string& theirs, const std::string& name) {
    for (const char* part : {"weight", "bias"})
      replicated(at, theirs + part, name + "." + part, {width_});
  }
  /// Adds part `which` of the `count` projections [width, width] that are fused in a tensor. In
  /// version 0 the parts follow one another, in version 1 they are interleaved for each value, in
  /// later versions for each head.
  void add_part(StageOf at,
                const std::string& theirs,
                const std::string& name,
                std::int64_t which,
                std::int64_t count) {
    const std::int64_t heads = heads_ / tensor_, dim = width_ / heads_;
    const double version = number_at(first().values, "checkpoint_version").value_or(0.0);
    for (const bool matrix : {true, false}) {
      const std::int64_t row = matrix ? width_ : 1;
      const auto with_columns = [&](Shape shape) {
        if (matrix) shape.push_back(width_);
        return shape;
      };
      const std::int64_t begin = version >= 2.0   ? which * dim * row
                                 : version >= 1.0 ? which * row
                                                  : which * heads * dim * row;
      Shape strides = version >= 2.0   ? Shape{count * dim * row, row}
                      : version >= 1.0 ? Shape{count * dim * row, count * row}
                                       : Shape{dim * row, row};
      if (matrix) strides.push_back(1);
      const char* const part = matrix ? "weight" : "bias";
      joined(at,
             theirs + part,
             name + "." + part,
             with_columns({count * heads * dim}),
             with_columns({heads_, dim}),
             0,
             with_columns({width_}),
             [&](Weight local) {
               local.data += begin * static_cast<std::int64_t>(size_of(local.dtype));
               local.shape = with_columns({heads, dim});
               local.strides = strides;
               return local;
             });
    }
  }
  /// Adds a projection [to, from] that is split along `to`.
  void add_column_parallel(StageOf at,
                           const std::string& theirs,
                           const std::string& name,
                           std::int64_t to,
                           std::int64_t from) {
    const auto same = [](const Weight& w) { return w; };
    const Shape matrix = {to, from};
    joined(at, theirs + "weight", name + ".weight", {to / tensor_, from}, matrix, 0, matrix, same);
    joined(at, theirs + "bias", name + ".bias", {to / tensor_}, {to}, 0, {to}, same);
  }
  /// Adds a projection [width, from] that is split along `from`.
  void add_row_parallel(StageOf at,
                        const std::string& theirs,
                        const std::string& name,
                        std::int64_t from) {
    const Shape matrix = {width_, from};
    joined(at,
           theirs + "weight",
           name + ".weight",
           {width_, from / tensor_},
           matrix,
           1,
           matrix,
           [](const Weight& w) { return w; });
    replicated(at, theirs + "bias", name + ".bias", {width_});
  }

  void add_layer(StageOf at, const std::string& theirs, const LayerOf& layer) override {
    const bool decoder = layer.stack == 1;
    const models::MegatronStack& stack = decoder ? names().decoder : names().encoder;
    const auto of = [&](Candidates candidates) {
      return named(weights(at), theirs, candidates, "weight");
    };
    const auto name = [&](const std::string& module) {
      return fmt::format("{}.{}.{}", stack.layers, layer.number, module);
    };
    add_norm(at, of(kAttentionNorm), name(stack.attention_norm));
    add_part(at, of(kQkv), name(stack.queries), 0, 3);
    add_part(at, of(kQkv), name(stack.keys), 1, 3);
    add_part(at, of(kQkv), name(stack.values), 2, 3);
    add_row_parallel(at, of(kProjection), name(stack.attention_output), width_);
    if (decoder) {
      add_norm(at, of(kCrossNorm), name(stack.cross_norm));
      add_column_parallel(at, of(kCrossQueries), name(stack.cross_queries), width_, width_);
      add_part(at, of(kCrossKeyValues), name(stack.cross_keys), 0, 2);
      add_part(at, of(kCrossKeyValues), name(stack.cross_values), 1, 2);
      add_row_parallel(at, of(kCrossProjection), name(stack.cross_output), width_);
    }
    add_norm(at, of(decoder ? kDecoderMlpNorm : kMlpNorm), name(stack.mlp_norm));
    add_column_parallel(at, of(kFc1), name(stack.mlp_input), inner_, width_);
    add_row_parallel(at, of(kFc2), name(stack.mlp_output), inner_);
  }

  /// A stack's last norm is on the last stage that has it.
  void add_final_norm(Candidates theirs, const std::string& name) {
    StageOf found = stages().back();
    for (const StageOf at : stages()) {
      if (has(at, theirs, "weight")) found = at;
    }
    add_norm(found, named(weights(found), "", theirs, "weight"), name);
  }
  void add_last(StageOf at) override {
    add_final_norm(kEncoderNorm, names().encoder.final_norm);
    if (writes()) add_final_norm(kDecoderNorm, names().decoder.final_norm);
    const auto of = [&](Candidates candidates) {
      return named(weights(at), "", candidates, "weight");
    };
    if (!names().head_dense.empty()) {
      add_whole(at, of(kHeadDense), names().head_dense, {width_, width_});
      add_norm(at, of(kHeadNorm), names().head_norm);
    }
    if (has_bias_) {
      const bool own = untied_ && !names().untied_head_bias.empty();
      add_rows_of_vocabulary(
          at, kHeadBias, own ? names().untied_head_bias : names().head_bias, /*numbers=*/true);
    }
    if (has_pairs_) {
      add_whole(at, of(kPooler), names().pooler, {width_, width_});
      add_whole(at, of(kPairHead), names().pair_head, {kTypes, width_});
    }
  }

  [[nodiscard]] json::Value model_config() const override {
    const auto count = [](std::int64_t value) { return json::Value::integer(value); };
    const auto real = [&](const char* key, double absent) {
      return json::Value::number(number(key, absent));
    };
    // The head for masked tokens has the exact GELU, also where the layers have the fused one.
    const char* const head = flag("openai_gelu") ? "gelu_new" : "gelu";
    return names().config_of(json::Value::object(
        {{"vocab_size", count(vocab_)},
         {"hidden_size", count(width_)},
         {"ffn_hidden_size", count(inner_)},
         {"num_layers", count(layers_)},
         {"num_decoder_layers", count(decoder_layers_)},
         {"num_heads", count(heads_)},
         {"max_positions", count(positions_)},
         {"type_vocab_size", count(kTypes)},
         {"activation", json::Value::string(learned_activation())},
         {"head_activation", json::Value::string(head)},
         {"norm_eps",
          json::Value::number(number("layernorm_epsilon", number("norm_epsilon", 1e-5)))},
         {"dropout", real("hidden_dropout", 0.1)},
         {"attention_dropout", real("attention_dropout", 0.1)},
         {"init_std", real("init_method_std", 0.02)},
         {"tie_embeddings", json::Value::boolean(!untied_)},
         {"head_bias", json::Value::boolean(has_bias_)},
         {"pair_head", json::Value::boolean(has_pairs_)}}));
  }

  ModelKind kind_;
  std::int64_t decoder_layers_ = 0;
  bool has_types_ = false, has_bias_ = false, has_pairs_ = false;
};

}  // namespace

Foreign read_encoder(const std::filesystem::path& path, ModelKind kind) {
  return EncoderReader(path, kind).read();
}

}  // namespace tessera::interop::megatron
