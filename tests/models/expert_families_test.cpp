// SPDX-License-Identifier: Apache-2.0
// Families with experts: their config.json, the names of their tensors, and adapters. What they
// compute is compared with transformers in golden/models_test.cpp.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"
#include "tessera/tensor/init.h"

namespace tessera::models {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

/// A small config.json of each family, without the keys that have transformers' default.
const std::map<std::string, std::string>& configs() {
  static const std::string sizes =
      R"("num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2,
         "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 32,
         "max_position_embeddings": 32, "num_experts_per_tok": 2, )";
  static const std::string latent =
      R"("kv_lora_rank": 6, "q_lora_rank": null, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
         "v_head_dim": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 1,
         "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, )";
  static const std::map<std::string, std::string> all = {
      {"mixtral", sizes + R"("num_local_experts": 4)"},
      {"qwen2_moe", sizes + R"("num_experts": 4, "moe_intermediate_size": 8,
                  "shared_expert_intermediate_size": 12, "decoder_sparse_step": 2)"},
      {"qwen3_moe", sizes + R"("num_experts": 4, "moe_intermediate_size": 8, "head_dim": 8,
                  "mlp_only_layers": [0])"},
      {"olmoe", sizes + R"("num_experts": 4, "clip_qkv": 3.5)"},
      {"deepseek_v2", sizes + latent + R"("topk_method": "group_limited_greedy")"},
      {"deepseek_v3", sizes + latent + R"("rope_interleave": false)"},
      {"gpt_oss", sizes + R"("num_local_experts": 4, "head_dim": 8, "swiglu_limit": 2.5)"},
      {"phimoe", sizes + R"("num_local_experts": 4, "attention_bias": true)"},
      {"granitemoe", sizes + R"("num_local_experts": 4, "embedding_multiplier": 12.0,
                  "attention_multiplier": 0.5, "residual_multiplier": 0.25, "logits_scaling": 8.0)"},
      {"jetmoe",
       R"("num_hidden_layers": 2, "hidden_size": 16, "num_key_value_heads": 2, "kv_channels": 4,
          "intermediate_size": 8, "vocab_size": 32, "max_position_embeddings": 32,
          "num_local_experts": 4, "num_experts_per_tok": 2, "aux_loss_coef": 0.25)"},
      {"llama4_text", sizes + R"("num_local_experts": 4, "head_dim": 8, "intermediate_size_mlp": 12,
                  "moe_layers": [1], "no_rope_layers": [0, 1], "attention_chunk_size": 4,
                  "attn_temperature_tuning": 4, "attn_scale": 0.25, "floor_scale": 4)"},
      {"switch_transformers",
       R"("num_layers": 4, "num_decoder_layers": 3, "d_model": 16, "num_heads": 2, "d_kv": 6,
          "d_ff": 8, "vocab_size": 32, "num_experts": 4, "num_sparse_encoder_layers": 2,
          "num_sparse_decoder_layers": 1, "expert_capacity": 5, "router_bias": true,
          "router_jitter_noise": 0.25, "router_z_loss_coef": 0.5, "dense_act_fn": "gelu_new")"},
      {"dbrx",
       R"("n_layers": 2, "d_model": 16, "n_heads": 2, "vocab_size": 32, "max_seq_len": 32,
          "attn_config": {"kv_n_heads": 1, "clip_qkv": 2.5, "rope_theta": 20000.0},
          "ffn_config": {"ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2,
                         "ffn_act_fn": {"name": "silu"}, "moe_loss_weight": 0.25})"},
  };
  return all;
}

json::Value config_of(const std::string& family, const std::string& more = "") {
  return json::parse_strict(
      R"({"model_type": ")" + family + R"(", )" + configs().at(family) + more + "}", family);
}

Resolved resolved(const ModelOptions& options) {
  config::Problems problems;
  Resolved out = resolve(options, 32, 16, problems, config::Origins());
  problems.raise();
  return out;
}

std::vector<std::string> tensors_of(const std::string& family) {
  std::vector<std::string> out;
  const Resolved model = resolved(options_from_hf(config_of(family)));
  for (const TheirTensor& tensor :
       their_tensors(families().get(family).weight_map, nn::parameters_of(model.model)))
    out.push_back(tensor.name);
  return out;
}

TEST(ExpertFamilies, WriteTheConfigurationThatTheyRead) {
  for (const auto& [family, text] : configs()) {
    SCOPED_TRACE(family);
    for (const char* const more :
         {"", R"(, "output_router_logits": true, "router_aux_loss_coef": 0.25)"}) {
      const ModelOptions options = options_from_hf(config_of(family, more));
      const Resolved model = resolved(options);
      ModelOptions whole;
      config::Problems problems;
      config::Origins origins;
      config::read(model.description, whole, problems, origins);
      problems.raise();

      const json::Value written = families().get(family).to_hf(*whole);

      EXPECT_EQ(resolved(options_from_hf(written)).description.dump(), model.description.dump());
    }
  }
}

