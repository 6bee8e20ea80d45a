// SPDX-License-Identifier: Apache-2.0
// Models of ModelCenter as BMTrain saves them: each tensor is read as it was written, and a model
// other than GPT2 is rejected by name.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "interop/bmtrain/modelcenter_files.h"
#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace gpt = test::gpt;
namespace mc = test::modelcenter;

class ModelCenter : public test::ForeignCheckpoints {
 protected:
  Foreign opened(const mc::Options& options) {
    mc::write(path("m"), gpt::model_of(0), options);
    return open_foreign(path("m")).value();
  }
  void refuses(const mc::Options& options, const std::string& reason) {
    mc::write(path("m"), gpt::model_of(0), options);
    refused(path("m"), reason);
  }
  static mc::Options with(const std::string& more_config) {
    mc::Options out;
    out.config = fmt::format(R"({{"num_heads": 4, {}}})", more_config);
    return out;
  }
  static mc::Options holding(const std::string& tensor) {
    mc::Options out;
    out.more = {tensor};
    return out;
  }
};

/// The model's tensors to the bit: floats, or 16 bits that are the values themselves.
void expect_model(const std::vector<checkpoint::StreamedTensor>& read, bool half, bool head) {
  std::map<std::string, checkpoint::StreamedTensor> found;
  for (const checkpoint::StreamedTensor& tensor : read)
    found.emplace(tensor.name, tensor);
  const gpt::Model model = gpt::model_of(0);
  EXPECT_EQ(found.size(), model.size() - (head ? 0 : 1));
  for (const auto& [name, tensor] : model) {
    if (name == "lm_head.weight" && !head) continue;
    const auto at = found.find((name == "lm_head.weight" ? "" : "transformer.") + name);
    ASSERT_NE(at, found.end()) << name;
    EXPECT_EQ(at->second.shape, tensor.shape) << name;
    EXPECT_EQ(at->second.dtype, half ? DType::F16 : DType::F32) << name;
    if (!half) {
      EXPECT_EQ(test::values_of(at->second), tensor.values) << name;
      continue;
    }
    std::vector<std::uint16_t> bits(tensor.values.size()), expected;
    at->second.read(
        0, static_cast<std::int64_t>(bits.size()), reinterpret_cast<std::byte*>(bits.data()));
    for (const float value : tensor.values)
      expected.push_back(static_cast<std::uint16_t>(value));
    EXPECT_EQ(bits, expected) << name;
  }
}

TEST_F(ModelCenter, AModelHasHuggingFacesNamesAndLayout) {
  const Foreign read = opened({});

  expect_model(read.weights, false, false);
  EXPECT_EQ(read.weights.front().aliases, (std::vector<std::string>{"lm_head.weight"}));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::int64_t>>{{"vocab_size", gpt::kVocab},
                                                         {"n_positions", gpt::kPositions},
                                                         {"n_embd", gpt::kWidth},
                                                         {"n_inner", gpt::kInner},
                                                         {"n_layer", gpt::kLayers},
                                                         {"n_head", gpt::kHeads}})
    EXPECT_EQ(integer_at(read.model_config, key, 0), value) << key;
  EXPECT_EQ(at_path(read.model_config, "activation_function")->as_string(), "gelu");
  EXPECT_EQ(number_at(read.model_config, "layer_norm_epsilon"), 1e-6);
}

TEST_F(ModelCenter, Fp16WeightsKeepTheirBits) {
  mc::Options options;
  options.dtype = DType::F16;

  expect_model(opened(options).weights, true, false);
}

TEST_F(ModelCenter, AFileUnderAnotherNameIsKnownByItsTensors) {
  mc::write(path("m"), gpt::model_of(0), {});
  fs::rename(path("m/pytorch_model.pt"), path("m/gpt2-3000.pt"));

  expect_model(open_foreign(path("m/gpt2-3000.pt")).value().weights, false, false);
}

TEST_F(ModelCenter, AHeadIsReadIfTheModelIsNotTied) {
  mc::Options untied = with(R"("tied": false)"), unsaid = with(R"("half": true)"), tied;
  for (mc::Options* options : {&untied, &unsaid, &tied})
    options->head = true;

  const Foreign of_untied = opened(untied);

  expect_model(of_untied.weights, false, true);
  EXPECT_EQ(at_path(of_untied.model_config, "tie_word_embeddings")->as_bool(), false);
  expect_model(opened(unsaid).weights, false, true);
  expect_model(opened(tied).weights, false, false);
}

