// SPDX-License-Identifier: Apache-2.0
// Families with experts as GGUF files: what is written is read again bit by bit, and files that
// hold experts in several ways are refused.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/interop/gguf/writer.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using test::values_of;
using testing::HasSubstr;

fs::path data() {
  return tessera::test::source_dir() / "tests/interop/data";
}

/// A folder of Hugging Face with the settings that every architecture of GGUF implies.
struct Folder {
  json::Value config;
  std::vector<checkpoint::StreamedTensor> weights;
};
/// Gives a Llama 4 the numbers that the architecture fixes, and experts in every second layer:
/// layer 1 of three, which has none, then layer 0.
void as_published(Folder& folder) {
  const json::Value fixed = json::parse_strict(R"({"attention_chunk_size": 8192,
           "attn_scale": 0.1, "floor_scale": 8192, "num_hidden_layers": 2, "moe_layers": [1],
           "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1],
           "layer_types": ["chunked_attention", "chunked_attention"]})",
                                               "");
  for (const auto& [key, value] : fixed.members())
    folder.config[key] = value;
  constexpr std::string_view kLayers = "model.layers.";
  std::erase_if(folder.weights,
                [&](const auto& one) { return one.name.starts_with("model.layers.2."); });
  for (checkpoint::StreamedTensor& one : folder.weights) {
    if (one.name.starts_with(kLayers))
      one.name[kLayers.size()] = one.name[kLayers.size()] == '0' ? '1' : '0';
  }
}

Folder folder_of(const std::string& name) {
  const fs::path path = tessera::test::source_dir() / "tests/golden/reference/models" / name;
  Folder out;
  out.config = json::parse_strict(files::read(path / "config.json"), "config.json");
  out.config["output_router_logits"] = json::Value::boolean(false);  // of training alone
  const json::Value *width = out.config.find("hidden_size"),
                    *heads = out.config.find("num_attention_heads");
  if (out.config.find("head_dim") == nullptr && width != nullptr && heads != nullptr)
    out.config["head_dim"] =  // which files say
        json::Value::integer(width->as_integer().value() / heads->as_integer().value());
  if (out.config.find("swiglu_limit") != nullptr)
    out.config["swiglu_limit"] = json::Value::number(7.0);
  for (const Weight& weight : open_weights(path))
    out.weights.push_back(stream(weight, weight.name));
  if (name == "llama4_text") as_published(out);
  return out;
}

/// The description of the model that a config.json asks for.
std::string described(const json::Value& config) {
  config::Problems problems;
  const models::ModelOptions options = models::options_from_hf(config);
  const models::Resolved out =
      models::resolve(options, *options->vocab_size, std::nullopt, problems, config::Origins());
  problems.raise();
  return out.description.dump();
}

std::map<std::string, std::vector<float>> values_by_name(
    const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::map<std::string, std::vector<float>> out;
  for (const checkpoint::StreamedTensor& tensor : tensors)
    EXPECT_TRUE(out.emplace(tensor.name, values_of(tensor)).second) << tensor.name;
  return out;
}

class GgufExperts : public test::ForeignCheckpoints {
 protected:
  static GgufPlan plan(const Folder& folder, std::optional<GgmlType> type = {}) {
    return plan_gguf(folder.weights, {{"config.json", folder.config.dump()}}, type);
  }
  fs::path written(const Folder& folder, std::optional<GgmlType> type = {}) {
    const fs::path file = path("experts.gguf");
    fs::remove(file);
    write_gguf(file, plan(folder, type));
    return file;
  }
  /// A copy of a file of the tests with other bytes of the same number for each of these.
  fs::path changed(const std::string& name, const std::string& from, const std::string& to) {
    std::string bytes = files::read(data() / "gguf_families" / name);
    EXPECT_EQ(from.size(), to.size());
    const std::size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    const fs::path file = path("changed.gguf");
    files::write_atomic(file, bytes);
    return file;
  }
  static std::string refusal_of(const fs::path& file) {
    return test::error_of([&] { (void)open_foreign(file); }).text();
  }
};