TEST(ExpertFamilies, CountTheirParameters) {
  for (const auto& [family, text] : configs()) {
    const Resolved model = resolved(options_from_hf(config_of(family)));
    std::int64_t declared = 0;
    for (const auto& info : nn::parameters_of(model.model))
      declared += info->numel();
    EXPECT_EQ(model.num_parameters, declared) << family;
    EXPECT_GT(model.inactive_parameters, 0) << family;
  }
}

// As published, and not as transformers 5 holds them in memory.
TEST(ExpertFamilies, HaveThePublishedNamesOfTensors) {
  EXPECT_THAT(tensors_of("mixtral"),
              Contains("model.layers.1.block_sparse_moe.experts.3.w2.weight"));
  EXPECT_THAT(tensors_of("mixtral"), Contains("model.layers.1.block_sparse_moe.gate.weight"));
  EXPECT_THAT(tensors_of("phimoe"),
              Contains("model.layers.0.block_sparse_moe.experts.0.w1.weight"));
  EXPECT_THAT(tensors_of("qwen2_moe"), Contains("model.layers.1.mlp.shared_expert_gate.weight"));
  EXPECT_THAT(tensors_of("qwen2_moe"), Contains("model.layers.0.mlp.down_proj.weight"));
  for (const char* const family :
       {"qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"}) {
    EXPECT_THAT(tensors_of(family), Contains("model.layers.1.mlp.experts.3.gate_proj.weight"));
    EXPECT_THAT(tensors_of(family), Not(Contains(HasSubstr("gate_up_proj"))));
  }
  EXPECT_THAT(tensors_of("deepseek_v3"),
              Contains("model.layers.1.mlp.gate.e_score_correction_bias"));
  EXPECT_THAT(tensors_of("deepseek_v3"),
              Contains("model.layers.1.mlp.shared_experts.up_proj.weight"));
  EXPECT_THAT(tensors_of("deepseek_v3"),
              Contains("model.layers.1.self_attn.kv_a_proj_with_mqa.weight"));
  EXPECT_THAT(tensors_of("gpt_oss"), Contains("model.layers.1.mlp.experts.gate_up_proj"));
  EXPECT_THAT(tensors_of("gpt_oss"), Contains("model.layers.1.mlp.experts.down_proj_bias"));
  EXPECT_THAT(tensors_of("gpt_oss"), Contains("model.layers.1.self_attn.sinks"));
  EXPECT_THAT(tensors_of("granitemoe"),
              Contains("model.layers.1.block_sparse_moe.input_linear.weight"));
  EXPECT_THAT(tensors_of("jetmoe"),
              Contains("model.layers.1.self_attention.experts.output_linear.weight"));
  EXPECT_THAT(tensors_of("jetmoe"), Contains("model.layers.1.mlp.bias"));
  EXPECT_THAT(tensors_of("llama4_text"), Contains("model.layers.1.feed_forward.experts.down_proj"));
  EXPECT_THAT(tensors_of("llama4_text"), Contains("model.layers.0.feed_forward.up_proj.weight"));
  EXPECT_THAT(tensors_of("llama4_text"),
              Contains("model.layers.1.feed_forward.shared_expert.gate_proj.weight"));
  for (const char* const name : {"encoder.block.0.layer.1.mlp.wi.weight",
                                 "encoder.block.1.layer.1.mlp.router.classifier.weight",
                                 "encoder.block.1.layer.1.mlp.router.classifier.bias",
                                 "encoder.block.3.layer.1.mlp.experts.expert_3.wi.weight",
                                 "decoder.block.1.layer.2.mlp.experts.expert_0.wo.weight",
                                 "decoder.block.2.layer.2.mlp.wo.weight"})
    EXPECT_THAT(tensors_of("switch_transformers"), Contains(name));
  EXPECT_THAT(tensors_of("dbrx"), Contains("transformer.blocks.1.ffn.experts.mlp.w2"));
  EXPECT_THAT(tensors_of("dbrx"), Contains("transformer.blocks.1.norm_attn_norm.attn.Wqkv.weight"));
}

TEST(ExpertFamilies, CountTheBalanceLossOfAFolderOnlyIfItAsks) {
  const auto balance = [](const char* more) {
    const Resolved model = resolved(options_from_hf(config_of("qwen3_moe", more)));
    return model.description.find("moe")->find("losses")->find("balance")->as_double();
  };

  EXPECT_EQ(balance(R"(, "router_aux_loss_coef": 0.25)"), 0.0);
  EXPECT_EQ(balance(R"(, "router_aux_loss_coef": 0.25, "output_router_logits": true)"), 0.25);
}