TEST_F(ModelCenter, AnUntiedModelWithoutItsHeadIsRefused) {
  refuses(with(R"("tied": false)"), "has no tensor \"output_projection.weight\"");
}

TEST_F(ModelCenter, TheTanhFormOfGeluIsKeptApart) {
  const Foreign read = opened(with(R"("ffn_activate_fn": "gelu_new")"));

  EXPECT_EQ(at_path(read.model_config, "activation_function")->as_string(), "gelu_new");
}

TEST_F(ModelCenter, ModelsOfRelativeAttentionAreRefusedByName) {
  refuses(holding("position_bias.relative_attention_bias"), "relative_attention_bias");
  refuses(holding("position_bias_enc.relative_attention_bias"), "relative_attention_bias");
  refuses(with(R"("pos_bias_type": "relative")"), "its pos_bias_type is relative");
  refuses(with(R"("pos_bias_type": "rotary")"), "its pos_bias_type is rotary");
}

TEST_F(ModelCenter, OtherModelsOfTheirsAreRefusedByName) {
  refuses(holding("decoder.layers.0.cross_att.self_attention.project_q.weight"),
          "is an encoder-decoder");
  refuses(holding("encoder.layers.0.ffn.ffn.w_in.w_0.weight"), "its MLP is gated");
  refuses(holding("block_position_embedding.weight"), "positions of blocks");
  refuses(holding("cls_projection.weight"), "\"cls_projection.weight\" does not belong to a GPT-2");
  refuses(holding("output_projection.bias"), "its head has a bias");
  refuses(with(R"("ffn_activate_fn": "relu")"), "its activation is OPT's");
  refuses(with(R"("ffn_activate_fn": "silu")"), "its activation is silu");
  refuses(with(R"("length_scale": true)"), "scales by lengths");
  refuses(with(R"("attn_scale": false)"), "does not scale its attention");
  refuses(with(R"("post_layer_norm": true)"), "its norms follow the residual");
}

/// One of the repository's Hugging Face folders.
fs::path golden_model(const std::string& name) {
  return tessera::test::source_dir() / "tests" / "golden" / "reference" / "models" / name;
}

/// Parts of names and their replacements.
using Renaming = std::vector<std::pair<std::string, std::string>>;

/// Writes the folder's tensors under ModelCenter's names; `theirs` names each, or nothing.
void write_renamed(const fs::path& golden_folder,
                   const fs::path& to,
                   const std::function<std::string(std::string)>& theirs,
                   const std::string& config) {
  const checkpoint::SafetensorsFile file(golden_folder / "model.safetensors");
  gpt::File out;
  gpt::Members members;
  for (const auto& entry : file.entries()) {
    std::string name = theirs(entry.name);
    if (name.empty()) continue;
    ASSERT_EQ(entry.dtype, DType::F32);
    gpt::Tensor tensor{entry.shape, std::vector<float>(file.bytes(entry).size() / sizeof(float))};
    std::memcpy(tensor.values.data(), file.bytes(entry).data(), file.bytes(entry).size());
    members.emplace_back(std::move(name), out.tensor(tensor, DType::F32));
  }
  fs::create_directories(to);
  out.write(to / "pytorch_model.pt", members);
  files::write_atomic(to / "config.json", config);
}

/// Replaces each first string of a pair by the second, in this order.
std::string replaced(std::string text, const Renaming& pairs) {
  for (const auto& [from, to] : pairs) {
    const std::size_t at = text.find(from);
    if (at != std::string::npos) text.replace(at, from.size(), to);
  }
  return text;
}

/// Every tensor that is read has the bits of the folder's tensor of its name, and `count` are.
void expect_same_tensors(const Foreign& read, const fs::path& golden_folder, std::size_t count) {
  const checkpoint::SafetensorsFile file(golden_folder / "model.safetensors");
  EXPECT_EQ(read.weights.size(), count);
  for (const checkpoint::StreamedTensor& tensor : read.weights) {
    const auto* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    ASSERT_EQ(entry->shape, tensor.shape) << tensor.name;
    std::vector<float> expected(file.bytes(*entry).size() / sizeof(float));
    std::memcpy(expected.data(), file.bytes(*entry).data(), file.bytes(*entry).size());
    EXPECT_EQ(test::values_of(tensor), expected) << tensor.name;
  }
}

