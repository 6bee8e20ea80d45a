// SPDX-License-Identifier: Apache-2.0
// Published models rebuilt by configuration alone: with the weights of BERT, RoBERTa, GPT-2, ViT
// and T5, a composed model gives the logits that transformers gives.
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "support/model_runner.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/tensor/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

// As for the families themselves (models_test.cpp).
constexpr double kLogits = 5e-5;

fs::path folder_of(const std::string& name) {
  return test::source_dir() / "tests" / "golden" / "reference" / "models" / name;
}

Tensors read(const fs::path& path) {
  const checkpoint::SafetensorsFile file(path);
  Tensors out;
  for (const auto& entry : file.entries()) {
    void* bytes = const_cast<std::byte*>(file.bytes(entry).data());
    out[entry.name] =
        at::from_blob(bytes, entry.shape, at::TensorOptions(to_torch(entry.dtype))).clone();
  }
  return out;
}

checkpoint::StreamedTensor streamed(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor held = tensor.to(at::kFloat).contiguous();
  return {.name = name,
          .dtype = DType::F32,
          .shape = held.sizes().vec(),
          .read = [held](std::int64_t begin, std::int64_t end, std::byte* out) {
            std::memcpy(out,
                        held.data_ptr<float>() + begin,
                        static_cast<std::size_t>(end - begin) * sizeof(float));
          }};
}

/// A composed model of a TencentPretrain configuration, with these weights.
struct Composed {
  models::Resolved resolved;
  test::ModelRunner runner;
};
Composed compose(const std::string& config,
                 const Tensors& weights,
                 const models::ObjectiveChoice& objective = {}) {
  const models::ModelOptions options =
      models::options_from_hf(json::parse_strict(config, "config.json"));
  EXPECT_EQ(options.family(), "compose");
  config::Problems problems;
  models::Resolved resolved = models::resolve(options,
                                              options->vocab_size.value_or(1),
                                              std::nullopt,
                                              problems,
                                              config::Origins(),
                                              objective);
  problems.raise();
  std::vector<checkpoint::StreamedTensor> tensors;
  for (const auto& [name, tensor] : weights)
    tensors.push_back(streamed(name, tensor));
  const models::WeightSource source = interop::weights_of(
      tensors, models::families().get("compose"), resolved, "the renamed weights");
  test::ModelRunner runner(resolved.model, DType::F32);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    source(info, 0, info.numel(), out.data_ptr<float>());
  });
  return {std::move(resolved), std::move(runner)};
}

/// The recorded inputs, without labels, and the logits.
nn::Batch inputs(const Tensors& expected) {
  nn::Batch batch;
  for (const auto& [name, tensor] : expected) {
    const std::string key = name.starts_with("input.") ? name.substr(6) : "";
    if (key.empty()) continue;
    batch.set(key, tensor);
  }
  for (std::int64_t i = 0; i < expected.at("input.labels").size(0); ++i)
    batch.sample_ids.push_back(i);
  return batch;
}
at::Tensor logits_of(Composed& model, const Tensors& expected) {
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  return model.runner.infer(inputs(expected), context).outputs.at("logits");
}
/// The largest difference of logits of tokens that are not padding.
double difference(const at::Tensor& a, const Tensors& expected, bool of_source) {
  at::Tensor apart = (a.to(at::kDouble) - expected.at("logits").to(at::kDouble)).abs();
  if (of_source && expected.contains("input.attention_mask"))
    apart = apart.masked_fill(expected.at("input.attention_mask").eq(0).unsqueeze(-1), 0.0);
  return apart.max().item<double>();
}

std::int64_t number(const std::string& model, const char* key) {
  return *golden::at(golden::read_json(folder_of(model) / "config.json"), key).as_integer();
}

/// A norm has TencentPretrain's names.
void add_norm(Tensors& out,
              const std::string& name,
              const Tensors& from,
              const std::string& theirs) {
  out[name + ".gamma"] = from.at(theirs + ".weight");
  out[name + ".beta"] = from.at(theirs + ".bias");
}
void add_linear(Tensors& out,
                const std::string& name,
                const Tensors& from,
                const std::string& theirs) {
  for (const char* part : {".weight", ".bias"})
    if (from.contains(theirs + part)) out[name + part] = from.at(theirs + part);
}

