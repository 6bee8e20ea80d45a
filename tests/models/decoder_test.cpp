// SPDX-License-Identifier: Apache-2.0
// Families of the shared decoder: Hugging Face's keys, and the layers of those
// families whose answers tests/golden/ does not record, against plain formulas.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder_options.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"

// Legend: B batch, T tokens, C embed, H heads, G heads of keys and values, K channels of a head.
namespace tessera::models {
namespace {

using test::make_batch;
using test::ModelRunner;
using testing::ElementsAre;
using testing::HasSubstr;

Resolved resolved(const ModelOptions& options) {
  config::Problems problems;
  Resolved out = resolve(
      options, options->vocab_size.value_or(256), std::nullopt, problems, config::Origins());
  problems.raise();
  return out;
}

ModelOptions options_of(const std::string& hf_config) {
  return options_from_hf(json::parse(hf_config, "config.json"));
}
json::Value description(const std::string& hf_config) {
  return resolved(options_of(hf_config)).description;
}
std::string refusal(const std::string& hf_config) {
  try {
    options_of(hf_config);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

std::string with(const std::string& type, const std::string& more) {
  return R"({"model_type": ")" + type + R"(", "vocab_size": 64, "hidden_size": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 4,
    "intermediate_size": 24, "max_position_embeddings": 32)" +
         (more.empty() ? "" : ", " + more) + "}";
}
std::string refusal_to_resolve(const ModelOptions& options) {
  try {
    (void)resolved(options);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}
std::string refusal_to_resolve(const std::string& hf_config) {
  return refusal_to_resolve(options_of(hf_config));
}
std::string longrope(const std::string& type) {
  return R"("original_max_position_embeddings": 8, "rope_scaling": {"type": ")" + type +
         R"(", "short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0]})";
}
std::int64_t window_of(const std::string& hf_config) {
  return description(hf_config).find("sliding_window")->as_integer().value();
}

TEST(Decoders, ReadWindowsAsPublishedFilesMeanThem) {
  EXPECT_EQ(window_of(with("mistral", "")), 4096);
  EXPECT_EQ(window_of(with("mistral", R"("sliding_window": null)")), 0);
  EXPECT_EQ(window_of(with("qwen2", R"("sliding_window": 8)")), 0);
  EXPECT_EQ(window_of(with("qwen2", R"("sliding_window": 8, "use_sliding_window": true)")), 8);
  EXPECT_EQ(window_of(with("phi3", "")), 0);
  EXPECT_EQ(window_of(with("gemma2", "")), 4096);

  const json::Value all = description(
      with("qwen2", R"("sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0)"));
  for (const json::Value& type : all.find("layer_types")->items())
    EXPECT_EQ(type.as_string(), "sliding_attention");
  const json::Value late = description(
      with("qwen2", R"("sliding_window": 8, "use_sliding_window": true, "max_window_layers": 3)"));
  std::vector<std::string> types;
  for (const json::Value& type : late.find("layer_types")->items())
    types.push_back(type.as_string());
  EXPECT_THAT(
      types,
      ElementsAre("full_attention", "full_attention", "full_attention", "sliding_attention"));
}

/// The last logits of a text of five tokens, of a model whose weights are drawn.
at::Tensor logits_of(const std::string& hf_config) {
  ModelRunner runner(resolved(options_of(hf_config)).model);
  at::Generator generator = at::detail::createCPUGenerator(3);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    out.normal_(info.name.find("norm") != std::string::npos ? 1.0 : 0.0, 0.3, generator);
  });
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const at::NoGradGuard no_grad;
  const nn::Batch batch = make_batch(at::tensor({3, 60, 9, 30, 2}, at::kLong).view({1, -1}));
  return runner.infer(batch, context).outputs.at("logits").clone();
}
double apart(const std::string& a, const std::string& b) {
  return (logits_of(a) - logits_of(b)).abs().max().item<double>();
}

TEST(Decoders, TurnByTheBaseThatALengthAsksFor) {
  const auto dynamic = [](std::int64_t length) {
    return with("llama",
                fmt::format(R"("rope_length": {}, "rope_scaling": {{"type": "dynamic",
                    "factor": 2}})",
                            length));
  };
  // theta (f L / P - (f - 1))^(d / (d - 2)), with d = 4 channels and P = 32 positions.
  const std::string scaled =
      with("llama", fmt::format(R"("rope_theta": {})", 1e4 * std::pow(2.0 * 48 / 32 - 1, 2.0)));

  EXPECT_LT(apart(dynamic(48), scaled), 1e-5);
  EXPECT_LT(apart(dynamic(16), with("llama", "")), 1e-5);
  EXPECT_GT(apart(dynamic(48), with("llama", "")), 1e-3);
}