/// Checks that a model made with the config.json that the reader gives accepts the folder's
/// weights.
void expect_fits(const Foreign& read) {
  const models::ModelOptions options = models::options_from_hf(read.model_config);
  config::Problems problems;
  const models::Resolved resolved = models::resolve(options,
                                                    options->vocab_size.value_or(1),
                                                    std::nullopt,
                                                    problems,
                                                    config::Origins(),
                                                    models::objective_of_hf(read.model_config));
  problems.raise();
  const models::Family& family = models::families().get(models::family_of_hf(read.model_config));
  EXPECT_NO_THROW((void)weights_of(read.weights, family, resolved, "the file"));
}

/// A layer begins with the norm that ends the one before it.
std::string post_norm_name(std::string name, const std::string& base, int layers) {
  if (!name.starts_with(base))
    return replaced(name,
                    {{"cls.predictions.", "lm_head."},
                     {"transform.LayerNorm", "layer_norm"},
                     {"transform.dense", "dense"},
                     {"lm_head.bias", "lm_head.decoder.bias"}});
  name.erase(0, base.size());
  for (int i = layers - 1; i >= 0; --i) {
    const std::string norm = fmt::format("encoder.layer.{}.output.LayerNorm", i);
    if (!name.starts_with(norm)) continue;
    return (i == layers - 1
                ? "encoder.output_layernorm"
                : fmt::format("encoder.layers.{}.self_att.layernorm_before_attention", i + 1)) +
           name.substr(norm.size());
  }
  return replaced(name,
                  {{"embeddings.word_embeddings", "input_embedding"},
                   {"embeddings.position_embeddings", "position_embedding"},
                   {"embeddings.token_type_embeddings", "token_type_embedding"},
                   {"embeddings.LayerNorm", "encoder.layers.0.self_att.layernorm_before_attention"},
                   {"encoder.layer.", "encoder.layers."},
                   {"attention.self.query", "self_att.self_attention.project_q"},
                   {"attention.self.key", "self_att.self_attention.project_k"},
                   {"attention.self.value", "self_att.self_attention.project_v"},
                   {"attention.output.dense", "self_att.self_attention.attention_out"},
                   {"attention.output.LayerNorm", "ffn.layernorm_before_ffn"},
                   {"intermediate.dense", "ffn.ffn.w_in.w"},
                   {"output.dense", "ffn.ffn.w_out"}});
}

TEST_F(ModelCenter, EncodersAreReadUnderHuggingFacesNames) {
  for (const auto& [family, more] : Renaming{{"bert", ""}, {"roberta", R"(, "pad_token_id": 1)"}}) {
    const fs::path source = golden_model(family + "_mlm");
    const json::Value hf = golden::read_json(source / "config.json");
    const auto layers = static_cast<int>(*hf.find("num_hidden_layers")->as_integer());
    const std::string heads = hf.find("num_attention_heads")->dump();
    const fs::path folder = path(family);
    write_renamed(
        source,
        folder,
        [&](std::string name) { return post_norm_name(std::move(name), family + ".", layers); },
        fmt::format(
            R"({{"num_heads": {}, "norm_eps": 1e-12, "tied": true, "post_layer_norm": true{}}})",
            heads,
            more));

    const Foreign read = open_foreign(folder).value();

    EXPECT_EQ(read.model_config.find("model_type")->as_string(), family);
    expect_same_tensors(read, source, read.weights.size());
    EXPECT_GT(read.weights.size(), 16U * static_cast<unsigned>(layers));
    expect_fits(read);
  }
}

