// SPDX-License-Identifier: Apache-2.0
// CPM's models compared with plain formulas, and their keys and names in ModelCenter's files.
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"

// Legend: T tokens, C embed, H heads, K channels of a head.
namespace tessera::models {
namespace {

using test::ModelRunner;
using testing::HasSubstr;

constexpr std::int64_t kHeads = 2, kHidden = 16, kInner = 24;

std::string config_of(const std::string& type, const std::string& more) {
  const std::string layers =
      type == "cpm1" ? R"("num_layers": 2)" : R"("num_encoder_layers": 2, "num_decoder_layers": 2)";
  return R"({"model_type": ")" + type + R"(", "vocab_size": 64, "dim_model": 16, "num_heads": 2,
    "dim_head": 8, "dim_ff": 24, "position_bias_num_buckets": 8, "position_bias_max_distance": 20, )" +
         layers + more + "}";
}

ModelOptions options_of(const std::string& config) {
  return options_from_hf(json::parse(config, "config.json"));
}

Resolved resolved(const std::string& config) {
  const ModelOptions options = options_of(config);
  config::Problems problems;
  Resolved out = resolve(options, 64, std::nullopt, problems, config::Origins());
  problems.raise();
  return out;
}

std::string refusal(const std::string& config) {
  try {
    (void)options_of(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

ModelRunner runner_of(const std::string& config) {
  ModelRunner runner(resolved(config).model);
  at::Generator generator = at::detail::createCPUGenerator(3);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    const bool norm = info.name.find("norm") != std::string::npos;
    out.normal_(norm ? 1.0 : 0.0, norm ? 0.3 : 0.4, generator);
  });
  return runner;
}

/// One text in fp64, following the description of ModelCenter's layers: each linear layer divides
/// its output by the root of its number of inputs.
struct Cpm1 {
  const ModelRunner& runner;
  bool length_scale = false, attention_scale = false, layer_norm = false;

  [[nodiscard]] at::Tensor weight(const std::string& name) const {
    return runner.weights.at(name).to(at::kDouble);
  }
  [[nodiscard]] at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) const {
    const at::Tensor y = at::matmul(x, weight.t());
    return length_scale ? y / std::sqrt(static_cast<double>(weight.size(1))) : y;
  }
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    if (layer_norm)
      return at::layer_norm(x, {kHidden}, weight(name + ".weight"), weight(name + ".bias"), 1e-6);
    return x * (x.square().mean(-1, true) + 1e-6).rsqrt() * weight(name + ".weight");
  }
  /// Distances 0 and 1 have a bucket each, the others up to 20 share two by their logarithm; there
  /// are eight buckets, of which the last four are for later tokens.
  [[nodiscard]] static std::int64_t bucket(std::int64_t distance) {
    if (distance < 2) return distance;
    const double place = std::log(static_cast<double>(distance) / 2) / std::log(20.0 / 2);
    return 2 + static_cast<std::int64_t>(std::min(place, 0.9999) * 2);
  }