// A file that does not say the length of the longest text is read for texts that published programs
// do not scale.
TEST(Decoders, ServeShortTextsIfNoLengthIsSaid) {
  const std::string dynamic = R"("rope_scaling": {"type": "dynamic", "factor": 2})";
  EXPECT_LT(apart(with("llama", dynamic), with("llama", "")), 1e-12);
  for (const char* type : {"longrope", "su"}) {
    const std::string config = longrope(type);
    const auto options = options_of(with("phi3", config));
    const auto& decoder = dynamic_cast<const DecoderOptions&>(*options);
    const std::string said = with(
        "phi3", config + fmt::format(R"(, "rope_length": {})", decoder.rope_original_positions));

    EXPECT_EQ(decoder.rope_length, decoder.rope_original_positions);
    EXPECT_EQ(resolved(options).max_positions, decoder.rope_original_positions);
    EXPECT_LT(apart(with("phi3", config), said), 1e-12);
  }
}

TEST(Decoders, WriteTheScalingsOfTheirFrequencies) {
  const std::string yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 8, "mscale": 0.7, "mscale_all_dim": 0.9,
      "truncate": false})";
  const std::string dynamic =
      R"("rope_length": 48, "rope_scaling": {"type": "dynamic", "factor": 2})";
  for (const std::string& config : {with("llama", yarn),
                                    with("llama", dynamic),
                                    with("phi3", longrope("longrope") + R"(, "rope_length": 20)"),
                                    with("phi3", longrope("yarn") + R"(, "rope_length": 8)")}) {
    SCOPED_TRACE(config);
    const json::Value description = resolved(options_of(config)).description;
    ModelOptions options("llama");
    config::Problems problems;
    config::Origins origins;
    config::read(description, options, problems, origins);
    problems.raise();

    const json::Value written = families().get(options.family()).to_hf(*options);

    EXPECT_EQ(resolved(options_from_hf(written)).description.dump(), description.dump());
  }
}

TEST(Decoders, HaveThePositionsToWhichYarnStretchesThem) {
  const auto positions = [](const std::string& config) {
    return resolved(options_of(config)).max_positions;
  };
  const auto yarn = [](int factor, int original) {
    return fmt::format(R"("rope_scaling": {{"type": "yarn", "factor": {},
        "original_max_position_embeddings": {}}})",
                       factor,
                       original);
  };
  // Files of Qwen 2.5 and 3 have the 32 positions of the training, or some more.
  EXPECT_EQ(positions(with("qwen2", yarn(4, 32))), 128);
  EXPECT_EQ(positions(with("qwen3", yarn(4, 24))), 96);
  EXPECT_EQ(positions(with("gpt_neox", R"("rotary_pct": 1.0, )" + yarn(4, 32))), 128);
  // Other files have the stretched ones.
  EXPECT_EQ(positions(with("llama", yarn(2, 16))), 32);
  EXPECT_EQ(positions(with("llama", yarn(2, 8))), 32);
  EXPECT_EQ(positions(with("llama", R"("rope_scaling": {"type": "linear", "factor": 4})")), 32);
}

TEST(Decoders, RefuseWhatTheyWouldComputeOtherwise) {
  const std::string dynamic = R"("rope_scaling": {"type": "dynamic", "factor": 2})";
  ModelOptions own = options_of(with("llama", dynamic + R"(, "rope_length": 48)"));
  dynamic_cast<DecoderOptions&>(*own).rope_length.reset();
  EXPECT_THAT(refusal_to_resolve(own),
              AllOf(HasSubstr("model.rope_length"), HasSubstr("the longest text of a batch")));
  EXPECT_THAT(refusal_to_resolve(with("llama", dynamic + R"(, "rope_length": 48)")), "accepted");
  EXPECT_THAT(refusal_to_resolve(with("qwen3", longrope("su") + R"(, "rope_length": 33)")),
              HasSubstr("rope_length 33"));
  EXPECT_THAT(refusal(with("qwen3", R"("rope_scaling": {"type": "longrope", "factor": 2,
                  "short_factor": [1, 0], "long_factor": [1, 2]})")),
              HasSubstr("short_factor"));
  EXPECT_THAT(refusal_to_resolve(with("qwen3", R"("rope_length": 16, "rope_scaling": {
                  "type": "longrope", "short_factor": [1], "long_factor": [1, 2]})")),
              HasSubstr("1 short and 2 long factors for 2 pairs"));
  EXPECT_THAT(refusal(with("gemma3_text", R"("attn_logit_softcapping": 20.0)")),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal(with("gemma2", R"("use_bidirectional_attention": true)")),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refusal(with("mistral", R"("layer_types": ["chunked_attention"])")),
              HasSubstr("layer_types"));
  EXPECT_THAT(refusal(with("smollm3", R"("no_rope_layers": [1, 0, 1, 1])")),
              HasSubstr("no_rope_layers"));
}