constexpr const char* kFolders[] = {"deepseek_v3",
                                    "deepseek_v2_group",
                                    "gpt_oss",
                                    "granitemoe",
                                    "phimoe",
                                    "dbrx",
                                    "llama4_text",
                                    "phi3_longrope"};

TEST_F(GgufExperts, AreReadAgainBitByBit) {
  for (const char* const name : kFolders) {
    SCOPED_TRACE(name);
    const Folder folder = folder_of(name);

    const Foreign again = open_foreign(written(folder)).value();

    EXPECT_EQ(described(again.model_config), described(folder.config));
    const auto before = values_by_name(folder.weights), after = values_by_name(again.weights);
    EXPECT_EQ(after.size(), before.size());
    for (const auto& [tensor, values] : before) {
      ASSERT_TRUE(after.contains(tensor)) << tensor;
      ASSERT_EQ(after.at(tensor).size(), values.size()) << tensor;
      EXPECT_EQ(std::memcmp(after.at(tensor).data(), values.data(), values.size() * sizeof(float)),
                0)
          << tensor;
    }
  }
}

// Tensors are read in pieces from anywhere, as ranks do.
TEST_F(GgufExperts, GiveTheSameInPieces) {
  for (const char* const name : kFolders) {
    SCOPED_TRACE(name);
    const Foreign again = open_foreign(written(folder_of(name))).value();
    for (const checkpoint::StreamedTensor& tensor : again.weights) {
      const std::vector<float> all = values_of(tensor);
      const auto count = static_cast<std::int64_t>(all.size());
      std::vector<float> pieces(all.size());
      for (std::int64_t end = count; end > 0; end -= 13) {
        const std::int64_t begin = std::max<std::int64_t>(end - 13, 0);
        tensor.read(begin, end, reinterpret_cast<std::byte*>(pieces.data() + begin));
      }
      EXPECT_EQ(pieces, all) << tensor.name;
    }
  }
}

// Routers, biases and vectors stay in fp32, as readers expect them.
TEST_F(GgufExperts, HaveRoutersAndBiasesInFp32) {
  const GgufFile file(written(folder_of("gpt_oss"), GgmlType::BF16));

  for (const char* const name :
       {"ffn_gate_inp.weight", "ffn_up_exps.bias", "ffn_down_exps.bias", "attn_sinks.weight"}) {
    const GgufTensor* const tensor = file.tensor(std::string("blk.1.") + name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->type, GgmlType::F32) << name;
  }
  EXPECT_EQ(file.tensor("blk.1.ffn_up_exps.weight")->type, GgmlType::BF16);
}

// Blocks of MXFP4 are decoded, and their numbers fit into bf16.
TEST_F(GgufExperts, OfGptOssAreReadFromMxfp4) {
  const fs::path mxfp4 = data() / "gguf_mxfp4.gguf";
  const Foreign model = open_foreign(mxfp4).value();
  const GgufFile file(mxfp4);
  ASSERT_EQ(file.tensor("blk.0.ffn_gate_exps.weight")->type, GgmlType::MXFP4);
  const auto tensors = values_by_name(model.weights);
  const auto part = [&](const char* name) {
    return values_of(stream_gguf(file, *file.tensor(std::string("blk.0.") + name + ".weight")));
  };
  const auto gate = part("ffn_gate_exps"), up = part("ffn_up_exps"), down = part("ffn_down_exps");

  const auto& both = tensors.at("model.layers.0.mlp.experts.gate_up_proj");
  const auto& out = tensors.at("model.layers.0.mlp.experts.down_proj");

  constexpr std::size_t kExperts = 2, kWidth = 32, kHidden = 64;
  ASSERT_EQ(both.size(), kExperts * kWidth * 2 * kHidden);
  ASSERT_EQ(out.size(), kExperts * kHidden * kWidth);
  for (std::size_t e = 0; e < kExperts; ++e) {
    for (std::size_t f = 0; f < kHidden; ++f) {
      for (std::size_t c = 0; c < kWidth; ++c) {
        const std::size_t row = (e * kWidth + c) * 2 * kHidden, at = (e * kHidden + f) * kWidth + c;
        ASSERT_EQ(both[row + 2 * f], gate[at]);
        ASSERT_EQ(both[row + 2 * f + 1], up[at]);
        ASSERT_EQ(out[at], down[(e * kWidth + c) * kHidden + f]);
      }
    }
  }
  Folder folder;
  folder.config = model.model_config;
  folder.weights = model.weights;
  const Foreign again = open_foreign(written(folder, GgmlType::BF16)).value();
  const auto found = std::ranges::find(again.weights,
                                       std::string("model.layers.0.mlp.experts.gate_up_proj"),
                                       &checkpoint::StreamedTensor::name);
  ASSERT_NE(found, again.weights.end());
  ASSERT_EQ(found->dtype, DType::BF16);
  std::vector<std::uint16_t> stored(both.size());
  found->read(
      0, static_cast<std::int64_t>(both.size()), reinterpret_cast<std::byte*>(stored.data()));
  std::vector<float> numbers(both.size());
  std::ranges::transform(stored, numbers.begin(), from_bf16);
  EXPECT_EQ(numbers, both);
}

