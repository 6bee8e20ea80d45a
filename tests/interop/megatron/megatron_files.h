// SPDX-License-Identifier: Apache-2.0
// Checkpoints as Megatron-LM writes them, constructed from a model in Hugging Face's layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/gpt_files.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>

#include "tessera/base/dtype.h"
#include "tessera/base/files.h"

namespace tessera::interop::test::megatron {

using gpt::File;
using gpt::kHeads;
using gpt::kInner;
using gpt::kLayers;
using gpt::kPositions;
using gpt::kVocab;
using gpt::kWidth;
using gpt::Members;
using gpt::Model;
using gpt::model_of;
using gpt::number;
using gpt::slice;
using gpt::Tensor;
using gpt::turned;
using Named = std::vector<std::pair<std::string, Tensor>>;

inline constexpr std::int64_t kPadded = 12, kDivisor = 3, kDim = kWidth / kHeads;
inline constexpr float kPadding = -1.0F;

/// The names that one generation of Megatron uses, in the order in which its modules are declared.
struct Names {
  const char *embedding, *layers, *norm_1, *qkv, *dense, *norm_2, *fc_1, *fc_2, *final_norm, *head;
};
inline constexpr Names kCore = {"embedding.",
                                "decoder.layers.",
                                "input_layernorm.",
                                "self_attention.linear_qkv.",
                                "self_attention.linear_proj.",
                                "pre_mlp_layernorm.",
                                "mlp.linear_fc1.",
                                "mlp.linear_fc2.",
                                "decoder.final_layernorm.",
                                "output_layer.weight"};
inline constexpr Names kFused = {"embedding.",
                                 "decoder.layers.",
                                 "self_attention.linear_qkv.layer_norm_",
                                 "self_attention.linear_qkv.",
                                 "self_attention.linear_proj.",
                                 "mlp.linear_fc1.layer_norm_",
                                 "mlp.linear_fc1.",
                                 "mlp.linear_fc2.",
                                 "decoder.final_layernorm.",
                                 "output_layer.weight"};
inline constexpr Names kLegacy = {"language_model.embedding.",
                                  "language_model.encoder.layers.",
                                  "input_norm.",
                                  "self_attention.query_key_value.",
                                  "self_attention.dense.",
                                  "post_attention_norm.",
                                  "mlp.dense_h_to_4h.",
                                  "mlp.dense_4h_to_h.",
                                  "language_model.encoder.final_norm.",
                                  "language_model.output_layer.weight"};
inline constexpr Names kOldest = {"language_model.embedding.",
                                  "language_model.transformer.layers.",
                                  "input_layernorm.",
                                  "attention.query_key_value.",
                                  "attention.dense.",
                                  "post_attention_layernorm.",
                                  "mlp.dense_h_to_4h.",
                                  "mlp.dense_4h_to_h.",
                                  "language_model.transformer.final_layernorm.",
                                  "language_model.output_layer.weight"};

enum class Optimizer : std::uint8_t {
  None,
  Mixed,        ///< 16-bit weights, fp32 masters, two groups, apex's Adam
  Plain,        ///< fp32, one group, torch's Adam
  Distributed,  ///< only the settings
};

struct Layout {
  std::int64_t tensor = 1, pipeline = 1, chunks = 1;
  int version = 3;  ///< 0: not in the file
  Names words = kCore;
  bool untied = false;
  Optimizer optimizer = Optimizer::None;
  bool vectors_first = false;        ///< the group without decay
  std::vector<std::int64_t> layers;  ///< number on each pipeline rank; empty: the same on all
  Members args;                      ///< additional arguments; the last one of a name counts
  /// Modifies the optimizer of a rank before it is written.
  std::function<void(Members& optimizer)> spoil;
};

/// Returns the positions, among Hugging Face's columns, of Megatron's rows of a rank's queries,
/// keys and values.
inline std::vector<std::int64_t> qkv_rows(const Layout& layout, std::int64_t t) {
  const std::int64_t heads = kHeads / layout.tensor;
  std::vector<std::int64_t> out(static_cast<std::size_t>(3 * heads * kDim));
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t which = 0; which < 3; ++which) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        const std::int64_t row = layout.version >= 2   ? (head * 3 + which) * kDim + d
                                 : layout.version == 1 ? (head * kDim + d) * 3 + which
                                                       : (which * heads + head) * kDim + d;
        out[static_cast<std::size_t>(row)] = which * kWidth + (t * heads + head) * kDim + d;
      }
    }
  }
  return out;
}
inline Tensor table(const Tensor& from, const Layout& layout, std::int64_t t) {
  const std::int64_t rows = kPadded / layout.tensor;
  Tensor out{{rows, kWidth}, {}};
  for (std::int64_t i = t * rows * kWidth; i < (t + 1) * rows * kWidth; ++i)
    out.values.push_back(i < kVocab * kWidth ? from.values[static_cast<std::size_t>(i)] : kPadding);
  return out;
}

