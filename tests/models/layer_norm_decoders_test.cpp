// SPDX-License-Identifier: Apache-2.0
// OPT, GPT-NeoX and BLOOM: Hugging Face's configurations, and how their files store what is one
// parameter here. tests/golden/ tests their results.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

using test::make_batch;
using test::ModelRunner;
using testing::HasSubstr;

Resolved resolved(const ModelOptions& options) {
  config::Problems problems;
  Resolved out = resolve(
      options, options->vocab_size.value_or(256), std::nullopt, problems, config::Origins());
  problems.raise();
  return out;
}

/// The options of a section `model`, resolved; the first problem, if any, is thrown.
Resolved resolved(const std::string& model) {
  ModelOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(json::parse(model, "config.json"), options, problems, origins);
  problems.raise();
  return resolved(options);
}

/// The description that a config.json resolves to.
json::Value description(const std::string& hf_config) {
  return resolved(options_from_hf(json::parse(hf_config, "config.json"))).description;
}

constexpr const char* kSmallNeox =
    R"("model_type": "gpt_neox", "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4,
       "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 32)";

std::string neox(const std::string& more) {
  return "{" + std::string(kSmallNeox) + (more.empty() ? "" : ", " + more) + "}";
}

TEST(GptNeox, ReadsBothSpellingsOfRotaryPositions) {
  const json::Value old_keys = description(neox(R"("rotary_pct": 0.5, "rotary_emb_base": 5000)")),
                    new_keys = description(neox(
                        R"("rope_parameters": {"rope_type": "default", "rope_theta": 5000,
                           "partial_rotary_factor": 0.5})"));

  EXPECT_TRUE(old_keys == new_keys) << old_keys.dump() << new_keys.dump();
  EXPECT_EQ(old_keys.find("rotary_fraction")->as_double(), 0.5);
  EXPECT_EQ(old_keys.find("rope_theta")->as_double(), 5000.0);
}

TEST(GptNeox, HasHuggingFacesDefaultsWhereKeysAreAbsent) {
  const json::Value model = description(neox(""));

  EXPECT_EQ(model.find("rotary_fraction")->as_double(), 0.25);
  EXPECT_TRUE(model.find("parallel_residual")->as_bool());
  EXPECT_TRUE(model.find("attention_bias")->as_bool());
  EXPECT_FALSE(model.find("tie_embeddings")->as_bool());
  EXPECT_EQ(model.find("activation")->as_string(), "gelu");
}

std::string refusal(const std::string& hf_config) {
  try {
    (void)description(hf_config);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(GptNeox, RefusesScalingsThatItCannotCompute) {
  EXPECT_THAT(refusal(neox(R"("rope_scaling": {"type": "proportional", "factor": 2.0})")),
              HasSubstr("\"proportional\""));
  const std::string dynamic = R"("rope_scaling": {"type": "dynamic", "factor": 2.0})";
  EXPECT_EQ(refusal(neox(dynamic)), "accepted");
  EXPECT_EQ(refusal(neox(dynamic + R"(, "rope_length": 48)")), "accepted");
  // A quarter of the 8 channels of a head is one pair.
  EXPECT_THAT(refusal(neox(R"("rope_length": 16, "rope_scaling": {"type": "longrope",
                  "short_factor": [1, 1], "long_factor": [2, 2]})")),
              HasSubstr("2 short and 2 long factors for 1 pairs"));
}

TEST(GptNeox, RefusesAFractionThatTurnsHalfAPair) {
  EXPECT_THROW((void)description(neox(R"("rotary_pct": 0.4)")), Error);
}

TEST(GptNeox, HasNoBiasesOfAttentionWhereTheConfigurationHasNone) {
  const Resolved model =
      resolved(options_from_hf(json::parse(neox(R"("attention_bias": false)"), "config.json")));

  for (const auto& info : nn::parameters_of(model.model)) {
    EXPECT_FALSE(info->name.find(".attention.") != std::string::npos &&
                 info->name.ends_with(".bias"))
        << info->name;
  }
}

/// Element (0, 1 or 2; head, channel, input) of the fused parameter is in row (head * 3 + that
/// number)
/// * channels + channel of the file.
TEST(GptNeox, StoresQueriesKeysAndValuesHeadByHead) {
  const Resolved model = resolved(options_from_hf(json::parse(neox(""), "config.json")));
  const Family& family = families().get("gpt_neox");
  constexpr std::int64_t kHeads = 4, kChannels = 8, kInputs = 32;
  for (const auto& info : nn::parameters_of(model.model)) {
    if (info->name != "layers.1.attention.query_key_value.weight") continue;
    const Composition composition = family.weight_map.compose(*info);
    ASSERT_EQ(composition.parts().size(), 1U);
    std::vector<float> out(static_cast<std::size_t>(info->numel()));
    copy_range(
        composition.copy_of(composition.parts().front()),
        0,
        info->numel(),
        [](std::int64_t begin, std::int64_t end, float* to) {
          for (std::int64_t i = begin; i < end; ++i)
            *to++ = static_cast<float>(i);
        },
        out.data());
    std::size_t at = 0;
    for (std::int64_t which = 0; which < 3; ++which) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        for (std::int64_t channel = 0; channel < kChannels; ++channel, at += kInputs) {
          EXPECT_EQ(out[at],
                    static_cast<float>(((head * 3 + which) * kChannels + channel) * kInputs));
        }
      }
    }
    return;
  }
  FAIL() << "no such parameter";
}

