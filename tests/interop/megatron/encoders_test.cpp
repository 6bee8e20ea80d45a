// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of BertModel and T5Model: tensors of known values are sharded over
// ranks as each generation shards them, and the models that are read give the logits of
// transformers and torch (data/make_megatron_encoders.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "interop/torch/torch_bytes.h"
#include "support/model_runner.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace gpt = test::gpt;
namespace op = test::op;
using gpt::Members;
using gpt::Tensor;
using ::testing::HasSubstr;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

constexpr std::int64_t kWidth = 16, kHeads = 4, kDim = 4, kInner = 24, kPositions = 12, kVocab = 15;
constexpr std::int64_t kPaddedVocab = 16;
constexpr double kLogits = 5e-5;

/// The layout and the version of a saved model.
struct Saved {
  std::int64_t tensor = 1, pipeline = 1;
  int version = 3;
  bool core = false;     ///< the names of megatron.core
  bool pairs = true;     ///< a BERT with token types, a pooler and a head for pairs of texts
  bool moments = false;  ///< an optimizer whose moments equal the weights
  Members args = {};     ///< in addition to those of the model
};

const json::Value& record(const char* model) {
  static const json::Value all = golden::read_json(tessera::test::source_dir() / "tests" /
                                                   "interop" / "data" / "megatron_encoders.json");
  return golden::at(all, model);
}

at::Tensor numbers(const json::Value& value) {
  if (!value.is_array()) return at::scalar_tensor(value.as_double(), at::kDouble);
  std::vector<at::Tensor> rows;
  for (const json::Value& row : value.items())
    rows.push_back(numbers(row));
  return at::stack(rows);
}

bool ends(const std::string& name, const std::vector<std::string>& endings) {
  return std::ranges::any_of(endings, [&](const std::string& end) { return name.ends_with(end); });
}

/// The whole tensors of the record, by the rule of make_megatron_encoders.py.
Tensors whole(const char* model) {
  Tensors out;
  for (const auto& [name, list] : golden::at(record(model), "tensors").members()) {
    Tensor tensor;
    std::int64_t count = 1;
    for (const json::Value& dim : list.items()) {
      tensor.shape.push_back(*dim.as_integer());
      count *= tensor.shape.back();
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const double f =
          1e4 * std::sin(13.0 * static_cast<double>(i) + 7.0 * static_cast<double>(out.size()) + 1);
      tensor.values.push_back(static_cast<float>(1.6 * (f - std::floor(f) - 0.5) +
                                                 (name.ends_with("norm.weight") ? 1.0 : 0.0)));
    }
    out.emplace_back(name, std::move(tensor));
  }
  return out;
}

Tensor rows(const Tensor& from, const std::vector<std::int64_t>& which) {
  const std::int64_t row = from.shape.size() > 1 ? from.shape[1] : 1;
  Tensor out{from.shape, {}};
  out.shape[0] = std::ssize(which);
  for (const std::int64_t r : which)
    out.values.insert(
        out.values.end(), from.values.begin() + r * row, from.values.begin() + (r + 1) * row);
  return out;
}

/// Rows of `count` fused projections in the version's order, of the heads of rank t; version 3 has
/// [head][which][dim].
std::vector<std::int64_t> fused_rows(const Saved& saved, std::int64_t t, std::int64_t count) {
  const std::int64_t heads = kHeads / saved.tensor;
  std::vector<std::int64_t> out(static_cast<std::size_t>(heads * count * kDim));
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t which = 0; which < count; ++which) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        const std::int64_t to = saved.version >= 2   ? (head * count + which) * kDim + d
                                : saved.version == 1 ? (head * kDim + d) * count + which
                                                     : (which * heads + head) * kDim + d;
        out[static_cast<std::size_t>(to)] = ((t * heads + head) * count + which) * kDim + d;
      }
    }
  }
  return out;
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = begin; i < begin + count; ++i)
    out.push_back(i);
  return out;
}

