// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/rotary.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/models/megatron_names.h"

namespace tessera::interop::megatron {
namespace {

constexpr Candidates kQueryNorm = {"self_attention.q_layernorm.", "self_attention.q_norm."};
constexpr Candidates kKeyNorm = {"self_attention.k_layernorm.", "self_attention.k_norm."};

class RotaryReader final : public Reader {
 public:
  using Reader::Reader;

 private:
  [[nodiscard]] const models::MegatronNames& names() const {
    return models::megatron_names_of(kind_, first().path.string());
  }
  [[nodiscard]] std::string table_name() const override { return names().table + ".weight"; }
  [[nodiscard]] std::string head_name() const override { return names().head + ".weight"; }

  void read_sizes() override {
    layers_ = size("num_layers");
    width_ = size("hidden_size");
    heads_ = size("num_attention_heads");
    positions_ = size("max_position_embeddings");
    inner_ = size("ffn_hidden_size");
    groups_ = flag("group_query_attention") ? size("num_query_groups") : heads_;
    refuse(!has_number("kv_channels") && width_ % heads_ != 0, "its heads do not divide its width");
    head_dim_ = has_number("kv_channels") ? size("kv_channels") : width_ / heads_;
    untied_ = flag("untie_embeddings_and_output_weights");
    kind_ = {.qkv_bias = flag("add_qkv_bias"), .qk_norm = flag("qk_layernorm")};
    const json::Value* positions = argument("position_embedding_type");
    refuse(
        !flag("use_rotary_position_embeddings") &&
            (positions == nullptr || !positions->is_string() || positions->as_string() != "rope"),
        "its MLP is gated or its norms are RMSNorm, and its positions are not rotary");
    refuse(!flag("swiglu"), "its positions are rotary, and its MLP is not gated by SiLU (swiglu)");
    const json::Value* norm = argument("normalization");
    refuse(norm == nullptr || !norm->is_string() || norm->as_string() != "RMSNorm",
           "its positions are rotary, and its norms are not RMSNorm");
    refuse(flag("add_bias_linear"), "its positions are rotary, and its layers have biases");
    refuse(flag("multi_latent_attention"), "its attention is latent");
    refuse(has_number("num_experts"), "it has experts");
    refuse(flag("apply_layernorm_1p"), "its norms keep their weight less one");
    refuse(flag("apply_residual_connection_post_layernorm"), "its residuals begin behind the norm");
    refuse(flag("rotary_interleaved"), "its rotary positions turn neighbouring channels");
    refuse(flag("use_rope_scaling"), "its rotary positions are scaled (use_rope_scaling)");
    refuse(number("rotary_percent", 1.0) != 1.0, "its rotary positions turn a part of each head");
    refuse(has_number("rotary_seq_len_interpolation_factor"), "its rotary positions are scaled");
    refuse(argument("window_size") != nullptr && !argument("window_size")->is_null(),
           "its attention has a window");
    refuse(heads_ % groups_ != 0, "its groups of queries do not divide its heads");
    refuse(groups_ % tensor_ != 0 || inner_ % tensor_ != 0,
           "its groups of queries do not fit its tensor-parallel ranks");
    (void)names();
  }