TEST_F(ModelCenter, LlamaIsReadUnderHuggingFacesNames) {
  const fs::path source = golden_model("llama");
  const json::Value hf = golden::read_json(source / "config.json");
  const auto theirs = [](std::string name) {
    return replaced(std::move(name),
                    {{"model.embed_tokens", "input_embedding"},
                     {"model.norm", "encoder.output_layernorm"},
                     {"lm_head", "output_projection"},
                     {"model.layers", "encoder.layers"},
                     {"input_layernorm", "self_att.layernorm_before_attention"},
                     {"self_attn.q_proj", "self_att.self_attention.project_q"},
                     {"self_attn.k_proj", "self_att.self_attention.project_k"},
                     {"self_attn.v_proj", "self_att.self_attention.project_v"},
                     {"self_attn.o_proj", "self_att.self_attention.attention_out"},
                     {"post_attention_layernorm", "ffn.layernorm_before_ffn"},
                     {"mlp.gate_proj", "ffn.ffn.w_in.w_0"},
                     {"mlp.up_proj", "ffn.ffn.w_in.w_1"},
                     {"mlp.down_proj", "ffn.ffn.w_out"}});
  };
  const std::string config =
      fmt::format(R"({{"num_heads": {}, "pos_bias_type": "rotary", "ffn_activate_fn": "gated_silu",
                      "norm_eps": {}, "tied": false)",
                  hf.find("num_attention_heads")->dump(),
                  hf.find("rms_norm_eps")->dump());
  write_renamed(source, path("llama"), theirs, config + "}");

  const Foreign read = open_foreign(path("llama")).value();

  expect_same_tensors(
      read, source, checkpoint::SafetensorsFile(source / "model.safetensors").entries().size());
  for (const char* key : {"num_key_value_heads", "intermediate_size", "num_hidden_layers"})
    EXPECT_EQ(read.model_config.find(key)->dump(), hf.find(key)->dump()) << key;
  expect_fits(read);
  files::write_atomic(path("llama/config.json"), config + R"(, "length_scale": true})");
  refused(path("llama"), "length_scale is true, and a Llama is read with false");
}

TEST_F(ModelCenter, T5IsReadUnderHuggingFacesNames) {
  const fs::path source = golden_model("t5_v11");
  const json::Value hf = golden::read_json(source / "config.json");
  const auto theirs = [](const std::string& name) {
    const bool decoder = name.starts_with("decoder");
    std::string out = replaced(
        name,
        {{decoder ? "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
                  : "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
          decoder ? "position_bias_dec.relative_attention_bias"
                  : "position_bias_enc.relative_attention_bias"},
         {"shared", "input_embedding"},
         {"lm_head", "output_projection"},
         {"final_layer_norm", "output_layernorm"},
         {".block.", ".layers."},
         {"layer.0.layer_norm", "self_att.layernorm_before_attention"},
         {"layer.0.SelfAttention.", "self_att.self_attention.project_"},
         {decoder ? "layer.1.layer_norm" : "layer.1.none", "cross_att.layernorm_before_attention"},
         {"layer.1.EncDecAttention.", "cross_att.self_attention.project_"},
         {decoder ? "layer.2.layer_norm" : "layer.1.layer_norm", "ffn.layernorm_before_ffn"},
         {decoder ? "layer.2.DenseReluDense.wi_" : "layer.1.DenseReluDense.wi_", "ffn.ffn.w_in.w_"},
         {decoder ? "layer.2.DenseReluDense.wo" : "layer.1.DenseReluDense.wo", "ffn.ffn.w_out"},
         {"self_attention.project_o", "self_attention.attention_out"}});
    // Copies of the shared table.
    return out.ends_with("embed_tokens.weight") ? std::string() : out;
  };
  const std::string config =
      fmt::format(R"({{"num_heads": {}, "pos_bias_type": "relative", "norm_eps": {},
                      "position_bias_num_buckets": {}, "position_bias_max_distance": {},
                      "length_scale": false, "attn_scale": false, "tied": false)",
                  hf.find("num_heads")->dump(),
                  hf.find("layer_norm_epsilon")->dump(),
                  hf.find("relative_attention_num_buckets")->dump(),
                  hf.find("relative_attention_max_distance")->dump());
  const auto write = [&](const std::string& more) {
    write_renamed(source, path("t5"), theirs, config + more + "}");
  };
  write(R"(, "ffn_activate_fn": "gated_gelu_new")");

  const Foreign read = open_foreign(path("t5")).value();

  const checkpoint::SafetensorsFile golden_file(source / "model.safetensors");
  std::size_t tensors = 0;
  for (const auto& entry : golden_file.entries())
    tensors += entry.name.ends_with("embed_tokens.weight") ? 0U : 1U;
  expect_same_tensors(read, source, tensors);
  for (const char* key : {"d_model",
                          "d_kv",
                          "d_ff",
                          "num_layers",
                          "feed_forward_proj",
                          "relative_attention_num_buckets",
                          "relative_attention_max_distance"})
    EXPECT_EQ(read.model_config.find(key)->dump(), hf.find(key)->dump()) << key;
  expect_fits(read);
  write(R"(, "ffn_activate_fn": "gelu")");
  refused(path("t5"), "ffn_activate_fn is gelu");
  write(
      R"(, "ffn_activate_fn": "gated_gelu_new", "num_decoder_layers": 7, "num_encoder_layers": 2)");
  refused(path("t5"), "2 layers read and 7 write");
  files::write_atomic(
      path("t5/config.json"),
      R"({"num_heads": 4, "ffn_activate_fn": "gated_gelu_new", "length_scale": true})");
  refused(path("t5"), "length_scale is true, and a T5 is read with false");
}