// ---- layers against formulas ----

at::Tensor rms(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

/// x [T, H, K] turned by its positions; `share` of the channels turn.
at::Tensor turned(const at::Tensor& x_THK, double theta, double share, bool interleaved) {
  const auto d = static_cast<std::int64_t>(static_cast<double>(x_THK.size(2)) * share);
  const at::Tensor index = at::arange(d / 2, at::kDouble) * 2.0 / static_cast<double>(d);
  const at::Tensor angle =
      at::outer(at::arange(x_THK.size(0), at::kDouble), at::pow(theta, -index)).unsqueeze(1);
  const at::Tensor c = angle.cos(), s = angle.sin(), rest = x_THK.slice(2, d);
  const at::Tensor a = interleaved ? x_THK.slice(2, 0, d, 2) : x_THK.slice(2, 0, d / 2),
                   b = interleaved ? x_THK.slice(2, 1, d, 2) : x_THK.slice(2, d / 2, d);
  const at::Tensor first = a * c - b * s, second = b * c + a * s;
  const at::Tensor both =
      interleaved ? at::stack({first, second}, 3).flatten(2) : at::cat({first, second}, 2);
  return at::cat({both, rest}, 2);
}

/// The result of a family of decoders for one text, in fp64, computed from the parameters of a
/// runner.
struct Reference {
  const ModelRunner& runner;
  std::int64_t heads, groups, channels;
  double eps, theta, share = 1.0;
  double norm_offset = 0.0, embedding_scale = 1.0;
  bool tanh_gelu = false, interleaved = false, all_heads_norm = false;
  std::string before_attention, after_attention, before_mlp, after_mlp;

  [[nodiscard]] at::Tensor weight(const std::string& name) const {
    return runner.weights.at(name).to(at::kDouble);
  }
  [[nodiscard]] at::Tensor norm(const at::Tensor& x,
                                const std::string& layer,
                                const std::string& name) const {
    return name.empty() ? x : rms(x, weight(layer + name + ".weight") + norm_offset, eps);
  }

  [[nodiscard]] at::Tensor attention(const at::Tensor& h_TC,
                                     const std::string& layer,
                                     bool turns) const {
    const std::int64_t T = h_TC.size(0), K = channels, each = heads / groups;
    const std::string qkv = layer + "self_attn.qkv_proj.";
    at::Tensor w = weight(qkv + "weight");
    if (each == 1) w = w.transpose(0, 1);  // [3, heads, ...] as [heads, 3, ...]
    at::Tensor x = at::matmul(h_TC, w.reshape({-1, h_TC.size(1)}).t());
    if (runner.weights.contains(qkv + "bias")) {
      at::Tensor bias = weight(qkv + "bias");
      if (each == 1) bias = bias.transpose(0, 1);
      x = x + bias.reshape({-1});
    }
    x = x.view({T, groups, each + 2, K});
    at::Tensor q = x.slice(2, 0, each).reshape({T, heads, K}), k = x.select(2, each),
               v = x.select(2, each + 1);
    if (all_heads_norm) {
      q = rms(q.reshape({T, -1}), weight(layer + "self_attn.q_norm.weight"), eps).view_as(q);
      k = rms(k.reshape({T, -1}), weight(layer + "self_attn.k_norm.weight"), eps)
              .view({T, groups, K});
    }
    if (turns) {
      q = turned(q, theta, share, interleaved);
      k = turned(k, theta, share, interleaved);
    }
    k = k.repeat_interleave(each, 1);
    v = v.repeat_interleave(each, 1);
    at::Tensor scores = at::einsum("thk,shk->hts", {q, k}) / std::sqrt(static_cast<double>(K));
    scores = scores.masked_fill(at::ones({T, T}, at::kBool).triu(1), -INFINITY);
    const at::Tensor y = at::einsum("hts,shk->thk", {scores.softmax(-1), v}).reshape({T, -1});
    return at::matmul(y, weight(layer + "self_attn.o_proj.weight").t());
  }

  [[nodiscard]] at::Tensor mlp(const at::Tensor& h_TC, const std::string& layer) const {
    const at::Tensor w = weight(layer + "mlp.gate_up_proj.weight");
    const at::Tensor gate = at::matmul(h_TC, w[0].t()), up = at::matmul(h_TC, w[1].t());
    const at::Tensor active = tanh_gelu ? at::gelu(gate, "tanh") : at::silu(gate);
    return at::matmul(active * up, weight(layer + "mlp.down_proj.weight").t());
  }

  /// [T, V]; layer i turns queries and keys where turns(i).
  template <class Turns>
  at::Tensor logits(const at::Tensor& ids_T, std::int64_t layers, const Turns& turns) const {
    at::Tensor x = weight("embed_tokens.weight").index_select(0, ids_T) * embedding_scale;
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const at::Tensor h = norm(x, layer, before_attention);
      x = x + norm(attention(h, layer, turns(i)), layer, after_attention);
      x = x + norm(mlp(norm(x, layer, before_mlp), layer), layer, after_mlp);
    }
    const bool tied = !runner.weights.contains("lm_head.weight");
    return at::matmul(rms(x, weight("norm.weight") + norm_offset, eps),
                      weight(tied ? "embed_tokens.weight" : "lm_head.weight").t());
  }
};