/// The part of a tensor that rank t holds.
Tensor part(const std::string& name, Tensor tensor, const Saved& saved, std::int64_t t) {
  if (ends(name, {"word_embeddings.weight", "lm_head.bias"})) {
    const std::int64_t row = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    tensor.values.resize(static_cast<std::size_t>(kPaddedVocab * row), -9.0F);
    const std::int64_t mine = kPaddedVocab / saved.tensor;
    return rows(tensor, range(t * mine, mine));
  }
  if (name.find("query_key_value.") != std::string::npos)
    return rows(tensor, fused_rows(saved, t, 3));
  if (name.find("key_value.") != std::string::npos) return rows(tensor, fused_rows(saved, t, 2));
  if (name.find("attention.query.") != std::string::npos ||
      name.find("dense_h_to_4h.") != std::string::npos) {
    const std::int64_t mine = tensor.shape[0] / saved.tensor;
    return rows(tensor, range(t * mine, mine));
  }
  if (!ends(name, {"attention.dense.weight", "dense_4h_to_h.weight"})) return tensor;
  const std::int64_t mine = tensor.shape[1] / saved.tensor;
  Tensor out{{tensor.shape[0], mine}, {}};
  for (std::int64_t r = 0; r < tensor.shape[0]; ++r) {
    const auto begin = tensor.values.begin() + r * tensor.shape[1] + t * mine;
    out.values.insert(out.values.end(), begin, begin + mine);
  }
  return out;
}

std::string replaced(std::string name, const std::string& old, const std::string& with) {
  const std::size_t at = name.find(old);
  return at == std::string::npos ? name : name.replace(at, old.size(), with);
}

/// The name in megatron.core.
std::string core_name(std::string name, bool decodes) {
  const bool decoder = name.find(".decoder.") != std::string::npos;
  const std::vector<std::pair<std::string, std::string>> names = {
      {"language_model.", ""},
      {"query_key_value", "linear_qkv"},
      {"self_attention.dense", "self_attention.linear_proj"},
      {"inter_attention.query", "cross_attention.linear_q"},
      {"inter_attention.key_value", "cross_attention.linear_kv"},
      {"inter_attention.dense", "cross_attention.linear_proj"},
      {"post_attention_layernorm", decoder ? "pre_cross_attn_layernorm" : "pre_mlp_layernorm"},
      {"post_inter_attention_layernorm", "pre_mlp_layernorm"},
      {"dense_h_to_4h", "linear_fc1"},
      {"dense_4h_to_h", "linear_fc2"},
      {"lm_head.layernorm", "lm_head.layer_norm"},
      {"lm_head.bias", decodes ? "lm_head.output_layer.bias" : "output_layer.bias"}};
  for (const auto& [old, with] : names)
    name = replaced(std::move(name), old, with);
  return name;
}

/// The pipeline stage of a tensor, and its name there: a BERT has a layer on each stage, a T5 its
/// encoder on the first.
std::pair<std::int64_t, std::string> place_of(const std::string& name, bool decodes) {
  const bool first = name.find(".embedding.") != std::string::npos;
  if (decodes) return {first || name.find(".encoder.") != std::string::npos ? 0 : 1, name};
  if (first || name.find("layers.0.") != std::string::npos) return {0, name};
  return {1, replaced(name, "layers.1.", "layers.0.")};
}

/// Formats tensors as the dicts of modules in which earlier generations keep them.
std::string in_modules(const Members& members, bool top) {
  std::vector<std::pair<std::string, Members>> modules;
  for (const auto& [name, value] : members) {
    const std::size_t dot = name.find('.');
    if (modules.empty() || modules.back().first != name.substr(0, dot))
      modules.emplace_back(name.substr(0, dot), Members());
    modules.back().second.emplace_back(name.substr(dot + 1), value);
  }
  Members out;
  for (const auto& [name, inside] : modules)
    out.emplace_back(
        name, top && name == "language_model" ? in_modules(inside, false) : op::dict(inside));
  return op::dict(out);
}

std::string arguments(const Saved& saved, bool decodes) {
  Members args = {{"num_layers", op::integer(2)},
                  {"hidden_size", op::integer(kWidth)},
                  {"num_attention_heads", op::integer(kHeads)},
                  {"kv_channels", op::integer(kDim)},
                  {"ffn_hidden_size", op::integer(kInner)},
                  {"max_position_embeddings", op::integer(kPositions)},
                  {"layernorm_epsilon", gpt::number(1e-5)},
                  {"hidden_dropout", gpt::number(0.25)},
                  {"vocab_size", op::integer(kVocab)},
                  {"make_vocab_size_divisible_by", op::integer(4)},
                  {"tensor_model_parallel_size", op::integer(saved.tensor)},
                  {"pipeline_model_parallel_size", op::integer(saved.pipeline)}};
  if (decodes) {
    args.emplace_back("encoder_num_layers", op::integer(2));
    args.emplace_back("decoder_num_layers", op::integer(3));
  }
  args.insert(args.end(), saved.args.begin(), saved.args.end());
  return op::global("argparse", "Namespace") + ")\x81" + op::dict(args) + "b";
}