/// One tensor for each name, of these rows and columns (one number where there are no columns).
void write_tensors(const fs::path& folder,
                   const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& tensors,
                   const std::string& config) {
  gpt::File out;
  gpt::Members members;
  float next = 0;
  for (const auto& [name, shape] : tensors) {
    std::int64_t numel = 1;
    for (const std::int64_t size : shape)
      numel *= size;
    gpt::Tensor tensor{shape, std::vector<float>(static_cast<std::size_t>(numel))};
    for (float& value : tensor.values)
      value = next += 0.25F;
    members.emplace_back(name, out.tensor(tensor, DType::F32));
  }
  fs::create_directories(folder);
  out.write(folder / "pytorch_model.pt", members);
  files::write_atomic(folder / "config.json", config);
}

/// The tensors of a layer of 8 channels in 2 heads, whose MLP has 12 behind a gate.
void add_gated_layer(std::vector<std::pair<std::string, std::vector<std::int64_t>>>& out,
                     const std::string& layer,
                     bool crosses) {
  for (const char* const branch : {"self_att", "cross_att"}) {
    if (std::string(branch) == "cross_att" && !crosses) continue;
    const std::string begin = layer + branch;
    out.push_back({begin + ".layernorm_before_attention.weight", {8}});
    for (const char* const part : {"project_q", "project_k", "project_v", "attention_out"})
      out.push_back({fmt::format("{}.self_attention.{}.weight", begin, part), {8, 8}});
  }
  out.push_back({layer + "ffn.layernorm_before_ffn.weight", {8}});
  out.push_back({layer + "ffn.ffn.w_in.w_0.weight", {12, 8}});
  out.push_back({layer + "ffn.ffn.w_in.w_1.weight", {12, 8}});
  out.push_back({layer + "ffn.ffn.w_out.weight", {8, 12}});
}

constexpr const char* kCpmKeys = R"({"num_heads": 2, "dim_head": 4, "dim_model": 8, "dim_ff": 12,
    "position_bias_num_buckets": 4, "position_bias_max_distance": 9, "norm_eps": 1e-6,
    "ffn_activate_fn": "gated_gelu", "pos_bias_type": "relative")";

TEST_F(ModelCenter, Cpm1IsReadWithItsScales) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {"input_embedding.weight", {20, 8}},
      {"position_bias.relative_attention_bias", {4, 2}},
      {"encoder.output_layernorm.weight", {8}},
      {"output_projection.weight", {20, 8}}};
  for (const char* const layer : {"encoder.layers.0.", "encoder.layers.1."})
    add_gated_layer(tensors, layer, /*crosses=*/false);
  write_tensors(path("cpm1"), tensors, std::string(kCpmKeys) + R"(, "length_scale": true})");

  const Foreign read = open_foreign(path("cpm1")).value();

  EXPECT_EQ(read.weights.size(), tensors.size());
  EXPECT_EQ(read.model_config.find("model_type")->as_string(), "cpm1");
  EXPECT_TRUE(read.model_config.find("length_scale")->as_bool());
  expect_fits(read);
  // The same model as a member of a program's own module.
  auto wrapped = tensors;
  for (auto& [name, shape] : wrapped)
    name.insert(0, "model.cpm1.");
  write_tensors(path("cpm1"), wrapped, std::string(kCpmKeys) + R"(, "length_scale": true})");
  const Foreign member = open_foreign(path("cpm1")).value();
  ASSERT_EQ(member.weights.size(), read.weights.size());
  for (std::size_t i = 0; i < member.weights.size(); ++i)
    EXPECT_EQ(member.weights[i].name, read.weights[i].name);
  wrapped.push_back({"answer.dense.weight", {3, 8}});
  write_tensors(path("cpm1"), wrapped, std::string(kCpmKeys) + R"(, "length_scale": true})");
  refused(path("cpm1"), "answer.dense.weight");
  write_tensors(path("cpm1"), tensors, std::string(kCpmKeys) + R"(, "att_bias": true})");
  refused(path("cpm1"), "att_bias is true, and a CPM1 is read with false");
}