/// A runner of the family with weights under which every part affects the result.
ModelRunner runner_of(const std::string& hf_config) {
  ModelRunner runner(resolved(options_of(hf_config)).model);
  at::Generator generator = at::detail::createCPUGenerator(3);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    const bool norm = info.name.find("norm") != std::string::npos;
    out.normal_(norm ? 1.0 : 0.0, norm ? 0.3 : 0.4, generator);
  });
  return runner;
}

template <class Turns>
void expect_equal(ModelRunner& runner, const Reference& reference, const Turns& turns) {
  const at::Tensor ids = at::tensor({3, 41, 5, 17, 60, 8, 22, 9, 9, 1}, at::kLong);
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const at::NoGradGuard no_grad;
  const nn::Outcome out = runner.infer(make_batch(ids.unsqueeze(0)), context);

  const at::Tensor expected = reference.logits(ids, 4, turns);
  const at::Tensor ours = out.outputs.at("logits")[0].to(at::kDouble);
  EXPECT_LT((ours - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST(Decoders, OlmoNormsBehindItsBranchesAndOverAllHeads) {
  ModelRunner runner = runner_of(with("olmo2", R"("rope_theta": 500000, "rms_norm_eps": 1e-6)"));
  const Reference reference{.runner = runner,
                            .heads = 4,
                            .groups = 2,
                            .channels = 4,
                            .eps = 1e-6,
                            .theta = 500000,
                            .all_heads_norm = true,
                            .after_attention = "post_attention_layernorm",
                            .after_mlp = "post_feedforward_layernorm"};
  expect_equal(runner, reference, [](std::int64_t) { return true; });
}

TEST(Decoders, SmolLmHasLayersWithoutPositions) {
  ModelRunner runner = runner_of(with("smollm3", R"("no_rope_layers": [1, 1, 0, 1])"));
  const Reference reference{.runner = runner,
                            .heads = 4,
                            .groups = 2,
                            .channels = 4,
                            .eps = 1e-6,
                            .theta = 2e6,
                            .before_attention = "input_layernorm",
                            .before_mlp = "post_attention_layernorm"};
  expect_equal(runner, reference, [](std::int64_t layer) { return layer != 2; });
}

TEST(Decoders, GlmTurnsNeighbouringChannelsOfHalfAHead) {
  ModelRunner runner =
      runner_of(with("glm4", R"("attention_bias": true, "partial_rotary_factor": 0.5)"));
  const Reference reference{.runner = runner,
                            .heads = 4,
                            .groups = 2,
                            .channels = 4,
                            .eps = 1.5625e-7,
                            .theta = 10000,
                            .share = 0.5,
                            .interleaved = true,
                            .before_attention = "input_layernorm",
                            .after_attention = "post_self_attn_layernorm",
                            .before_mlp = "post_attention_layernorm",
                            .after_mlp = "post_mlp_layernorm"};
  expect_equal(runner, reference, [](std::int64_t) { return true; });
}

TEST(Decoders, TheFirstGlmHasTwoNormsAndBiases) {
  ModelRunner runner = runner_of(with("glm", ""));
  ASSERT_TRUE(runner.weights.contains("layers.0.self_attn.qkv_proj.bias"));
  const Reference reference{.runner = runner,
                            .heads = 4,
                            .groups = 2,
                            .channels = 4,
                            .eps = 1.5625e-7,
                            .theta = 10000,
                            .share = 0.5,
                            .interleaved = true,
                            .before_attention = "input_layernorm",
                            .before_mlp = "post_attention_layernorm"};
  expect_equal(runner, reference, [](std::int64_t) { return true; });
}

TEST(Decoders, TheFirstGemmaScalesItsEmbeddingsAndCountsNormsFromOne) {
  ModelRunner runner = runner_of(with("gemma", R"("hidden_act": "gelu")"));
  const Reference reference{.runner = runner,
                            .heads = 4,
                            .groups = 2,
                            .channels = 4,
                            .eps = 1e-6,
                            .theta = 10000,
                            .norm_offset = 1.0,
                            .embedding_scale = 4.0,  // sqrt(16)
                            .tanh_gelu = true,
                            .before_attention = "input_layernorm",
                            .before_mlp = "post_attention_layernorm"};
  expect_equal(runner, reference, [](std::int64_t) { return true; });
}

std::string activation_of(const std::string& hf_config) {
  return description(hf_config).find("activation")->as_string();
}

TEST(Decoders, TheFirstGemmasFilesSayGeluAndMeanItsApproximation) {
  EXPECT_EQ(activation_of(with("gemma", R"("hidden_act": "gelu")")), "gelu_tanh");
  EXPECT_EQ(activation_of(with("gemma", R"("hidden_act": "gelu", "hidden_activation": null)")),
            "gelu_tanh");
  EXPECT_EQ(activation_of(with("gemma", R"("hidden_act": "gelu", "hidden_activation": "relu")")),
            "relu");
  EXPECT_EQ(activation_of(with("gemma", "")), "gelu_tanh");
}

// ---- the text model in files of models that also see images ----

TEST(Decoders, TheTextModelOfGemma3sOtherFilesIsDescribedByItsTextConfig) {
  const std::string text = with("gemma3_text", R"("sliding_window": 8, "rope_scaling":
    {"rope_type": "linear", "factor": 8.0})");

  EXPECT_EQ(description(R"({"model_type": "gemma3", "image_token_index": 7, "vision_config": {},
                            "text_config": )" +
                        text + "}")
                .dump(),
            description(text).dump());
  // Published files say of the whole model that it answers texts, and the part continues them.
  EXPECT_EQ(objective_of_hf(json::parse_strict(R"({"model_type": "gemma3",
                "architectures": ["Gemma3ForConditionalGeneration"]})",
                                               "config.json"))
                .name,
            "causal_lm");
  EXPECT_THAT(refusal(R"({"model_type": "gemma3"})"), HasSubstr("text_config"));
  EXPECT_THAT(refusal(R"({"model_type": "gemma3", "quantization_config": {"bits": 4},
                          "text_config": )" +
                      text + "}"),
              HasSubstr("quantization_config"));
}

TEST(Decoders, TheTextModelOfGemma3sOtherFilesHasTheNamesOfBothVersions) {
  const WeightMap& map = families().get("gemma3_text").weight_map;

  for (const char* const file : {"language_model.model.layers.0.mlp.up_proj.weight",
                                 "model.language_model.layers.0.mlp.up_proj.weight",
                                 "model.layers.0.mlp.up_proj.weight"})
    EXPECT_EQ(map.known_as(file), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(map.known_as("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(map.known_as("lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(map.may_be_unused("vision_tower.vision_model.post_layernorm.weight"));
  EXPECT_TRUE(map.may_be_unused("model.multi_modal_projector.mm_soft_emb_norm.weight"));
  EXPECT_FALSE(map.may_be_unused("model.layers.0.mlp.up_proj.weight"));
}

}  // namespace
}  // namespace tessera::models
