// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of Llama and related families: published models are sharded over ranks
// as megatron.core shards them, and every tensor is read back unchanged.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "interop/torch/torch_bytes.h"
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
namespace op = test::op;
using gpt::Members;
using gpt::Tensor;

/// The layouts of experts in megatron.core: a tensor for each (SequentialMLP, TEGroupedMLP), or one
/// for all experts of a rank (GroupedMLP).
enum class Experts : std::uint8_t { Sequential, Numbered, Grouped };

/// A published model, and how Megatron's ranks share it.
class Cut {
 public:
  Cut(const std::string& model,
      std::int64_t tensor,
      std::int64_t pipeline,
      std::int64_t expert = 1,
      Experts layout = Experts::Numbered)
      : folder_(tessera::test::source_dir() / "tests" / "golden" / "reference" / "models" / model),
        file_(folder_ / "model.safetensors"),
        config_(golden::read_json(folder_ / "config.json")),
        tensor_(tensor),
        pipeline_(pipeline),
        expert_(expert),
        layout_(layout) {}

  [[nodiscard]] const json::Value& config() const { return config_; }
  [[nodiscard]] const checkpoint::SafetensorsFile& file() const { return file_; }
  [[nodiscard]] std::int64_t number(const char* key) const {
    return *golden::at(config_, key).as_integer();
  }
  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] Tensor at(const std::string& name) const {
    const auto* entry = file_.find(name);
    Tensor out{entry->shape, std::vector<float>(file_.bytes(*entry).size() / sizeof(float))};
    std::memcpy(out.values.data(), file_.bytes(*entry).data(), file_.bytes(*entry).size());
    return out;
  }

  /// Writes the files of an iteration. `more`: arguments in addition to those of the model.
  void write(const fs::path& to, const Members& more = {}) const {
    for (std::int64_t p = 0; p < pipeline_; ++p) {
      for (std::int64_t t = 0; t < tensor_; ++t) {
        for (std::int64_t e = 0; e < expert_; ++e) {
          gpt::File out;
          std::string rank = fmt::format("mp_rank_{:02}", t);
          if (pipeline_ > 1) rank += fmt::format("_{:03}", p);
          if (expert_ > 1) rank += fmt::format("_{:03}", e);
          out.write(to / "iter_0000012" / rank / "model_optim_rng.pt",
                    {{"args", arguments(more)},
                     {"iteration", op::integer(12)},
                     {"checkpoint_version", gpt::number(3.0)},
                     {"model", op::dict(held(out, t, p, e))}});
        }
      }
    }
    files::write_atomic(to / "latest_checkpointed_iteration.txt", "12");
  }

 private:
  [[nodiscard]] bool biased() const { return has("model.layers.0.self_attn.q_proj.bias"); }
  [[nodiscard]] bool normed() const { return has("model.layers.0.self_attn.q_norm.weight"); }
  [[nodiscard]] bool untied() const { return has("lm_head.weight"); }
  [[nodiscard]] bool sparse(std::int64_t layer = 0) const {
    return has(layer_of_experts(layer) + "gate.weight");
  }
  [[nodiscard]] std::string layer_of_experts(std::int64_t layer) const {
    return fmt::format("model.layers.{}.{}.", layer, mixtral() ? "block_sparse_moe" : "mlp");
  }
  [[nodiscard]] bool mixtral() const { return has("model.layers.0.block_sparse_moe.gate.weight"); }
  [[nodiscard]] std::int64_t experts() const {
    return at(layer_of_experts(0) + "gate.weight").shape[0];
  }

  [[nodiscard]] std::string arguments(const Members& more) const {
    const std::string yes = "\x88", no = "\x89";
    const std::int64_t heads = number("num_attention_heads");
    Members args = {
        {"num_layers", op::integer(number("num_hidden_layers"))},
        {"hidden_size", op::integer(number("hidden_size"))},
        {"num_attention_heads", op::integer(heads)},
        {"group_query_attention", yes},
        {"num_query_groups", op::integer(number("num_key_value_heads"))},
        {"kv_channels", op::integer(at("model.layers.0.self_attn.q_proj.weight").shape[0] / heads)},
        {"ffn_hidden_size", op::integer(number("intermediate_size"))},
        {"max_position_embeddings", op::integer(number("max_position_embeddings"))},
        {"tensor_model_parallel_size", op::integer(tensor_)},
        {"pipeline_model_parallel_size", op::integer(pipeline_)},
        {"vocab_size", op::integer(number("vocab_size"))},
        {"make_vocab_size_divisible_by", op::integer(1)},
        {"swiglu", yes},
        {"normalization", op::text("RMSNorm")},
        {"position_embedding_type", op::text("rope")},
        {"add_bias_linear", no},
        {"add_qkv_bias", biased() ? yes : no},
        {"qk_layernorm", normed() ? yes : no},
        {"rotary_percent", gpt::number(1.0)},
        {"rotary_base", gpt::number(500.0)},
        {"norm_epsilon", gpt::number(0.25)},
        {"untie_embeddings_and_output_weights", untied() ? yes : no}};
    if (sparse()) {
      args.emplace_back("num_experts", op::integer(experts()));
      args.emplace_back("moe_router_topk", op::integer(number("num_experts_per_tok")));
      args.emplace_back("expert_model_parallel_size", op::integer(expert_));
      std::vector<std::string> marks;
      for (std::int64_t layer = 0; layer < number("num_hidden_layers"); ++layer)
        marks.push_back(op::integer(sparse(layer) ? 1 : 0));
      args.emplace_back("moe_layer_freq", op::list_of(marks));
      if (!mixtral())
        args.emplace_back("moe_ffn_hidden_size", op::integer(number("moe_intermediate_size")));
      if (const json::Value* norm = config_.find("norm_topk_prob"))
        args.emplace_back("moe_router_pre_softmax", norm->as_bool() ? no : yes);
    }
    args.insert(args.end(), more.begin(), more.end());
    return op::global("argparse", "Namespace") + ")\x81" + op::dict(args) + "b";
  }

  /// Rows [first, first + count) of a matrix or a vector.
  static Tensor rows(const Tensor& from, std::int64_t first, std::int64_t count) {
    const std::int64_t row = from.shape.size() > 1 ? from.shape[1] : 1;
    Tensor out{from.shape, {}};
    out.shape[0] = count;
    out.values.assign(from.values.begin() + first * row,
                      from.values.begin() + (first + count) * row);
    return out;
  }
  static Tensor columns(const Tensor& from, std::int64_t first, std::int64_t count) {
    Tensor out{{from.shape[0], count}, {}};
    for (std::int64_t r = 0; r < from.shape[0]; ++r) {
      const auto begin = from.values.begin() + r * from.shape[1] + first;
      out.values.insert(out.values.end(), begin, begin + count);
    }
    return out;
  }
  static Tensor flipped(const Tensor& from) {
    Tensor out{{from.shape[1], from.shape[0]}, {}};
    for (std::int64_t c = 0; c < from.shape[1]; ++c) {
      for (std::int64_t r = 0; r < from.shape[0]; ++r)
        out.values.push_back(from.values[static_cast<std::size_t>(r * from.shape[1] + c)]);
    }
    return out;
  }
  static void append(Tensor& to, const Tensor& more) {
    if (to.shape.empty()) {
      to = more;
      return;
    }
    to.shape[0] += more.shape[0];
    to.values.insert(to.values.end(), more.values.begin(), more.values.end());
  }

  /// The tensors of a rank, under the names of megatron.core with fused norms.
  [[nodiscard]] Members held(gpt::File& out, std::int64_t t, std::int64_t p, std::int64_t e) const {
    Members members;
    const auto add = [&](const std::string& name, const Tensor& tensor) {
      members.emplace_back(name, out.tensor(tensor));
    };
    const auto my_rows = [&](const Tensor& whole) {
      return rows(whole, t * (whole.shape[0] / tensor_), whole.shape[0] / tensor_);
    };
    const auto my_columns = [&](const Tensor& whole) {
      return columns(whole, t * (whole.shape[1] / tensor_), whole.shape[1] / tensor_);
    };
    // Rows are added until the ranks have the same number.
    const auto my_table = [&](Tensor whole) {
      while (whole.shape[0] % tensor_ != 0) {
        whole.values.resize(whole.values.size() + static_cast<std::size_t>(whole.shape[1]), -1.0F);
        ++whole.shape[0];
      }
      return my_rows(whole);
    };
    if (p == 0) add("embedding.word_embeddings.weight", my_table(at("model.embed_tokens.weight")));
    const std::int64_t each = number("num_hidden_layers") / pipeline_;
    for (std::int64_t i = 0; i < each; ++i) {
      const std::string theirs = fmt::format("decoder.layers.{}.", i);
      const std::string ours = fmt::format("model.layers.{}.", p * each + i);
      add(theirs + "self_attention.linear_qkv.layer_norm_weight",
          at(ours + "input_layernorm.weight"));
      for (const char* part : {"weight", "bias"}) {
        if (part == std::string("bias") && !biased()) continue;
        add(theirs + "self_attention.linear_qkv." + part, fused(ours + "self_attn.", part, t));
      }
      if (normed()) {
        add(theirs + "self_attention.q_layernorm.weight", at(ours + "self_attn.q_norm.weight"));
        add(theirs + "self_attention.k_layernorm.weight", at(ours + "self_attn.k_norm.weight"));
      }
      add(theirs + "self_attention.linear_proj.weight",
          my_columns(at(ours + "self_attn.o_proj.weight")));
      if (sparse(p * each + i)) {
        add(theirs + "pre_mlp_layernorm.weight", at(ours + "post_attention_layernorm.weight"));
        const std::string root = layer_of_experts(p * each + i);
        add(theirs + "mlp.router.weight", at(root + "gate.weight"));
        const std::int64_t here = experts() / expert_;
        Tensor weight1, weight2;
        for (std::int64_t x = 0; x < here; ++x) {
          const std::string expert = fmt::format("{}experts.{}.", root, e * here + x);
          const auto matrix = [&](const char* in_mixtral, const char* in_qwen) {
            return at(expert + (mixtral() ? in_mixtral : in_qwen) + ".weight");
          };
          Tensor fc1 = my_rows(matrix("w1", "gate_proj"));
          append(fc1, my_rows(matrix("w3", "up_proj")));
          const Tensor fc2 = my_columns(matrix("w2", "down_proj"));
          const std::string all = theirs + "mlp.experts.";
          if (layout_ == Experts::Grouped) {
            append(weight1, flipped(fc1));
            append(weight2, flipped(fc2));
          } else if (layout_ == Experts::Sequential) {
            add(fmt::format("{}local_experts.{}.linear_fc1.weight", all, x), fc1);
            add(fmt::format("{}local_experts.{}.linear_fc2.weight", all, x), fc2);
          } else {
            add(fmt::format("{}linear_fc1.weight{}", all, x), fc1);
            add(fmt::format("{}linear_fc2.weight{}", all, x), fc2);
          }
        }
        if (layout_ == Experts::Grouped) {
          // Both are seen as [experts, in, out]; weight1 is stored as [in, experts x out].
          weight1.shape = {weight1.shape[0] / here, here * weight1.shape[1]};
          add(theirs + "mlp.experts.weight1", weight1);
          add(theirs + "mlp.experts.weight2", weight2);
        }
        continue;
      }
      add(theirs + "mlp.linear_fc1.layer_norm_weight",
          at(ours + "post_attention_layernorm.weight"));
      Tensor fc1 = my_rows(at(ours + "mlp.gate_proj.weight"));
      append(fc1, my_rows(at(ours + "mlp.up_proj.weight")));
      add(theirs + "mlp.linear_fc1.weight", fc1);
      add(theirs + "mlp.linear_fc2.weight", my_columns(at(ours + "mlp.down_proj.weight")));
    }
    if (p == pipeline_ - 1) {
      add("decoder.final_layernorm.weight", at("model.norm.weight"));
      if (untied()) add("output_layer.weight", my_table(at("lm_head.weight")));
    }
    return members;
  }
  /// Queries, key and value of each of the rank's groups.
  [[nodiscard]] Tensor fused(const std::string& layer,
                             const std::string& part,
                             std::int64_t t) const {
    const Tensor q = at(layer + "q_proj." + part), k = at(layer + "k_proj." + part),
                 v = at(layer + "v_proj." + part);
    const std::int64_t groups = number("num_key_value_heads"), mine = groups / tensor_;
    const std::int64_t queries = q.shape[0] / groups, dim = k.shape[0] / groups;
    Tensor out;
    for (std::int64_t group = t * mine; group < (t + 1) * mine; ++group) {
      append(out, rows(q, group * queries, queries));
      append(out, rows(k, group * dim, dim));
      append(out, rows(v, group * dim, dim));
    }
    return out;
  }

  fs::path folder_;
  checkpoint::SafetensorsFile file_;
  json::Value config_;
  std::int64_t tensor_, pipeline_, expert_;
  Experts layout_;
};