/// The layers of an encoder with the norms of BERT; `layers`: their prefix, "bert.encoder.layer".
void add_encoder_layers(Tensors& weights,
                        const Tensors& theirs,
                        const std::string& layers,
                        std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string to = fmt::format("encoder.transformer.{}.", i);
    const std::string from = fmt::format("{}.{}.", layers, i);
    int part = 0;
    for (const char* its : {"query", "key", "value"})
      add_linear(weights,
                 fmt::format("{}self_attn.linear_layers.{}", to, part++),
                 theirs,
                 from + "attention.self." + its);
    add_linear(weights, to + "self_attn.final_linear", theirs, from + "attention.output.dense");
    add_norm(weights, to + "layer_norm_1", theirs, from + "attention.output.LayerNorm");
    add_linear(weights, to + "feed_forward.linear_1", theirs, from + "intermediate.dense");
    add_linear(weights, to + "feed_forward.linear_2", theirs, from + "output.dense");
    add_norm(weights, to + "layer_norm_2", theirs, from + "output.LayerNorm");
  }
}

TEST(Compose, RebuildsBert) {
  const std::string name = "bert_mlm";
  const Tensors theirs = read(folder_of(name) / "model.safetensors");
  const Tensors expected = read(folder_of(name) / "expected.safetensors");
  const std::string base = "bert.embeddings.";
  Tensors weights;
  weights["embedding.word.embedding.weight"] = theirs.at(base + "word_embeddings.weight");
  weights["embedding.pos.embedding.weight"] = theirs.at(base + "position_embeddings.weight");
  const at::Tensor types = theirs.at(base + "token_type_embeddings.weight");
  weights["embedding.seg.embedding.weight"] = at::cat({at::zeros({1, types.size(1)}), types});
  add_norm(weights, "embedding.layer_norm", theirs, base + "LayerNorm");
  add_encoder_layers(weights, theirs, "bert.encoder.layer", number(name, "num_hidden_layers"));
  const std::string head = "cls.predictions.";
  add_linear(weights, "target.mlm.linear_1", theirs, head + "transform.dense");
  add_norm(weights, "target.mlm.layer_norm", theirs, head + "transform.LayerNorm");
  weights["target.mlm.linear_2.bias"] = theirs.at(head + "bias");

  Composed model = compose(
      fmt::format(R"({{"model_type": "compose", "vocab_size": {}, "emb_size": 48, "hidden_size": 48,
          "feedforward_size": {}, "heads_num": {}, "layers_num": {}, "max_seq_length": {},
          "hidden_act": "gelu", "dropout": 0.0, "embedding": ["word", "pos", "seg"],
          "encoder": "transformer", "mask": "fully_visible", "target": ["mlm", "sp"],
          "layernorm_eps": 1e-12, "tie_weights": true}})",
                  number(name, "vocab_size"),
                  number(name, "intermediate_size"),
                  number(name, "num_attention_heads"),
                  number(name, "num_hidden_layers"),
                  number(name, "max_position_embeddings")),
      weights);

  EXPECT_EQ(model.resolved.objective.name, "masked_lm");
  EXPECT_LT(difference(logits_of(model, expected), expected, true), kLogits);
}

/// RoBERTa has one type for all tokens, which the composed model has in its positions, and its
/// positions begin after the row of the padding id.
TEST(Compose, RebuildsRoberta) {
  const std::string name = "roberta_mlm";
  const Tensors theirs = read(folder_of(name) / "model.safetensors");
  const Tensors expected = read(folder_of(name) / "expected.safetensors");
  const std::string base = "roberta.embeddings.";
  Tensors weights;
  weights["embedding.word.embedding.weight"] = theirs.at(base + "word_embeddings.weight");
  const at::Tensor rows = theirs.at(base + "position_embeddings.weight");
  const std::int64_t unused = number(name, "pad_token_id") + 1;
  weights["embedding.pos.embedding.weight"] = rows.narrow(0, unused, rows.size(0) - unused) +
                                              theirs.at(base + "token_type_embeddings.weight");
  add_norm(weights, "embedding.layer_norm", theirs, base + "LayerNorm");
  add_encoder_layers(weights, theirs, "roberta.encoder.layer", number(name, "num_hidden_layers"));
  add_linear(weights, "target.mlm.linear_1", theirs, "lm_head.dense");
  add_norm(weights, "target.mlm.layer_norm", theirs, "lm_head.layer_norm");
  weights["target.mlm.linear_2.bias"] = theirs.at("lm_head.bias");

  Composed model = compose(
      fmt::format(R"({{"model_type": "compose", "vocab_size": {}, "emb_size": {}, "hidden_size": {},
          "feedforward_size": {}, "heads_num": {}, "layers_num": {}, "max_seq_length": {},
          "hidden_act": "gelu", "dropout": 0.0, "embedding": ["word", "pos"],
          "encoder": "transformer", "mask": "fully_visible", "target": ["mlm"],
          "layernorm_eps": 1e-5, "tie_weights": true}})",
                  number(name, "vocab_size"),
                  number(name, "hidden_size"),
                  number(name, "hidden_size"),
                  number(name, "intermediate_size"),
                  number(name, "num_attention_heads"),
                  number(name, "num_hidden_layers"),
                  rows.size(0) - unused),
      weights);

  EXPECT_EQ(model.resolved.objective.name, "masked_lm");
  EXPECT_LT(difference(logits_of(model, expected), expected, true), kLogits);
}