void write(const fs::path& folder, const char* model, const Saved& saved) {
  const bool decodes = model == std::string("t5");
  for (std::int64_t p = 0; p < saved.pipeline; ++p) {
    for (std::int64_t t = 0; t < saved.tensor; ++t) {
      gpt::File file;
      Members held;
      std::string state = "}(";
      std::vector<std::string> params;
      for (const auto& [name, tensor] : whole(model)) {
        const bool of_pairs = ends(name, {"tokentype_embeddings.weight"}) ||
                              name.find("pooler.") != std::string::npos ||
                              name.starts_with("binary_head.");
        if (of_pairs && !saved.pairs) continue;
        const auto [stage, here] = saved.pipeline > 1
                                       ? place_of(name, decodes)
                                       : std::pair<std::int64_t, std::string>(0, name);
        if (stage != p) continue;
        const Tensor mine = part(name, tensor, saved, t);
        held.emplace_back(saved.core ? core_name(here, decodes) : here, file.tensor(mine));
        const std::string number = op::integer(std::ssize(params));
        state += number + op::dict({{"exp_avg", file.tensor(mine)}});
        params.push_back(number);
      }
      Members contents = {{"args", arguments(saved, decodes)},
                          {"iteration", op::integer(12)},
                          {"model", saved.core ? op::dict(held) : in_modules(held, true)}};
      if (saved.version > 0)
        contents.emplace_back("checkpoint_version", gpt::number(saved.version));
      if (saved.moments)
        contents.emplace_back(
            "optimizer",
            op::dict(
                {{"state", state + "u"},
                 {"param_groups", op::list_of({op::dict({{"params", op::list_of(params)}})})}}));
      const std::string rank = saved.pipeline > 1 ? fmt::format("mp_rank_{:02}_{:03}", t, p)
                                                  : fmt::format("mp_rank_{:02}", t);
      file.write(folder / "iter_0000012" / rank / "model_optim_rng.pt", contents);
    }
  }
  files::write_atomic(folder / "latest_checkpointed_iteration.txt", "12");
}

class MegatronEncoders : public test::ForeignCheckpoints {
 protected:
  Foreign opened(const char* model, const Saved& saved) {
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    write(folder, model, saved);
    return open_foreign(folder).value();
  }
  void refuses(const char* model, const Saved& saved, const std::string& reason) {
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    write(folder, model, saved);
    refused(folder, reason);
  }
  static models::Resolved resolved(const Foreign& read) {
    const models::ModelOptions options = models::options_from_hf(read.model_config);
    config::Problems problems;
    models::Resolved out = models::resolve(options,
                                           options->vocab_size.value_or(1),
                                           std::nullopt,
                                           problems,
                                           config::Origins(),
                                           models::objective_of_hf(read.model_config));
    problems.raise();
    return out;
  }
  /// Checks the logits of the model that was read for the recorded inputs.
  static void expect_logits(const char* model, const Foreign& read) {
    const models::Resolved built = resolved(read);
    const models::Family& family = models::families().get(models::family_of_hf(read.model_config));
    const models::WeightSource source = weights_of(read.weights, family, built, "the checkpoint");
    tessera::test::ModelRunner runner(built.model, DType::F32);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      source(info, 0, info.numel(), out.data_ptr<float>());
    });
    nn::Batch batch;
    for (const char* key : {"input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"}) {
      if (const json::Value* const found = record(model).find(key))
        batch.set(key, numbers(*found).to(at::kLong));
    }
    batch.sample_ids = {0, 1};
    nn::StepContext context(nn::Mode::Eval, 1);
    context.want_logits = true;

    const auto outputs = runner.infer(batch, context).outputs;

    at::Tensor apart =
        (outputs.at("logits").to(at::kDouble) - numbers(golden::at(record(model), "logits"))).abs();
    if (!batch.has("decoder_input_ids"))
      apart = apart.masked_fill(batch.tensor("attention_mask").eq(0).unsqueeze(-1), 0.0);
    EXPECT_LT(apart.max().item<double>(), kLogits);
    if (const json::Value* const pairs = record(model).find("pair_logits")) {
      const at::Tensor off = outputs.at("pair_logits").to(at::kDouble) - numbers(*pairs);
      EXPECT_LT(off.abs().max().item<double>(), kLogits);
    }
  }

 private:
  int folders_ = 0;
};

std::vector<Saved> ways_to_save() {
  return {{},
          {.tensor = 2, .pipeline = 2, .version = 0},
          {.tensor = 4, .version = 1},
          {.tensor = 2, .core = true},
          {.pipeline = 2, .core = true}};
}