class MegatronRotary : public test::ForeignCheckpoints {
 protected:
  void expect_read(const std::string& model,
                   std::int64_t tensor,
                   std::int64_t pipeline,
                   std::int64_t expert = 1,
                   Experts layout = Experts::Numbered) {
    SCOPED_TRACE(fmt::format("{} on {} x {} x {} ranks", model, tensor, pipeline, expert));
    const Cut cut(model, tensor, pipeline, expert, layout);
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    cut.write(folder);

    const Foreign read = open_foreign(folder).value();

    EXPECT_EQ(read.weights.size(), cut.file().entries().size());
    for (const checkpoint::StreamedTensor& held : read.weights) {
      ASSERT_TRUE(cut.has(held.name)) << held.name;
      const Tensor expected = cut.at(held.name);
      EXPECT_EQ(held.shape, expected.shape) << held.name;
      EXPECT_EQ(test::values_of(held), expected.values) << held.name;
    }
    for (const char* key : {"model_type", "num_key_value_heads", "intermediate_size", "vocab_size"})
      EXPECT_EQ(golden::at(read.model_config, key).dump(), golden::at(cut.config(), key).dump())
          << key;
    EXPECT_EQ(golden::at(read.model_config, "rope_theta").as_double(), 500.0);
    EXPECT_EQ(golden::at(read.model_config, "rms_norm_eps").as_double(), 0.25);
    expect_fits(read);
  }
  void refuses(const Members& more, const std::string& reason) {
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    Cut("llama", 1, 1).write(folder, more);
    refused(folder, reason);
  }