TEST(Compose, RebuildsGpt2) {
  const std::string name = "gpt2";
  const Tensors theirs = read(folder_of(name) / "model.safetensors");
  const Tensors expected = read(folder_of(name) / "expected.safetensors");
  const std::string base = theirs.contains("transformer.wte.weight") ? "transformer." : "";
  Tensors weights;
  weights["embedding.word.embedding.weight"] = theirs.at(base + "wte.weight");
  weights["embedding.pos.embedding.weight"] = theirs.at(base + "wpe.weight");
  for (std::int64_t i = 0; i < number(name, "n_layer"); ++i) {
    const std::string to = fmt::format("encoder.transformer.{}.", i);
    const std::string from = fmt::format("{}h.{}.", base, i);
    const auto matrices = theirs.at(from + "attn.c_attn.weight").t().chunk(3);
    const auto biases = theirs.at(from + "attn.c_attn.bias").chunk(3);
    for (std::size_t part = 0; part < 3; ++part) {
      const std::string linear = fmt::format("{}self_attn.linear_layers.{}", to, part);
      weights[linear + ".weight"] = matrices[part];
      weights[linear + ".bias"] = biases[part];
    }
    for (const auto& [ours, its] : std::vector<std::pair<std::string, std::string>>{
             {"self_attn.final_linear", "attn.c_proj"},
             {"feed_forward.linear_1", "mlp.c_fc"},
             {"feed_forward.linear_2", "mlp.c_proj"}}) {
      weights[to + ours + ".weight"] = theirs.at(from + its + ".weight").t();
      weights[to + ours + ".bias"] = theirs.at(from + its + ".bias");
    }
    add_norm(weights, to + "layer_norm_1", theirs, from + "ln_1");
    add_norm(weights, to + "layer_norm_2", theirs, from + "ln_2");
  }
  add_norm(weights, "encoder.layer_norm", theirs, base + "ln_f");

  Composed model =
      compose(fmt::format(R"({{"model_type": "compose", "vocab_size": {}, "hidden_size": 48,
          "feedforward_size": 192, "heads_num": {}, "layers_num": {}, "max_seq_length": {},
          "hidden_act": "gelu_fast", "dropout": 0.0, "embedding": ["word", "pos"],
          "remove_embedding_layernorm": true, "encoder": "transformer", "mask": "causal",
          "layernorm_positioning": "pre", "target": ["lm"], "layernorm_eps": 1e-5,
          "tie_weights": true}})",
                          number(name, "vocab_size"),
                          number(name, "n_head"),
                          number(name, "n_layer"),
                          number(name, "n_positions")),
              weights);

  EXPECT_EQ(model.resolved.objective.name, "causal_lm");
  EXPECT_LT(difference(logits_of(model, expected), expected, true), kLogits);
}

