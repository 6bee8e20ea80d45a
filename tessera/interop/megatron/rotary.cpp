// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/rotary.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

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
    kind_ = {.qkv_bias = flag("add_qkv_bias"),
             .qk_norm = flag("qk_layernorm"),
             .experts = has_number("num_experts")};
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
    if (has_number("num_experts")) read_experts();
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

  /// The sizes of layers of experts: those of Mixtral and, with norms of queries and keys, Qwen3.
  void read_experts() {
    experts_ = size("num_experts");
    if (has_number("moe_ffn_hidden_size")) expert_width_ = size("moe_ffn_hidden_size");
    if (expert_width_ == 0) expert_width_ = inner_;
    refuse(experts_ > 65536, "it has more than 65536 experts");
    refuse(kind_.qkv_bias, "it has experts and biases of queries, keys and values");
    refuse(is_another("moe_router_score_function", "softmax"),
           "its router does not use the softmax (moe_router_score_function)");
    refuse(is_another("moe_router_load_balancing_type", "aux_loss") &&
               !is_another("moe_router_load_balancing_type", "sinkhorn"),
           "its router balances by sinkhorn");
    refuse(flag("moe_router_pre_softmax") && names().of_experts.normalized_key.empty(),
           "the weights of its experts do not add up to 1 (moe_router_pre_softmax)");
    refuse(has_number("moe_shared_expert_intermediate_size"), "it has shared experts");
    refuse(has_number("moe_router_num_groups"), "its experts have groups");
    refuse(has_number("moe_router_topk_scaling_factor"), "the weights of its experts are scaled");
    refuse(flag("moe_router_enable_expert_bias"), "its router has corrections (expert_bias)");
    refuse(flag("moe_apply_probs_on_input"), "the inputs of its experts are weighted");
    refuse(has_number("moe_latent_size"), "its experts have a latent size");
    refuse(layers_ > 65536, "it has more than 65536 layers");
    refuse(names().of_experts.dense_key.empty() && !dense_layers().items().empty(),
           "a part of its layers has experts (moe_layer_freq)");
    refuse(has_number("expert_tensor_parallel_size") &&
               integer_argument("expert_tensor_parallel_size") != tensor_,
           "its experts are split over other ranks than its layers");
    refuse(experts_ % expert_ranks_ != 0 || expert_width_ % tensor_ != 0,
           "its experts do not fit its ranks");
  }
  /// moe_layer_freq: absent, a number N for every Nth layer from the first on, or a mark for each
  /// layer.
  [[nodiscard]] bool is_sparse(std::int64_t layer) const {
    if (experts_ == 0) return false;
    const json::Value* const given = argument("moe_layer_freq");
    if (given != nullptr && given->is_array()) {
      const auto& marks = given->items();
      return layer < std::ssize(marks) && marks[static_cast<std::size_t>(layer)].is_number() &&
             marks[static_cast<std::size_t>(layer)].as_double() == 1.0;
    }
    const std::int64_t every = integer_argument("moe_layer_freq");
    return every <= 1 || layer % every == 0;
  }
  /// The layers that have an MLP.
  [[nodiscard]] json::Value dense_layers() const {
    json::Value out = json::Value::array();
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      if (!is_sparse(layer)) out.push_back(json::Value::integer(layer));
    }
    return out;
  }
  /// One of the experts of an expert-parallel rank on a tensor-parallel rank: the gate rows, then
  /// the up rows, and the output matrix, in the three layouts of megatron.core.
  struct ExpertMatrices {
    Weight input, output;  ///< [2 mine, width], [width, mine]
  };
  [[nodiscard]] ExpertMatrices expert_at(
      int t, StageOf at, int owner, const std::string& theirs, std::int64_t i) const {
    const std::int64_t mine = expert_width_ / tensor_, here = experts_ / expert_ranks_;
    const std::string root = theirs + "mlp.experts.";
    const Named& held = held_by(t, at, owner);
    const auto pair = [&](const std::string& first, const std::string& second) {
      return ExpertMatrices{expert_tensor(t, at, owner, first, {2 * mine, width_}),
                            expert_tensor(t, at, owner, second, {width_, mine})};
    };
    if (held.has(root + "weight1")) {  // grouped: one tensor [experts, in, out] each
      const auto matrix_of =
          [&](const char* name, const Shape& shape, std::int64_t in, std::int64_t out) {
            Weight one = expert_tensor(t, at, owner, root + name, shape);
            one.data += i * in * out * static_cast<std::int64_t>(size_of(one.dtype));
            one.shape = {in, out};
            one.strides = row_major(one.shape);
            return transposed(std::move(one));
          };
      return {matrix_of("weight1", {width_, here * 2 * mine}, width_, 2 * mine),
              matrix_of("weight2", {here * mine, width_}, mine, width_)};
    }
    const std::string local = fmt::format("{}local_experts.{}.", root, i);
    if (held.has(local + "linear_fc1.weight"))
      return pair(local + "linear_fc1.weight", local + "linear_fc2.weight");
    return pair(fmt::format("{}linear_fc1.weight{}", root, i),
                fmt::format("{}linear_fc2.weight{}", root, i));
  }
  void add_experts(StageOf at, const std::string& theirs, const std::string& layer) {
    const models::MegatronExpertNames& ours = names().of_experts;
    const std::int64_t mine = expert_width_ / tensor_, here = experts_ / expert_ranks_;
    replicated(
        at, theirs + "mlp.router.weight", layer + ours.router + ".weight", {experts_, width_});
    for (std::int64_t e = 0; e < experts_; ++e) {
      std::vector<Weight> gate, up, down;
      for (int t = 0; t < tensor_; ++t) {
        ExpertMatrices one = expert_at(t, at, static_cast<int>(e / here), theirs, e % here);
        Weight rows = one.input;
        rows.shape[0] = mine;
        gate.push_back(rows);
        rows.data += mine * rows.strides[0] * static_cast<std::int64_t>(size_of(rows.dtype));
        up.push_back(std::move(rows));
        down.push_back(std::move(one.output));
      }
      const auto name = [&](const std::string& module) {
        return fmt::format("{}{}.{}.{}.weight", layer, ours.experts, e, module);
      };
      add_joined(name(ours.gate), {expert_width_, width_}, 0, std::move(gate));
      add_joined(name(ours.up), {expert_width_, width_}, 0, std::move(up));
      add_joined(name(ours.down), {width_, expert_width_}, 1, std::move(down));
    }
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
    if (is_sparse(which.number)) return add_experts(at, theirs, layer);
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
    json::Value out = json::Value::object(
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
    if (experts_ == 0) return out;
    const models::MegatronExpertNames& ours = names().of_experts;
    out[ours.count_key] = count(experts_);
    out["num_experts_per_tok"] = count(has_number("moe_router_topk") ? size("moe_router_topk") : 2);
    out[ours.width_key] = count(expert_width_);
    if (!ours.normalized_key.empty())
      out[ours.normalized_key] = json::Value::boolean(!flag("moe_router_pre_softmax"));
    if (!ours.dense_key.empty()) out[ours.dense_key] = dense_layers();
    return out;
  }

  std::int64_t groups_ = 0, head_dim_ = 0;
  std::int64_t experts_ = 0, expert_width_ = 0;
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