 private:
  /// Checks that the family accepts the weights with the config.json that the reader made for them.
  static void expect_fits(const Foreign& read) {
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
    EXPECT_NO_THROW((void)weights_of(read.weights, family, resolved, "the checkpoint"));
  }

  int folders_ = 0;
};

TEST_F(MegatronRotary, LlamaIsJoinedWhateverTheGridWas) {
  expect_read("llama", 1, 1);
  expect_read("llama", 2, 1);
  expect_read("llama", 1, 2);
  expect_read("llama", 2, 2);
}

TEST_F(MegatronRotary, BiasesOfQueriesKeysAndValuesMakeAQwen2) {
  expect_read("qwen2", 2, 1);
}

TEST_F(MegatronRotary, NormsOfQueryAndKeyHeadsMakeAQwen3) {
  expect_read("qwen3", 2, 1);
}

TEST_F(MegatronRotary, ExpertsMakeAMixtralAndWithNormsOfHeadsAQwen3) {
  for (const Experts layout : {Experts::Sequential, Experts::Numbered, Experts::Grouped}) {
    expect_read("mixtral", 1, 1, 1, layout);
    expect_read("mixtral", 2, 1, 2, layout);
    expect_read("qwen3_moe", 1, 3, 2, layout);  // its second layer has an MLP
    expect_read("qwen3_moe", 2, 1, 3, layout);
  }
}