/// ViT adds a bias to its patches, which the composed model has in its positions, and has no
/// pooler.
TEST(Compose, RebuildsVit) {
  const std::string name = "vit";
  const Tensors theirs = read(folder_of(name) / "model.safetensors");
  const Tensors expected = read(folder_of(name) / "expected.safetensors");
  const std::string base = "vit.embeddings.";
  const std::string projection = base + "patch_embeddings.projection";
  Tensors weights;
  weights["embedding.patch.cls_emb"] = theirs.at(base + "cls_token");
  weights["embedding.patch.projection.weight"] = theirs.at(projection + ".weight");
  at::Tensor positions = theirs.at(base + "position_embeddings")[0].clone();
  positions.narrow(0, 1, positions.size(0) - 1) += theirs.at(projection + ".bias");
  weights["embedding.pos.embedding.weight"] = positions;
  for (std::int64_t i = 0; i < number(name, "num_hidden_layers"); ++i) {
    const std::string to = fmt::format("encoder.transformer.{}.", i);
    const std::string from = fmt::format("vit.encoder.layer.{}.", i);
    int part = 0;
    for (const char* its : {"query", "key", "value"})
      add_linear(weights,
                 fmt::format("{}self_attn.linear_layers.{}", to, part++),
                 theirs,
                 from + "attention.attention." + its);
    add_linear(weights, to + "self_attn.final_linear", theirs, from + "attention.output.dense");
    add_norm(weights, to + "layer_norm_1", theirs, from + "layernorm_before");
    add_norm(weights, to + "layer_norm_2", theirs, from + "layernorm_after");
    add_linear(weights, to + "feed_forward.linear_1", theirs, from + "intermediate.dense");
    add_linear(weights, to + "feed_forward.linear_2", theirs, from + "output.dense");
  }
  add_norm(weights, "encoder.layer_norm", theirs, "vit.layernorm");
  add_linear(weights, "target.cls.linear_2", theirs, "classifier");

  Composed model =
      compose(fmt::format(R"({{"model_type": "compose", "emb_size": {0}, "hidden_size": {0},
          "feedforward_size": {1}, "heads_num": {2}, "layers_num": {3}, "max_seq_length": {4},
          "hidden_act": "gelu", "dropout": 0.0, "embedding": ["patch", "pos"],
          "remove_embedding_layernorm": true, "image_height": {5}, "image_width": {5},
          "patch_size": {6}, "channels_num": {7}, "encoder": "transformer",
          "mask": "fully_visible", "layernorm_positioning": "pre", "target": ["cls"],
          "remove_pooler": true, "layernorm_eps": 1e-12}})",
                          number(name, "hidden_size"),
                          number(name, "intermediate_size"),
                          number(name, "num_attention_heads"),
                          number(name, "num_hidden_layers"),
                          positions.size(0),
                          number(name, "image_size"),
                          number(name, "patch_size"),
                          number(name, "num_channels")),
              weights,
              {.name = "image_classification",
               .options = json::Value::object(
                   {{"num_labels", json::Value::integer(expected.at("logits").size(1))}})});

  EXPECT_EQ(model.resolved.objective.name, "image_classification");
  const double apart =
      (logits_of(model, expected).to(at::kDouble) - expected.at("logits").to(at::kDouble))
          .abs()
          .max()
          .item<double>();
  EXPECT_LT(apart, kLogits);
}

void expect_t5(const std::string& name, bool gated) {
  SCOPED_TRACE(name);
  const Tensors theirs = read(folder_of(name) / "model.safetensors");
  const Tensors expected = read(folder_of(name) / "expected.safetensors");
  Tensors weights;
  weights["embedding.word.embedding.weight"] = theirs.at("shared.weight");
  weights["tgt_embedding.word.embedding.weight"] = theirs.at("shared.weight");
  const std::string bias = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  weights["encoder.relative_pos_emb.relative_attention_bias.weight"] = theirs.at("encoder" + bias);
  weights["decoder.self_pos_emb.relative_attention_bias.weight"] = theirs.at("decoder" + bias);
  const bool tied = !theirs.contains("lm_head.weight");
  if (!tied) weights["target.lm.output_layer.weight"] = theirs.at("lm_head.weight");
  const auto add_attention = [&](const std::string& to, const std::string& from) {
    int part = 0;
    for (const char* its : {"q", "k", "v"})
      weights[fmt::format("{}.linear_layers.{}.weight", to, part++)] =
          theirs.at(from + "." + its + ".weight");
    weights[to + ".final_linear.weight"] = theirs.at(from + ".o.weight");
  };
  for (const bool decoder : {false, true}) {
    const std::string stack = decoder ? "decoder" : "encoder";
    const std::int64_t layers = number(name, decoder ? "num_decoder_layers" : "num_layers");
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string to = decoder ? fmt::format("decoder.transformer_decoder.{}.", i)
                                     : fmt::format("encoder.transformer.{}.", i);
      const std::string from = fmt::format("{}.block.{}.layer.", stack, i);
      add_attention(to + "self_attn", from + "0.SelfAttention");
      if (decoder) add_attention(to + "context_attn", from + "1.EncDecAttention");
      const int branches = decoder ? 3 : 2;
      for (int branch = 0; branch < branches; ++branch)
        weights[fmt::format("{}layer_norm_{}.weight", to, branch + 1)] =
            theirs.at(fmt::format("{}{}.layer_norm.weight", from, branch));
      const std::string mlp = fmt::format("{}{}.DenseReluDense.", from, branches - 1);
      if (gated) weights[to + "feed_forward.linear_gate.weight"] = theirs.at(mlp + "wi_0.weight");
      weights[to + "feed_forward.linear_1.weight"] =
          theirs.at(mlp + (gated ? "wi_1.weight" : "wi.weight"));
      weights[to + "feed_forward.linear_2.weight"] = theirs.at(mlp + "wo.weight");
    }
    weights[stack + ".layer_norm.weight"] = theirs.at(stack + ".final_layer_norm.weight");
  }

  Composed model =
      compose(fmt::format(R"({{"model_type": "compose", "vocab_size": {}, "hidden_size": 48,
          "feedforward_size": {}, "heads_num": {}, "attention_head_size": {}, "layers_num": {},
          "decoder_layers_num": {}, "hidden_act": "{}", "dropout": 0.0, "embedding": ["word"],
          "tgt_embedding": ["word"], "share_embedding": true, "remove_embedding_layernorm": true,
          "relative_position_embedding": true, "relative_attention_buckets_num": {},
          "relative_attention_max_distance": {}, "encoder": "transformer", "mask": "fully_visible",
          "layernorm_positioning": "pre", "feed_forward": "{}", "remove_attention_scale": true,
          "layernorm": "t5", "layernorm_eps": 1e-6, "remove_transformer_bias": true,
          "decoder": "transformer", "target": ["lm"], "tie_weights": {}, "scale_output": {}}})",
                          number(name, "vocab_size"),
                          number(name, "d_ff"),
                          number(name, "num_heads"),
                          number(name, "d_kv"),
                          number(name, "num_layers"),
                          number(name, "num_decoder_layers"),
                          gated ? "gelu_fast" : "relu",
                          number(name, "relative_attention_num_buckets"),
                          number(name, "relative_attention_max_distance"),
                          gated ? "gated" : "dense",
                          tied,
                          tied),
              weights);

  EXPECT_EQ(model.resolved.objective.name, "seq2seq");
  EXPECT_LT(difference(logits_of(model, expected), expected, false), kLogits);
}