TEST_F(ModelCenter, Cpm2IsTheOneWhoseGateIsTheExactGelu) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors = {
      {"input_embedding.weight", {20, 8}},
      {"position_bias_enc.relative_attention_bias", {4, 2}},
      {"position_bias_dec.relative_attention_bias", {4, 2}},
      {"encoder.output_layernorm.weight", {8}},
      {"decoder.output_layernorm.weight", {8}},
      {"output_projection.weight", {20, 8}}};
  add_gated_layer(tensors, "encoder.layers.0.", /*crosses=*/false);
  add_gated_layer(tensors, "decoder.layers.0.", /*crosses=*/true);
  write_tensors(path("cpm2"),
                tensors,
                std::string(kCpmKeys) + R"(, "num_encoder_layers": 1, "num_decoder_layers": 1})");

  const Foreign read = open_foreign(path("cpm2")).value();

  EXPECT_EQ(read.weights.size(), tensors.size());
  EXPECT_EQ(read.model_config.find("model_type")->as_string(), "cpm2");
  expect_fits(read);
  write_tensors(path("cpm2"),
                tensors,
                std::string(kCpmKeys) + R"(, "num_encoder_layers": 1, "num_decoder_layers": 2})");
  refused(path("cpm2"), "1 layers read and 2 write");
}

TEST_F(ModelCenter, OptIsReadUnderHuggingFacesNames) {
  const fs::path source = golden_model("opt");
  const json::Value hf = golden::read_json(source / "config.json");
  write_renamed(
      source,
      path("opt"),
      [](std::string name) {
        const bool of_layer = name.find(".layers.") != std::string::npos;
        return replaced(
            std::move(name),
            {{"model.decoder.embed_tokens", "input_embedding"},
             {"model.decoder.embed_positions", "position_embedding"},
             {"model.decoder.", "decoder."},
             {"self_attn_layer_norm", "self_att.layernorm_before_attention"},
             {"self_attn.q_proj", "self_att.self_attention.project_q"},
             {"self_attn.k_proj", "self_att.self_attention.project_k"},
             {"self_attn.v_proj", "self_att.self_attention.project_v"},
             {"self_attn.out_proj", "self_att.self_attention.attention_out"},
             {"final_layer_norm", of_layer ? "ffn.layernorm_before_ffn" : "output_layernorm"},
             {"fc1", "ffn.ffn.w_in.w"},
             {"fc2", "ffn.ffn.w_out"}});
      },
      fmt::format(R"({{"num_heads": {}, "ffn_activate_fn": "relu", "tied": true}})",
                  hf.find("num_attention_heads")->dump()));

  const Foreign read = open_foreign(path("opt")).value();

  expect_same_tensors(
      read, source, checkpoint::SafetensorsFile(source / "model.safetensors").entries().size());
  EXPECT_EQ(read.model_config.find("max_position_embeddings")->dump(),
            hf.find("max_position_embeddings")->dump());
  expect_fits(read);
}

TEST_F(ModelCenter, WithoutTheNumberOfHeadsIsRefused) {
  refuses(holding("x"), "\"x\" does not belong to a GPT-2");
  mc::Options headless;
  headless.config = "{}";
  refuses(headless, "config.json: has no num_heads");
  fs::remove(path("m/config.json"));
  refused(path("m"), "no config.json next to it");
}

}  // namespace
}  // namespace tessera::interop