/// Returns the layers of a model chunk: first and count. Megatron: chunk v of rank p begins at v *
/// (layers / chunks) + p * (layers / chunks / ranks).
inline std::pair<std::int64_t, std::int64_t> layers_of(const Layout& layout,
                                                       std::int64_t p,
                                                       std::int64_t chunk) {
  if (!layout.layers.empty()) {
    std::int64_t first = 0;
    for (std::int64_t r = 0; r < p; ++r)
      first += layout.layers[static_cast<std::size_t>(r)];
    return {first, layout.layers[static_cast<std::size_t>(p)]};
  }
  const std::int64_t count = kLayers / layout.chunks / layout.pipeline;
  return {chunk * (kLayers / layout.chunks) + p * count, count};
}

/// Returns the part of a model chunk that a rank holds, in the order of its modules.
inline Named cut(
    const Model& model, const Layout& layout, std::int64_t t, std::int64_t p, std::int64_t chunk) {
  const Names& words = layout.words;
  Named out;
  if (p == 0 && chunk == 0) {
    const std::string embedding = words.embedding;
    out.emplace_back(embedding + "word_embeddings.weight",
                     table(model.at("wte.weight"), layout, t));
    out.emplace_back(embedding + "position_embeddings.weight", model.at("wpe.weight"));
  }
  const auto [first, count] = layers_of(layout, p, chunk);
  const std::int64_t width = kWidth / layout.tensor, inner = kInner / layout.tensor;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string theirs = fmt::format("{}{}.", words.layers, i);
    const std::string ours = fmt::format("h.{}.", first + i);
    const auto whole = [&](const std::string& to, const std::string& from) {
      out.emplace_back(theirs + to, model.at(ours + from));
    };
    whole(std::string(words.norm_1) + "weight", "ln_1.weight");
    whole(std::string(words.norm_1) + "bias", "ln_1.bias");
    const Tensor &fused = model.at(ours + "attn.c_attn.weight"),
                 &bias = model.at(ours + "attn.c_attn.bias");
    Tensor rows{{3 * width, kWidth}, {}}, biases{{3 * width}, {}};
    for (const std::int64_t column : qkv_rows(layout, t)) {
      const Tensor row = turned(fused, column, 1, 0, kWidth);
      rows.values.insert(rows.values.end(), row.values.begin(), row.values.end());
      biases.values.push_back(bias.values[static_cast<std::size_t>(column)]);
    }
    out.emplace_back(theirs + words.qkv + "weight", rows);
    out.emplace_back(theirs + words.qkv + "bias", biases);
    out.emplace_back(theirs + words.dense + "weight",
                     turned(model.at(ours + "attn.c_proj.weight"), 0, kWidth, t * width, width));
    whole(std::string(words.dense) + "bias", "attn.c_proj.bias");
    whole(std::string(words.norm_2) + "weight", "ln_2.weight");
    whole(std::string(words.norm_2) + "bias", "ln_2.bias");
    out.emplace_back(theirs + words.fc_1 + "weight",
                     turned(model.at(ours + "mlp.c_fc.weight"), t * inner, inner, 0, kWidth));
    out.emplace_back(theirs + words.fc_1 + "bias",
                     slice(model.at(ours + "mlp.c_fc.bias"), t * inner, inner));
    out.emplace_back(theirs + words.fc_2 + "weight",
                     turned(model.at(ours + "mlp.c_proj.weight"), 0, kWidth, t * inner, inner));
    whole(std::string(words.fc_2) + "bias", "mlp.c_proj.bias");
  }
  if (p == layout.pipeline - 1 && chunk == layout.chunks - 1) {
    out.emplace_back(std::string(words.final_norm) + "weight", model.at("ln_f.weight"));
    out.emplace_back(std::string(words.final_norm) + "bias", model.at("ln_f.bias"));
    // With several stages the last one also has a tied head.
    if (layout.untied || p > 0)
      out.emplace_back(words.head,
                       table(model.at(layout.untied ? "lm_head.weight" : "wte.weight"), layout, t));
  }
  return out;
}