  [[nodiscard]] at::Tensor attention(const at::Tensor& h_TC, const std::string& layer) const {
    const std::int64_t T = h_TC.size(0), K = kHidden / kHeads;
    const std::string at = layer + "self_att.self_attention.";
    const at::Tensor qkv = weight(at + "project_qkv.weight").reshape({3, kHidden, kHidden});
    std::vector<at::Tensor> x;
    for (std::int64_t i = 0; i < 3; ++i)
      x.push_back(linear(h_TC, qkv[i]).view({T, kHeads, K}));
    at::Tensor scores = at::einsum("thk,shk->hts", {x[0], x[1]});
    if (attention_scale) scores = scores / std::sqrt(static_cast<double>(K));
    const at::Tensor table = weight("position_bias.relative_attention_bias");
    scores = scores.clone();
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t s = 0; s < T; ++s) {
        if (s > t) {
          scores.select(1, t).select(1, s).fill_(-INFINITY);
        } else {
          scores.select(1, t).select(1, s).add_(table[bucket(t - s)]);
        }
      }
    }
    const at::Tensor y = at::einsum("hts,shk->thk", {scores.softmax(-1), x[2]}).reshape({T, -1});
    return linear(y, weight(at + "attention_out.weight"));
  }

  [[nodiscard]] at::Tensor mlp(const at::Tensor& h_TC, const std::string& layer) const {
    const at::Tensor in = weight(layer + "ffn.ffn.w_in.w.weight");
    return linear(at::gelu(linear(h_TC, in[0])) * linear(h_TC, in[1]),
                  weight(layer + "ffn.ffn.w_out.weight"));
  }

  [[nodiscard]] at::Tensor logits(const at::Tensor& ids_T) const {
    const double root = std::sqrt(static_cast<double>(kHidden));
    at::Tensor x = weight("input_embedding.weight").index_select(0, ids_T);
    if (length_scale) x = x / root;
    for (int i = 0; i < 2; ++i) {
      const std::string layer = "encoder.layers." + std::to_string(i) + ".";
      x = x + attention(norm(x, layer + "self_att.layernorm_before_attention"), layer);
      x = x + mlp(norm(x, layer + "ffn.layernorm_before_ffn"), layer);
    }
    const bool tied = !runner.weights.contains("lm_head.weight");
    return linear(norm(x, "encoder.output_layernorm"),
                  weight(tied ? "input_embedding.weight" : "lm_head.weight"));
  }
};

void expect_equal(ModelRunner& runner, const Cpm1& reference) {
  const at::Tensor ids =
      at::arange(26, at::kLong).mul(37).remainder(64);  // beyond the longest distance
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const at::NoGradGuard no_grad;

  const nn::Outcome out = runner.infer(test::make_batch(ids.unsqueeze(0)), context);

  const at::Tensor expected = reference.logits(ids);
  EXPECT_LT((out.outputs.at("logits")[0].to(at::kDouble) - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST(Cpm1, IsADecoderWithOneBiasByDistanceForAllLayers) {
  ModelRunner runner = runner_of(config_of("cpm1", ""));

  expect_equal(runner, {.runner = runner});
}

TEST(Cpm1, DividesByLengthsWhereItsFileSaysSo) {
  ModelRunner runner =
      runner_of(config_of("cpm1", R"(, "length_scale": true, "attn_scale": true, "tied": true)"));

  expect_equal(runner, {.runner = runner, .length_scale = true, .attention_scale = true});
}

TEST(Cpm1, HasLayerNormsWhereTheyHaveABias) {
  ModelRunner runner = runner_of(config_of("cpm1", R"(, "norm_bias": true)"));

  expect_equal(runner, {.runner = runner, .layer_norm = true});
}

TEST(Cpm2, HasTheElevenBillionParametersOfItsPaper) {
  ModelOptions options("cpm2");
  options.choose_preset("cpm2-11b");
  config::Problems problems;

  const Resolved out = resolve(options, 26240, 512, problems, config::Origins());

  problems.raise();
  EXPECT_NEAR(static_cast<double>(out.num_parameters), 11e9, 0.1e9);
}

TEST(Cpm, RefuseWhatTheyWouldComputeOtherwise) {
  EXPECT_THAT(refusal(config_of("cpm1", R"(, "att_bias": true)")), HasSubstr("att_bias"));
  EXPECT_THAT(refusal(config_of("cpm1", R"(, "pos_bias_type": "rotary")")),
              HasSubstr("pos_bias_type"));
  EXPECT_THAT(refusal(config_of("cpm1", R"(, "dim_head": 4)")), HasSubstr("dim_head"));
  EXPECT_THAT(refusal(config_of("cpm2", R"(, "length_scale": true)")), HasSubstr("length_scale"));
  EXPECT_THAT(refusal(config_of("cpm2", R"(, "ffn_activate_fn": "relu")")),
              HasSubstr("ffn_activate_fn"));
}

}  // namespace
}  // namespace tessera::models