TEST_F(GgufExperts, OfSeveralKindsInOneFileAreRefusedByName) {
  EXPECT_THAT(
      refusal_of(changed("deepseek2.gguf", "blk.1.ffn_up_exps.weight", "blk.1.ffn_up.0000.weight")),
      testing::AllOf(HasSubstr("blk.1.ffn_up.0000.weight"), HasSubstr("one expert")));
  EXPECT_THAT(
      refusal_of(changed("qwen3moe.gguf", "blk.1.ffn_up_exps.weight", "blk.7.ffn_up_exps.weight")),
      HasSubstr("blk.1.ffn_up_exps.weight"));
  EXPECT_THAT(refusal_of(changed(
                  "deepseek2.gguf", "blk.1.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight")),
              HasSubstr("blk.0.ffn_gate_exps.weight"));
  EXPECT_THAT(
      refusal_of(changed("deepseek2.gguf", "blk.0.attn_v_b.weight", "blk.7.attn_v_b.weight")),
      HasSubstr("model.layers.0.self_attn.kv_b_proj.weight"));
  EXPECT_THAT(
      refusal_of(changed("deepseek2_old.gguf", "blk.1.attn_kv_b.weight", "blk.0.attn_kv_b.weight")),
      HasSubstr("blk.0.attn_kv_b.weight"));
}

// What an architecture always computes must be what the model computes.
TEST_F(GgufExperts, OfOtherFunctionsThanTheArchitecturesAreRefusedByName) {
  const auto refusal = [&](const char* name, const char* key, json::Value value) {
    Folder folder = folder_of(name);
    folder.config[key] = std::move(value);
    return test::error_of([&] { (void)plan(folder); }).text();
  };
  const auto rope = [](const std::string& more) {
    return json::parse_strict(R"({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16, )" +
                                  more + "}",
                              "");
  };

  EXPECT_THAT(refusal("gpt_oss", "swiglu_limit", json::Value::number(1.5)),
              HasSubstr("swiglu_limit"));
  EXPECT_THAT(refusal("gpt_oss", "rope_parameters", rope(R"("truncate": true)")),
              HasSubstr("truncate"));
  EXPECT_THAT(refusal("deepseek_v3", "rope_interleave", json::Value::boolean(false)),
              HasSubstr("rope_interleave"));
  EXPECT_THAT(
      refusal("deepseek_v3", "rope_parameters", rope(R"("mscale": 1.0, "mscale_all_dim": 0.5)")),
      HasSubstr("mscale_all_dim"));
  EXPECT_THAT(refusal("phimoe", "router_jitter_noise", json::Value::number(0.1)),
              HasSubstr("router_jitter_noise"));
}

// Lists with an entry for each layer follow from the number.
TEST_F(GgufExperts, OfMoreLayersThanTensorsAreRefused) {
  for (const char* const architecture : {"llama4", "gpt-oss", "dbrx"}) {
    const std::string key = std::string(architecture) + ".block_count" + std::string("\4\0\0\0", 4);
    EXPECT_THAT(refusal_of(changed(std::string(architecture) + ".gguf",
                                   key + std::string("\2\0\0\0", 4),
                                   key + "\xFF\xFF\xFF\x7F")),
                HasSubstr("2147483647 layers"))
        << architecture;
  }
}