  void add_norm(StageOf at,
                const std::string& theirs,
                const std::string& name,
                std::int64_t channels) {
    replicated(at, theirs + "weight", name + ".weight", {channels});
  }
  /// Adds the rows [first, first + count) of each block of `block` rows, in a tensor of `blocks`
  /// such blocks over all ranks; `columns`: 0 for a bias.
  void add_rows(StageOf at,
                const std::string& theirs,
                const std::string& name,
                std::int64_t blocks,
                std::int64_t block,
                std::int64_t first,
                std::int64_t count,
                std::int64_t columns) {
    const std::int64_t mine = blocks / tensor_, row = columns > 0 ? columns : 1;
    const auto with_columns = [&](Shape shape) {
      if (columns > 0) shape.push_back(columns);
      return shape;
    };
    joined(at,
           theirs,
           name,
           with_columns({mine * block}),
           with_columns({blocks, count}),
           0,
           with_columns({blocks * count}),
           [&](Weight local) {
             local.data += first * row * static_cast<std::int64_t>(size_of(local.dtype));
             local.shape = with_columns({mine, count});
             local.strides = {block * row, row};
             if (columns > 0) local.strides.push_back(1);
             return local;
           });
  }
  /// A group's queries, then its key, then its value: [groups][queries | key | value][head_dim].
  void add_attention_input(StageOf at, const std::string& theirs, const std::string& layer) {
    const std::int64_t queries = heads_ / groups_ * head_dim_, block = queries + 2 * head_dim_;
    const auto add = [&](const std::string& module, std::int64_t first, std::int64_t count) {
      add_rows(
          at, theirs + "weight", layer + module + ".weight", groups_, block, first, count, width_);
      if (kind_.qkv_bias)
        add_rows(at, theirs + "bias", layer + module + ".bias", groups_, block, first, count, 0);
    };
    add(names().queries, 0, queries);
    add(names().keys, queries, head_dim_);
    add(names().values, queries + head_dim_, head_dim_);
  }
  /// [width, from], split by columns over the ranks.
  void add_row_parallel(StageOf at,
                        const std::string& theirs,
                        const std::string& name,
                        std::int64_t from) {
    joined(at,
           theirs + "weight",
           name + ".weight",
           {width_, from / tensor_},
           {width_, from},
           1,
           {width_, from},
           [](const Weight& w) { return w; });
  }

  void add_layer(StageOf at, const std::string& theirs, const LayerOf& which) override {
    const auto of = [&](Candidates names) { return named(weights(at), theirs, names, "weight"); };
    const std::string layer = fmt::format("{}.{}.", names().layers, which.number);
    add_norm(at, of(kAttentionNorm), layer + names().attention_norm, width_);
    add_attention_input(at, of(kQkv), layer);
    if (kind_.qk_norm) {
      add_norm(at, of(kQueryNorm), layer + names().query_norm, head_dim_);
      add_norm(at, of(kKeyNorm), layer + names().key_norm, head_dim_);
    }
    add_row_parallel(at, of(kProjection), layer + names().attention_output, heads_ * head_dim_);
    add_norm(at, of(kMlpNorm), layer + names().mlp_norm, width_);
    // Each rank has its gate rows, then its up rows.
    const std::int64_t mine = inner_ / tensor_;
    const std::string fc1 = of(kFc1) + "weight";
    add_rows(at, fc1, layer + names().gate + ".weight", tensor_, 2 * mine, 0, mine, width_);
    add_rows(at, fc1, layer + names().up + ".weight", tensor_, 2 * mine, mine, mine, width_);
    add_row_parallel(at, of(kFc2), layer + names().down, inner_);
  }
  void add_last(StageOf at) override {
    add_norm(at, named(weights(at), "", kFinalNorm, "weight"), names().final_norm, width_);
  }

  [[nodiscard]] json::Value model_config() const override {
    const auto count = [](std::int64_t value) { return json::Value::integer(value); };
    return json::Value::object(
        {{"architectures", json::Value::array({json::Value::string(names().architecture)})},
         {"model_type", json::Value::string(names().model_type)},
         {"vocab_size", count(vocab_)},
         {"hidden_size", count(width_)},
         {"intermediate_size", count(inner_)},
         {"num_hidden_layers", count(layers_)},
         {"num_attention_heads", count(heads_)},
         {"num_key_value_heads", count(groups_)},
         {"head_dim", count(head_dim_)},
         {"max_position_embeddings", count(positions_)},
         {"hidden_act", json::Value::string("silu")},
         {"rms_norm_eps",
          json::Value::number(number("layernorm_epsilon", number("norm_epsilon", 1e-5)))},
         {"rope_theta", json::Value::number(number("rotary_base", 10000.0))},
         {"tie_word_embeddings", json::Value::boolean(!untied_)}});
  }

  std::int64_t groups_ = 0, head_dim_ = 0;
  models::RotaryKind kind_;
};

}  // namespace

bool is_rotary(const Reader& reader) {
  return reader.flag("swiglu") || reader.flag("use_rotary_position_embeddings") ||
         reader.is_another("position_embedding_type", "learned_absolute") ||
         reader.is_another("normalization", "LayerNorm");
}

Foreign read_rotary(const std::filesystem::path& path) {
  return RotaryReader(path).read();
}

}  // namespace tessera::interop::megatron