TEST(Compose, RebuildsT5) {
  expect_t5("t5", false);
  expect_t5("t5_v11", true);
}

TEST(Compose, RefusesPartsThatDoNotFitByTheirKeys) {
  const auto problem_of = [](const std::string& more) {
    models::ModelOptions options("compose");
    config::Problems problems;
    config::Origins origins;
    json::Value value = json::parse_strict("{" + more + "}", "test");
    value["family"] = json::Value::string("compose");
    config::read(value, options, problems, origins);
    if (problems.empty())
      (void)models::resolve(options, 256, std::nullopt, problems, config::Origins());
    return problems.empty() ? std::string() : problems.list().front().path;
  };

  EXPECT_EQ(problem_of(""), "");
  EXPECT_EQ(problem_of(R"("embedding": ["pos"])"), "model.embedding");
  EXPECT_EQ(problem_of(R"("target": ["mlm"])"), "model.target");
  EXPECT_EQ(problem_of(R"("mask": "fully_visible")"), "model.target");
  EXPECT_EQ(problem_of(R"("mask": "causal_with_prefix", "target": ["mlm"])"), "model.target");
  EXPECT_EQ(problem_of(R"("mask": "causal_with_prefix", "decoder": "transformer")"), "model.mask");
  EXPECT_EQ(problem_of(R"("decoder": "transformer", "mask": "fully_visible", "bias": false)"), "");
  EXPECT_EQ(problem_of(R"("embedding": ["word", "patch"])"), "model.embedding");
  EXPECT_EQ(problem_of(R"("embedding": ["patch", "pos"])"), "model.target");
  const std::string image =
      R"("embedding": ["patch", "pos"], "mask": "fully_visible", "target": ["cls"])";
  EXPECT_EQ(problem_of(image), "");
  EXPECT_EQ(problem_of(image + R"(, "patch_size": 15)"), "model.patch_size");
  EXPECT_EQ(problem_of(image + R"(, "max_positions": 196)"), "model.max_positions");
  EXPECT_EQ(problem_of(R"("image_size": 32)"), "model.image_size");
  EXPECT_EQ(problem_of(R"("pooler": false)"), "model.pooler");
  EXPECT_EQ(problem_of(R"("num_decoder_layers": 2)"), "model.num_decoder_layers");
  EXPECT_EQ(problem_of(R"("position": "relative", "position_max_distance": 8)"),
            "model.position_max_distance");
}

}  // namespace
}  // namespace tessera