// These have no names in GGUF files here.
TEST_F(GgufExperts, OfOtherFamiliesAreRefusedByName) {
  const Folder folder = folder_of("jetmoe");
  EXPECT_THAT(test::error_of([&] { (void)plan(folder); }).text(), HasSubstr("jetmoe"));
}

// The published Phi 3.5 MoE has two lists of factors, and one factor of sines and cosines.
TEST_F(GgufExperts, OfPhimoeKeepTheirRotaryFactors) {
  Folder folder = folder_of("phimoe");
  const auto scaling = [](const char* long_mscale) {
    return json::parse_strict(
        fmt::format(R"({{"type": "longrope", "short_factor": [1.0, 1.02, 1.125, 2.5],
            "long_factor": [1.0, 3.5, 12.25, 64.125], "short_mscale": 1.2431631,
            "long_mscale": {}, "original_max_position_embeddings": 12}})",
                    long_mscale),
        "");
  };
  folder.config["rope_parameters"] = json::Value();
  folder.config["rope_theta"] = json::Value::number(10000.0);
  folder.config["rope_scaling"] = scaling("1.2431631");

  const fs::path file = written(folder);

  const GgufFile gguf(file);
  EXPECT_EQ(gguf.integer("phimoe.rope.scaling.original_context_length"), 12);
  EXPECT_FLOAT_EQ(static_cast<float>(gguf.number("phimoe.rope.scaling.attn_factor").value_or(0)),
                  1.2431631F);
  ASSERT_NE(gguf.tensor("rope_factors_long.weight"), nullptr);
  const auto factors = values_of(stream_gguf(gguf, *gguf.tensor("rope_factors_long.weight")));
  EXPECT_EQ(factors, (std::vector<float>{1.0F, 3.5F, 12.25F, 64.125F}));
  EXPECT_EQ(described(open_foreign(file).value().model_config), described(folder.config));
  // Without one of its lists, a file is not one without scaling.
  EXPECT_THAT(refusal_of(changed(
                  "phimoe_longrope.gguf", "rope_factors_long.weight", "rope_factors_none.weight")),
              HasSubstr("rope_factors_long.weight"));
  // A file has one factor for texts of any length.
  folder.config["rope_scaling"] = scaling("1.5");
  EXPECT_THAT(test::error_of([&] { (void)plan(folder); }).text(), HasSubstr("long_mscale"));
}

// llama.cpp fixes these numbers, so a file of another model would be read as a wrong one.
TEST_F(GgufExperts, OfLlama4HaveTheNumbersThatProgramsFix) {
  const auto refusal = [&](const char* key, json::Value value) {
    Folder folder = folder_of("llama4_text");
    folder.config[key] = std::move(value);
    return test::error_of([&] { (void)plan(folder); }).text();
  };
  for (const auto& [key, value] :
       {std::pair("attention_chunk_size", json::Value::integer(16)),
        std::pair("attn_scale", json::Value::number(0.2)),
        std::pair("floor_scale", json::Value::integer(16)),
        std::pair("attn_temperature_tuning", json::Value::boolean(false)),
        std::pair("use_qk_norm", json::Value::boolean(false)),
        std::pair("moe_layers", json::parse_strict("[0]", ""))})
    EXPECT_THAT(refusal(key, value), HasSubstr(key));

  // The rule of the published Scout leaves nothing between kept and stretched frequencies.
  Folder scout = folder_of("llama4_text");
  scout.config["rope_parameters"] = json::parse_strict(
      R"({"rope_type": "llama3", "rope_theta": 500000.0, "factor": 16.0, "low_freq_factor": 1.0,
          "high_freq_factor": 1.0, "original_max_position_embeddings": 8192})",
      "");
  const fs::path file = written(scout);
  const GgufFile gguf(file);
  const auto factors = values_of(stream_gguf(gguf, *gguf.tensor("rope_freqs.weight")));
  EXPECT_EQ(factors, (std::vector<float>{1.0F, 1.0F, 1.0F, 16.0F}));
  EXPECT_EQ(described(open_foreign(file).value().model_config), described(scout.config));
}

}  // namespace
}  // namespace tessera::interop