inline std::string arguments(const Layout& layout) {
  Members args = {{"num_layers", op::integer(kLayers)},
                  {"hidden_size", op::integer(kWidth)},
                  {"num_attention_heads", op::integer(kHeads)},
                  {"max_position_embeddings", op::integer(kPositions)},
                  {"ffn_hidden_size", op::integer(kInner)},
                  {"make_vocab_size_divisible_by", op::integer(kDivisor)},
                  {"padded_vocab_size", op::integer(kPadded)},
                  {"tensor_model_parallel_size", op::integer(layout.tensor)},
                  {"pipeline_model_parallel_size", op::integer(layout.pipeline)},
                  {"bias_gelu_fusion", "\x88"},
                  {"consumed_train_samples", op::integer(96)},
                  {"optimizer", op::text("adam")},
                  {"lr", number(0.5)},
                  {"weight_decay", number(0.125)},
                  {"adam_beta1", number(0.75)},
                  {"adam_beta2", number(0.875)},
                  {"clip_grad", number(1.0)},
                  {"params_dtype", op::global("torch", "bfloat16")}};
  if (layout.untied) args.emplace_back("untie_embeddings_and_output_weights", "\x88");
  args.insert(args.end(), layout.args.begin(), layout.args.end());
  return op::global("argparse", "Namespace") + ")\x81" + op::dict(args) + "b";
}

/// Formats the dict of a model: old generations use nested dicts, whose names contain dots below
/// that.
inline std::string nested(const Members& members) {
  constexpr std::string_view kRoot = "language_model.";
  if (members.empty() || !members.front().first.starts_with(kRoot)) return op::dict(members);
  std::vector<std::pair<std::string, Members>> modules;
  for (const auto& [name, value] : members) {
    const std::string below = name.substr(kRoot.size());
    const std::size_t dot = below.find('.');
    if (modules.empty() || modules.back().first != below.substr(0, dot))
      modules.emplace_back(below.substr(0, dot), Members());
    modules.back().second.emplace_back(below.substr(dot + 1), value);
  }
  Members out;
  for (const auto& [name, inside] : modules)
    out.emplace_back(name, op::dict(inside));
  return op::dict({{"language_model", op::dict(out)}});
}

/// Numbers of the models that a file holds as weights, masters and moments.
inline constexpr int kWeightSet = 0, kMasterSet = 1, kMomentSet = 2, kVarianceSet = 3;
inline constexpr std::int64_t kIteration = 12, kUpdates = 9;