constexpr const char* kSmallOpt =
    R"("model_type": "opt", "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4,
       "num_hidden_layers": 2, "ffn_dim": 48, "max_position_embeddings": 32)";

std::string opt(const std::string& more) {
  return "{" + std::string(kSmallOpt) + (more.empty() ? "" : ", " + more) + "}";
}

std::vector<std::string> names_of_parameters(const Resolved& model) {
  std::vector<std::string> out;
  for (const auto& info : nn::parameters_of(model.model))
    out.push_back(info->name);
  return out;
}

TEST(Opt, HasAFinalNormUnlessTheConfigurationRemovesIt) {
  using testing::Contains;
  using testing::Not;
  const auto names = [](const std::string& more) {
    return names_of_parameters(resolved(options_from_hf(json::parse(opt(more), "config.json"))));
  };

  EXPECT_THAT(names(""), Contains("final_layer_norm.weight"));
  EXPECT_THAT(names(R"("_remove_final_layer_norm": true)"),
              Not(Contains("final_layer_norm.weight")));
  EXPECT_THAT(names(R"("do_layer_norm_before": false)"), Not(Contains("final_layer_norm.weight")));
  EXPECT_THAT(names(R"("word_embed_proj_dim": 16)"),
              testing::IsSupersetOf(
                  {"final_layer_norm.weight", "project_in.weight", "project_out.weight"}));
  EXPECT_THAT(names(R"("enable_bias": false)"), Not(Contains("layers.0.fc1.bias")));
}

TEST(Opt, RefusesKeysThatItDoesNotHonour) {
  for (const char* const more : {R"("layer_norm_elementwise_affine": false)",
                                 R"("layerdrop": 0.1)",
                                 R"("activation_function": "tanh")"}) {
    EXPECT_THROW((void)description(opt(more)), Error) << more;
  }
}

TEST(Opt, WritesTheConfigurationThatItReads) {
  for (const char* const more : {"",
                                 R"("do_layer_norm_before": false, "word_embed_proj_dim": 16)",
                                 R"("_remove_final_layer_norm": true, "enable_bias": false)",
                                 R"("tie_word_embeddings": false, "dropout": 0.0)"}) {
    ModelOptions again;
    config::Problems problems;
    config::Origins origins;
    config::read(description(opt(more)), again, problems, origins);
    problems.raise();

    const json::Value written = families().get("opt").to_hf(*again);

    EXPECT_TRUE(description(written.dump()) == description(opt(more))) << written.dump();
  }
}

TEST(Opt, RefusesASecondNormAtTheEnd) {
  EXPECT_THROW(
      (void)resolved(std::string(R"({"family": "opt", "pre_norm": false, "final_norm": true})")),
      Error);
}

/// Logits of the last three tokens.
at::Tensor last_logits(ModelRunner& runner, const nn::Batch& batch) {
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const at::Tensor logits = runner.infer(batch, context).outputs.at("logits");
  return logits.narrow(1, logits.size(1) - 3, 3);
}

// Positions count the tokens that the mask lets through.
TEST(Opt, GivesTheSameWithPaddingBeforeTheText) {
  const Resolved model = resolved(options_from_hf(json::parse(opt(""), "config.json")));
  ModelRunner runner(model.model);
  runner.fill([](const ParamInfo& info, const at::Tensor& out) {
    out.copy_(at::sin(at::arange(info.numel(), at::kFloat) * 0.7));
  });
  const auto ids = [](std::vector<std::int64_t> list) {
    return at::tensor(list, at::kLong).unsqueeze(0);
  };
  nn::Batch padded = make_batch(ids({1, 1, 7, 11, 13}));
  padded.set("attention_mask", ids({0, 0, 1, 1, 1}));

  const at::Tensor alone = last_logits(runner, make_batch(ids({7, 11, 13}))),
                   behind = last_logits(runner, padded);

  EXPECT_LT((alone - behind).abs().max().item<double>(), 1e-4 * alone.abs().max().item<double>());
  EXPECT_GT(
      (alone - last_logits(runner, make_batch(ids({1, 1, 7, 11, 13})))).abs().max().item<double>(),
      1e-3);
}

}  // namespace
}  // namespace tessera::models
