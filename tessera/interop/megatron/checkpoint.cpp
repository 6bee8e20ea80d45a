// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's torch checkpoints: one file per tensor- and pipeline-parallel rank. Contents:
// docs/formats/others.md. This file reads GPT-2-like models, rotary.cpp other decoders,
// and encoders.cpp BertModel and T5Model.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/megatron/encoders.h"
#include "tessera/interop/megatron/reader.h"
#include "tessera/interop/megatron/rotary.h"
#include "tessera/models/gpt_names.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using megatron::Candidates;
using megatron::files_of;
using megatron::is_distributed;
using megatron::iteration_folder;
using megatron::named;
using megatron::Shape;
using megatron::StageOf;

bool recognises(const fs::path& path) {
  try {
    const fs::path folder = iteration_folder(path);
    return !files_of(folder).empty() || is_distributed(folder);
  } catch (const std::exception&) {
    return false;
  }
}

/// Learned positions, LayerNorm, biases, and an MLP with two projections.
class LearnedReader final : public megatron::Reader {
 public:
  using Reader::Reader;

 private:
  [[nodiscard]] const models::GptNames& names() const {
    return models::names_of_gpt(first().path.string());
  }
  [[nodiscard]] std::string table_name() const override { return names().table; }
  [[nodiscard]] std::string head_name() const override { return names().head; }

  void read_sizes() override { read_learned_sizes(); }

  void add_first(StageOf at) override {
    replicated(
        at, named(weights(at), "", megatron::kPositions), names().positions, {positions_, width_});
  }

  // Version 0 stores q, k and v one after the other, version 1 interleaves the three for each
  // value, later versions for each head.
  [[nodiscard]] Weight qkv_view(Weight local, std::int64_t columns) const {
    const std::int64_t heads = heads_ / tensor_, dim = width_ / heads_;
    const double version = number_at(first().values, "checkpoint_version").value_or(0.0);
    const bool matrix = columns > 0;
    const std::int64_t row = matrix ? columns : 1;
    // The row strides for indices [3, heads, dim].
    const Shape strides = version >= 2.0   ? Shape{dim * row, 3 * dim * row, row}
                          : version >= 1.0 ? Shape{row, 3 * dim * row, 3 * row}
                                           : Shape{heads * dim * row, dim * row, row};
    local.shape = {3, heads, dim};
    local.strides = strides;
    if (matrix) {
      local.shape.insert(local.shape.begin(), columns);
      local.strides.insert(local.strides.begin(), 1);
    }
    return local;
  }

  void add_norm(StageOf at, const std::string& theirs, const std::string& name) {
    for (const char* part : {"weight", "bias"})
      replicated(at, theirs + part, name + "." + part, {width_});
  }
  /// Reorders [3 width, width] by heads to [width, 3 width] with queries, keys and values.
  void add_attention_input(StageOf at, const std::string& theirs, const std::string& name) {
    const std::int64_t local = 3 * width_ / tensor_, dim = width_ / heads_;
    joined(at,
           theirs + "weight",
           name + ".weight",
           {local, width_},
           {width_, 3, heads_, dim},
           2,
           {width_, 3 * width_},
           [&](const Weight& w) { return qkv_view(w, width_); });
    joined(at,
           theirs + "bias",
           name + ".bias",
           {local},
           {3, heads_, dim},
           1,
           {3 * width_},
           [&](const Weight& w) { return qkv_view(w, 0); });
  }
  /// [to, from], split along `to`.
  void add_column_parallel(StageOf at,
                           const std::string& theirs,
                           const std::string& name,
                           std::int64_t to,
                           std::int64_t from) {
    joined(at,
           theirs + "weight",
           name + ".weight",
           {to / tensor_, from},
           {from, to},
           1,
           {from, to},
           [](const Weight& w) { return transposed(w); });
    joined(at, theirs + "bias", name + ".bias", {to / tensor_}, {to}, 0, {to}, [](const Weight& w) {
      return w;
    });
  }
  /// [to, from], split along `from`.
  void add_row_parallel(StageOf at,
                        const std::string& theirs,
                        const std::string& name,
                        std::int64_t to,
                        std::int64_t from) {
    joined(at,
           theirs + "weight",
           name + ".weight",
           {to, from / tensor_},
           {from, to},
           0,
           {from, to},
           [](const Weight& w) { return transposed(w); });
    replicated(at, theirs + "bias", name + ".bias", {to});
  }
  void add_layer(StageOf at, const std::string& theirs, const megatron::LayerOf& layer) override {
    const auto of = [&](Candidates names) { return named(weights(at), theirs, names, "weight"); };
    const auto name = [&](const std::string& module) {
      return names().in_layer(layer.number, module);
    };
    add_norm(at, of(megatron::kAttentionNorm), name(names().attention_norm));
    add_attention_input(at, of(megatron::kQkv), name(names().attention_input));
    add_row_parallel(at, of(megatron::kProjection), name(names().attention_output), width_, width_);
    add_norm(at, of(megatron::kMlpNorm), name(names().mlp_norm));
    add_column_parallel(at, of(megatron::kFc1), name(names().mlp_input), inner_, width_);
    add_row_parallel(at, of(megatron::kFc2), name(names().mlp_output), width_, inner_);
  }

  void add_last(StageOf at) override {
    add_norm(at, named(weights(at), "", megatron::kFinalNorm, "weight"), names().final_norm);
  }

  [[nodiscard]] json::Value model_config() const override {
    const auto number = [](std::int64_t value) { return json::Value::integer(value); };
    const json::Value* eps = argument("layernorm_epsilon");
    if (eps == nullptr || !eps->is_number()) eps = argument("norm_epsilon");
    json::Value facts = json::Value::object(
        {{"vocab_size", number(vocab_)},
         {"max_positions", number(positions_)},
         {"hidden_size", number(width_)},
         {"ffn_hidden_size", number(inner_)},
         {"num_layers", number(layers_)},
         {"num_heads", number(heads_)},
         {"activation", json::Value::string(learned_activation())},
         {"norm_eps", eps != nullptr && eps->is_number() ? *eps : json::Value::number(1e-5)}});
    if (untied_) facts["tie_embeddings"] = json::Value::boolean(false);
    return names().config_of(facts);
  }
};

Foreign open(const fs::path& path) {
  TESSERA_REQUIRE(!is_distributed(iteration_folder(path)),
                  Unsupported,
                  fmt::format("{}: is of Megatron-LM's format torch_dist, which is not read",
                              iteration_folder(path).string()),
                  "save it with --ckpt-format torch, or let Megatron-LM convert it: "
                  "--ckpt-convert-format torch");
  LearnedReader reader(path);
  const megatron::ModelKind kind = reader.kind();
  if (kind != megatron::ModelKind::Decoder) return megatron::read_encoder(path, kind);
  return megatron::is_rotary(reader) ? megatron::read_rotary(path) : reader.read();
}

TESSERA_FOREIGN_FORMAT("megatron", (ForeignFormat{recognises, open}));

}  // namespace
}  // namespace tessera::interop