TEST_F(MegatronEncoders, ABertGivesTheLogitsOfTransformersHoweverItWasSaved) {
  for (const Saved& saved : ways_to_save()) {
    SCOPED_TRACE(fmt::format("{} x {} ranks, version {}, {}",
                             saved.tensor,
                             saved.pipeline,
                             saved.version,
                             saved.core ? "megatron.core" : "before"));
    const Foreign read = opened("bert", saved);

    EXPECT_EQ(golden::at(read.model_config, "model_type").as_string(), "megatron-bert");
    EXPECT_EQ(golden::at(read.model_config, "hidden_dropout_prob").as_double(), 0.25);
    EXPECT_EQ(integer_at(read.model_config, "vocab_size", 0), kVocab);
    expect_logits("bert", read);
  }
}

TEST_F(MegatronEncoders, AT5GivesTheLogitsOfTorchHoweverItWasSaved) {
  for (const Saved& saved : ways_to_save()) {
    SCOPED_TRACE(fmt::format("{} x {} ranks, version {}, {}",
                             saved.tensor,
                             saved.pipeline,
                             saved.version,
                             saved.core ? "megatron.core" : "before"));
    const Foreign read = opened("t5", saved);

    EXPECT_EQ(integer_at(read.model_config, "layers_num", 0), 2);
    EXPECT_EQ(integer_at(read.model_config, "decoder_layers_num", 0), 3);
    expect_logits("t5", read);
  }
}

TEST_F(MegatronEncoders, ABertWithoutPairsHasNoTokenTypes) {
  const Foreign read = opened("bert", {.tensor = 2, .pairs = false});

  EXPECT_EQ(golden::at(read.model_config, "architectures").items().at(0).as_string(),
            "MegatronBertForMaskedLM");
  const auto types = std::ranges::find_if(read.weights, [](const checkpoint::StreamedTensor& held) {
    return held.name == "bert.embeddings.token_type_embeddings.weight";
  });
  ASSERT_NE(types, read.weights.end());
  EXPECT_EQ(test::values_of(*types), std::vector<float>(2 * kWidth, 0.0F));
  const models::Resolved built = resolved(read);
  EXPECT_NO_THROW((void)weights_of(
      read.weights, models::families().get("megatron-bert"), built, "the checkpoint"));
}

TEST_F(MegatronEncoders, TheFusedGeluOfTheLayersIsNotTheHeads) {
  const Foreign read = opened("bert", {.args = {{"bias_gelu_fusion", "\x88"}}});

  EXPECT_EQ(golden::at(read.model_config, "hidden_act").as_string(), "gelu_fast");
  EXPECT_EQ(golden::at(read.model_config, "head_activation").as_string(), "gelu");
  const models::Resolved built = resolved(read);
  EXPECT_EQ(golden::at(built.description, "activation").as_string(), "gelu_tanh");
  EXPECT_EQ(golden::at(built.description, "head_activation").as_string(), "gelu");
}

TEST_F(MegatronEncoders, TheMomentsOfABertComeAlong) {
  const Foreign read = opened("bert", {.tensor = 2, .moments = true});

  const auto& moments = read.state.at("exp_avg");
  ASSERT_EQ(moments.size(), read.weights.size());
  for (std::size_t i = 0; i < moments.size(); ++i) {
    EXPECT_EQ(moments[i].name, read.weights[i].name);
    EXPECT_EQ(test::values_of(moments[i]), test::values_of(read.weights[i])) << moments[i].name;
  }
}

TEST_F(MegatronEncoders, OfAT5TheWeightsAloneAreReadAndTheReasonIsGiven) {
  const Foreign read = opened("t5", {.moments = true});

  EXPECT_TRUE(read.state.empty());
  EXPECT_THAT(read.what, HasSubstr("share a table of positions"));
}

TEST_F(MegatronEncoders, WhatNoFamilyComputesIsRefusedByName) {
  const std::string yes = "\x88";
  for (const char* model : {"bert", "t5"}) {
    refuses(model, {.args = {{"swiglu", yes}}}, "its MLP is gated");
    refuses(model,
            {.args = {{"position_embedding_type", op::text("relative")}}},
            "its positions are not learned");
    refuses(model,
            {.args = {{"apply_residual_connection_post_layernorm", yes}}},
            "its residuals begin behind the norm");
  }
  refuses("t5",
          {.args = {{"decoder_num_layers", op::integer(4)}}},
          "its stages hold 3 layers, and its args say 4");
  refuses(
      "bert", {.args = {{"hidden_size", op::integer(32)}}}, "its heads do not make up its width");
}

}  // namespace
}  // namespace tessera::interop