TEST_F(MegatronRotary, ExpertsWithoutARanksFileAreRefused) {
  const fs::path folder = path("short");
  Cut("mixtral", 1, 1, 2).write(folder);
  fs::remove_all(folder / "iter_0000012/mp_rank_00_001");
  refused(folder, "expert-parallel rank 1 is missing");
}

TEST_F(MegatronRotary, WhatNoFamilyComputesIsRefusedByName) {
  const std::string yes = "\x88";
  const std::pair<std::string, std::string> experts = {"num_experts", op::integer(8)};
  refuses({experts, {"moe_shared_expert_intermediate_size", op::integer(8)}}, "shared experts");
  refuses({experts, {"moe_router_score_function", op::text("sigmoid")}}, "not use the softmax");
  refuses({experts, {"moe_router_load_balancing_type", op::text("sinkhorn")}}, "sinkhorn");
  refuses({experts, {"moe_router_pre_softmax", yes}}, "do not add up to 1");
  refuses({experts, {"moe_layer_freq", op::integer(2)}}, "a part of its layers");
  refuses({{"multi_latent_attention", yes}}, "its attention is latent");
  refuses({{"apply_layernorm_1p", yes}}, "its norms keep their weight less one");
  refuses({{"rotary_percent", gpt::number(0.5)}}, "turn a part of each head");
  refuses({{"rotary_interleaved", yes}}, "turn neighbouring channels");
  refuses({{"use_rope_scaling", yes}}, "are scaled");
  refuses({{"window_size", op::tuple({op::integer(127), op::integer(0)})}}, "has a window");
  refuses({{"add_bias_linear", yes}}, "its layers have biases");
  refuses({{"add_qkv_bias", yes}, {"qk_layernorm", yes}}, "no family of such models is built");
  refuses({{"num_query_groups", op::integer(3)}}, "do not divide its heads");
  refuses({{"kv_channels", op::integer(7)}}, "fits the rest");
}

}  // namespace
}  // namespace tessera::interop