// transformers' model has no such key, and computes the losses where its caller asks for them.
TEST(ExpertFamilies, CountTheLossesOfSwitchTransformersUnlessTheFolderSaysNo) {
  const auto losses = [](const char* more) {
    const Resolved model = resolved(options_from_hf(config_of("switch_transformers", more)));
    return model.description.find("moe")->find("losses")->dump();
  };

  EXPECT_EQ(losses(R"(, "router_aux_loss_coef": 0.25)"), R"({"sequence_balance":0.25,"z":0.5})");
  EXPECT_EQ(losses(R"(, "output_router_logits": false)"), R"({"sequence_balance":0,"z":0})");
}

// The layers that transformers 5.24 makes sparse, also where the number does not divide.
TEST(ExpertFamilies, OfSwitchTransformersAreInTheLayersOfTransformers) {
  const auto sparse = [](int layers, int number) {
    json::Value config = config_of("switch_transformers");
    config["num_layers"] = json::Value::integer(layers);
    config["num_sparse_encoder_layers"] = json::Value::integer(number);
    std::vector<int> out;
    const Resolved model = resolved(options_from_hf(config));
    for (const auto& info : nn::parameters_of(model.model)) {
      if (info->name.starts_with("encoder.block.") && info->name.ends_with(".mlp.gate.weight"))
        out.push_back(std::stoi(info->name.substr(14)));
    }
    return out;
  };
  using testing::ElementsAre;

  EXPECT_THAT(sparse(4, 2), ElementsAre(1, 3));
  EXPECT_THAT(sparse(5, 2), ElementsAre(1, 3));
  EXPECT_THAT(sparse(3, 1), ElementsAre(1));
  EXPECT_THAT(sparse(3, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(sparse(3, 2), ElementsAre(0, 1, 2));
  EXPECT_THAT(sparse(3, 0), ElementsAre(1));
}

std::string error_of(const std::string& family, const std::string& more) {
  try {
    (void)options_from_hf(config_of(family, more));
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing is refused";
}

TEST(ExpertFamilies, RefuseWhatIsNotBuiltByName) {
  EXPECT_THAT(error_of("mixtral", R"(, "router_jitter_noise": 0.1)"),
              HasSubstr("router_jitter_noise"));
  EXPECT_THAT(error_of("gpt_oss", R"(, "swiglu_alpha": 1.5)"), HasSubstr("swiglu_alpha"));
  EXPECT_THAT(error_of("deepseek_v3", R"(, "scoring_func": "softmax")"), HasSubstr("scoring_func"));
  EXPECT_THAT(error_of("qwen3_moe", R"(, "decoder_sparse_step": 3)"), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error_of("switch_transformers", R"(, "router_dtype": "bfloat16")"),
              HasSubstr("router_dtype"));
  EXPECT_THAT(error_of("switch_transformers", R"(, "is_gated_act": true)"),
              HasSubstr("is_gated_act"));
}

// transformers has no default for it.
TEST(ExpertFamilies, NameAKeyThatIsMissing) {
  json::Value config = config_of("deepseek_v2");
  std::erase_if(config.members(),
                [](const auto& member) { return member.first == "num_experts_per_tok"; });

  try {
    (void)options_from_hf(config);
    ADD_FAILURE() << "nothing is refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"num_experts_per_tok\" is missing"));
  }
}

Adapter adapter_for(const std::string& family, const std::string& targets) {
  AdapterOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(json::parse_strict(R"({"type": "lora", "targets": )" + targets + "}", "adapter"),
               options,
               problems,
               origins);
  problems.raise();
  const Resolved model = resolved(options_from_hf(config_of(family)));
  return find_adapter(options, model, families().get(family).weight_map);
}

// As in PEFT, experts have adapters where they are named, and "all-linear" does not name them.
TEST(ExpertFamilies, HaveAdaptersOfEverythingButRoutersAndExpertsByDefault) {
  for (const auto& [family, text] : configs()) {
    SCOPED_TRACE(family);
    bool attention = family == "jetmoe" || family == "switch_transformers";
    for (const AdapterModule& module : adapter_for(family, R"("all-linear")").modules) {
      EXPECT_FALSE(module.weight->stacked()) << module.part.module;
      EXPECT_THAT(module.part.module, Not(testing::EndsWith(".gate")));
      EXPECT_THAT(module.part.module, Not(HasSubstr("router")));
      attention = attention || module.part.module.ends_with("o_proj") ||
                  module.part.module.ends_with("attn.out_proj");
    }
    EXPECT_TRUE(attention);
  }
}

std::string refusal_of_adapter(const std::string& family, const std::string& targets) {
  try {
    (void)adapter_for(family, targets);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertFamilies, HaveOneAdapterForTheExpertsOfALayer) {
  const Adapter adapter = adapter_for("qwen3_moe", R"(["q_proj", "up_proj"])");
  std::vector<std::string> stacked;
  for (const AdapterModule& module : adapter.modules) {
    if (module.experts == 0) continue;
    stacked.push_back(module.a());
    EXPECT_EQ(adapter.parameters.at(module.a())->shape, (Shape{4, 8, 16}));
    EXPECT_EQ(adapter.parameters.at(module.b())->shape, (Shape{4, 8, 8}));
    EXPECT_EQ(module.stored.at(3), "model.layers.1.mlp.experts.3.up_proj");
  }
  EXPECT_THAT(stacked, testing::ElementsAre("model.layers.1.mlp.experts.up_proj.lora_A.weight"));
}

TEST(ExpertFamilies, RefuseAdaptersThatExpertsCannotHave) {
  EXPECT_THAT(refusal_of_adapter("qwen3_moe", R"(["experts.0.up_proj"])"),
              HasSubstr("some experts of its layer have none"));
  EXPECT_THAT(refusal_of_adapter("qwen3_moe", R"(["up_proj"], "rank_pattern": {"2.up_proj": 3})"),
              HasSubstr("another rank"));
  EXPECT_THAT(refusal_of_adapter("mixtral", R"(["w1"], "target_parameters": ["gate_up_proj"])"),
              HasSubstr("has an adapter by adapter.targets too"));
}

TEST(ExpertFamilies, ComputeARouterWithAnAdapterAsTheMergedModelDoes) {
  for (const auto& [family, target] :
       {std::pair("qwen3_moe", R"(["mlp.gate"])"), std::pair("dbrx", R"(["router.layer"])")}) {
    SCOPED_TRACE(family);
    const Resolved model = resolved(options_from_hf(config_of(family)));
    const Adapter adapter = adapter_for(family, target);
    ASSERT_FALSE(adapter.modules.empty());
    test::ModelRunner with(adapted(model.model, adapter)), merged(model.model);
    with.fill([](const ParamInfo& info, at::Tensor out) {
      initialize_range(info, /*seed=*/3, 0, out);
      // B begins with zeros, and would change nothing.
      if (info.name.ends_with("lora_B.weight"))
        out.copy_(at::arange(out.numel(), at::kFloat).remainder(7).sub(3).mul(0.125));
    });
    const auto values =
        [&](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
          const at::Tensor whole = with.weights.at(info.name).contiguous();
          std::copy_n(whole.data_ptr<float>() + begin, end - begin, out);
        };
    const WeightSource source = merged_weights(adapter, values, values);
    merged.fill([&](const ParamInfo& info, at::Tensor out) {
      source(info, 0, info.numel(), out.data_ptr<float>());
    });
    const at::Tensor ids = at::arange(24, at::kLong).view({2, 12});
    const nn::Batch batch = test::make_batch(ids, ids.add(1).remainder(32));

    const double loss = with.train(batch), expected = merged.train(batch);

    EXPECT_NEAR(loss, expected, 1e-5 * expected);
    int trained = 0;
    for (const auto& [name, grad] : with.grads)
      trained += static_cast<int>(grad.abs().sum().item<double>() > 0);
    EXPECT_EQ(trained, 2 * static_cast<int>(adapter.modules.size()));
  }
}

// PEFT does the same: target_parameters alone adapt nothing else, and exclusion is about layers.
TEST(ExpertFamilies, AdaptOnlyTargetParametersIfNoLayersAreNamed) {
  const auto adapted = [](const std::string& targets) {
    std::vector<std::string> out;
    for (const AdapterModule& module : adapter_for("mixtral", targets).modules)
      out.push_back(module.parameter.empty() ? "layer" : module.parameter);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  };
  const std::string stacked = R"(, "target_parameters": ["experts.down_proj"])";
  const std::string first = "model.layers.0.mlp.experts.down_proj",
                    second = "model.layers.1.mlp.experts.down_proj";

  EXPECT_THAT(adapted("null" + stacked), testing::ElementsAre(first, second));
  EXPECT_THAT(adapted(R"("all-linear")" + stacked), testing::ElementsAre("layer", first, second));
  EXPECT_THAT(adapted("null" + stacked + R"(, "exclude": ["down_proj"])"),
              testing::ElementsAre(first, second));
}

}  // namespace
}  // namespace tessera::models