inline Members optimizer_of(File& file, const Layout& layout, std::int64_t t, std::int64_t p) {
  const auto all = [&](int set) {
    Named out;
    for (std::int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      for (auto& item : cut(model_of(set), layout, t, p, chunk))
        out.push_back(std::move(item));
    }
    return out;
  };
  const Named masters = all(kMasterSet), moments = all(kMomentSet), variances = all(kVarianceSet);
  const bool mixed = layout.optimizer == Optimizer::Mixed;
  std::vector<std::vector<std::size_t>> groups(mixed ? 2 : 1);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const bool vector = masters[i].second.shape.size() == 1;
    groups[mixed && vector != layout.vectors_first ? 1 : 0].push_back(i);
  }
  std::string state = "}(";
  std::vector<std::string> described, copies;
  std::int64_t next = 0;
  for (const auto& group : groups) {
    std::vector<std::string> numbers, of_group;
    for (const std::size_t i : group) {
      Members kept = {{"exp_avg", file.tensor(moments[i].second)},
                      {"exp_avg_sq", file.tensor(variances[i].second)}};
      if (!mixed) kept.emplace_back("step", file.tensor({{}, {static_cast<float>(kUpdates)}}));
      state += op::integer(next) + op::dict(kept);
      numbers.push_back(op::integer(next++));
      if (mixed) of_group.push_back(file.tensor(masters[i].second));
    }
    Members settings = {{"lr", number(0.25)}, {"params", op::list_of(numbers)}};
    if (mixed) settings.emplace_back("step", op::integer(kUpdates));
    described.push_back(op::dict(settings));
    copies.push_back(op::list_of(of_group));
  }
  const Members inner = {{"state", state + "u"}, {"param_groups", op::list_of(described)}};
  if (layout.optimizer == Optimizer::Plain) return inner;
  if (layout.optimizer == Optimizer::Distributed)
    return {
        {"optimizer", op::dict({{"param_groups", op::list_of({op::dict({{"lr", number(1)}})})}})}};
  return {{"optimizer", op::dict(inner)},
          {"grad_scaler",
           op::dict({{"scale", file.tensor({{1}, {4096.0F}})},
                     {"growth_tracker", op::integer(5)},
                     {"hysteresis_tracker", op::integer(1)}})},
          {"fp32_from_fp16_params", op::list_of(copies)}};
}

inline std::filesystem::path rank_file(const std::filesystem::path& folder,
                                       const Layout& layout,
                                       std::int64_t t,
                                       std::int64_t p) {
  const std::string rank = layout.pipeline > 1 ? fmt::format("mp_rank_{:02}_{:03}", t, p)
                                               : fmt::format("mp_rank_{:02}", t);
  return folder / "iter_0000012" / rank / "model_optim_rng.pt";
}

inline void write(const std::filesystem::path& folder, const Layout& layout) {
  const Model model = model_of(kWeightSet);
  for (std::int64_t p = 0; p < layout.pipeline; ++p) {
    for (std::int64_t t = 0; t < layout.tensor; ++t) {
      File file;
      Members out = {{"args", arguments(layout)}, {"iteration", op::integer(kIteration)}};
      if (layout.version > 0) out.emplace_back("checkpoint_version", number(layout.version));
      for (std::int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
        Members members;
        for (const auto& [name, tensor] : cut(model, layout, t, p, chunk))
          members.emplace_back(
              name,
              file.tensor(tensor, layout.optimizer == Optimizer::Mixed ? DType::BF16 : DType::F32));
        out.emplace_back(layout.chunks > 1 ? fmt::format("model{}", chunk) : "model",
                         nested(members));
      }
      if (layout.optimizer != Optimizer::None) {
        Members optimizer = optimizer_of(file, layout, t, p);
        if (layout.spoil) layout.spoil(optimizer);
        out.emplace_back("optimizer", op::dict(optimizer));
      }
      file.write(rank_file(folder, layout, t, p), out);
    }
  }
  files::write_atomic(folder / "latest_checkpointed_iteration.txt", "12");
}

}  // namespace tessera::interop::test::megatron
