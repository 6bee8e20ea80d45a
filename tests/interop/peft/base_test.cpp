// SPDX-License-Identifier: Apache-2.0
// Adapters of the token table or the head, low-rank or trained as a whole, on a base whose head is
// its table, and with more tokens than the base: the model is the one that PEFT has after it read
// both.
#include "tessera/interop/peft/base.h"

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/peft/export.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 3;
constexpr const char *kTable = "model.embed_tokens.weight", *kHead = "lm_head.weight";

/// A tensor whose elements all are this number.
struct Filled {
  std::string name;
  std::vector<std::int64_t> shape;
  float value;
};

void write(const fs::path& path, const std::vector<Filled>& tensors) {
  std::vector<std::vector<float>> held;
  std::vector<checkpoint::TensorBytes> out;
  for (const Filled& one : tensors) {
    std::int64_t count = 1;
    for (const std::int64_t size : one.shape)
      count *= size;
    held.emplace_back(static_cast<std::size_t>(count), one.value);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    out.push_back(
        {tensors[i].name, DType::F32, tensors[i].shape, std::as_bytes(std::span(held[i]))});
  checkpoint::write_safetensors(path, out, {});
}

/// A Llama of one layer, 4 channels and 3 tokens, whose head is its table of ones.
void write_base(const fs::path& folder) {
  fs::create_directories(folder);
  files::write_atomic(folder / "config.json", R"({"model_type": "llama", "vocab_size": 3,
      "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "num_hidden_layers": 1,
      "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 4,
      "max_position_embeddings": 8, "tie_word_embeddings": true})");
  std::vector<Filled> tensors = {{kTable, {kRows, 4}, 1}, {"model.norm.weight", {4}, 1}};
  const std::string layer = "model.layers.0.";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    tensors.push_back({layer + norm + ".weight", {4}, 1});
  for (const char* matrix : {"self_attn.q_proj",
                             "self_attn.k_proj",
                             "self_attn.v_proj",
                             "self_attn.o_proj",
                             "mlp.gate_proj",
                             "mlp.up_proj",
                             "mlp.down_proj"})
    tensors.push_back({layer + matrix + ".weight", {4, 4}, 0.5F});
  write(folder / "model.safetensors", tensors);
}

struct Case {
  const char* modules;  ///< modules_to_save
  std::int64_t rows;
  float table, head;  ///< saved values; 0: not saved
  float expected_table, expected_head;
  const char* targets = R"(["q_proj"])";
};

/// Low-rank matrices of ones and of 2: their product adds 4 to each element.
void add_low_rank(const std::string& target, std::vector<Filled>& out) {
  const std::string module = "base_model.model." + target.substr(0, target.rfind('.'));
  const bool table = target == kTable;
  out.push_back(
      {module + (table ? ".lora_embedding_A" : ".lora_A.weight"), {2, table ? kRows : 4}, 1});
  out.push_back(
      {module + (table ? ".lora_embedding_B" : ".lora_B.weight"), {table ? 4 : kRows, 2}, 2});
}

void write_adapter(const fs::path& folder, const fs::path& base, const Case& one) {
  fs::create_directories(folder);
  files::write_atomic(
      folder / "adapter_config.json",
      fmt::format(R"({{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": {},
          "modules_to_save": {}, "ensure_weight_tying": true, "base_model_name_or_path": "{}"}})",
                  one.targets,
                  one.modules,
                  base.string()));
  const std::string begin = "base_model.model.", q = begin + "model.layers.0.self_attn.q_proj.";
  std::vector<Filled> tensors = {{q + "lora_A.weight", {2, 4}, 1},
                                 {q + "lora_B.weight", {4, 2}, 0}};
  if (one.table != 0) tensors.push_back({begin + kTable, {one.rows, 4}, one.table});
  if (one.head != 0) tensors.push_back({begin + kHead, {one.rows, 4}, one.head});
  const std::string targets = one.targets;
  if (targets.find("embed_tokens") != std::string::npos) add_low_rank(kTable, tensors);
  if (targets.find("lm_head") != std::string::npos) add_low_rank(kHead, tensors);
  write(folder / "adapter_model.safetensors", tensors);
}

std::size_t read_tensors(const fs::path& adapter) {
  return open_peft(adapter).tensors.size();
}

TEST(PeftBase, IsTheModelThatTheAdaptersTensorsBelongTo) {
  const char* const both = R"(["embed_tokens", "lm_head"])";
  for (const Case& one :
       {Case{both, kRows, 5, 7, 5, 7},
        Case{both, kRows, 5, 5, 5, 5},
        Case{R"(["lm_head"])", kRows, 0, 7, 1, 7},
        Case{R"(["embed_tokens"])", kRows, 5, 0, 5, 1},
        Case{both, kRows + 2, 5, 7, 5, 7},
        Case{"null", kRows + 2, 5, 7, 5, 7},
        Case{"null", kRows, 0, 0, 1, 5, R"(["q_proj", "lm_head"])"},
        Case{"null", kRows, 0, 0, 5, 1, R"(["q_proj", "embed_tokens"])"},
        Case{"null", kRows, 0, 0, 5, 5, R"(["q_proj", "embed_tokens", "lm_head"])"},
        Case{R"(["embed_tokens"])", kRows, 7, 0, 7, 5, R"(["q_proj", "lm_head"])"}}) {
    SCOPED_TRACE(fmt::format(
        "{} {} rows {} {} {}", one.modules, one.rows, one.table, one.head, one.targets));
    const files::TempDir dir;
    write_base(dir.path() / "base");
    write_adapter(dir.path() / "adapter", dir.path() / "base", one);

    const models::ModelSource source = models::open_model_source(dir.path() / "adapter");
    config::Problems problems;
    const models::Resolved model =
        models::resolve(source.model, one.rows, std::nullopt, problems, {}, source.objective);
    problems.raise();
    const models::WeightSource weights = models::source_weights(source, model);

    EXPECT_FALSE(model.tied_head);
    EXPECT_EQ(model.vocab_size, one.rows);
    std::map<std::string, std::vector<float>> read;
    for (const auto& info : nn::parameters_of(model.model)) {
      std::vector<float>& values = read[info->name];
      values.resize(static_cast<std::size_t>(info->numel()));
      weights(*info, 0, info->numel(), values.data());
    }
    const auto count = static_cast<std::size_t>(one.rows * 4);
    EXPECT_EQ(read.at("embed_tokens.weight"), std::vector<float>(count, one.expected_table));
    EXPECT_EQ(read.at(kHead), std::vector<float>(count, one.expected_head));
    std::vector<std::pair<std::string, std::string>> files = {
        {"config.json", files::read(dir.path() / "base/config.json")}};
    fit_files(source, files);
    const json::Value merged = json::parse_strict(files.front().second, "config.json");
    EXPECT_FALSE(merged.find("tie_word_embeddings")->as_bool());
    EXPECT_EQ(merged.find("vocab_size")->as_integer(), one.rows);
    // All tensors of the folder are read when it is listed, extracted or merged.
    EXPECT_EQ(open_adapter_export(dir.path() / "adapter").tensors.size(),
              read_tensors(dir.path() / "adapter"));
  }
}

TEST(PeftBase, IsUnchangedByAnAdapterOfLayersAlone) {
  const files::TempDir dir;
  write_base(dir.path() / "base");
  write_adapter(dir.path() / "adapter", dir.path() / "base", {"null", kRows, 0, 0, 1, 1});

  const models::ModelSource source = models::open_model_source(dir.path() / "adapter");

  EXPECT_TRUE(source.model->tie_embeddings);
  EXPECT_EQ(source.folder, dir.path() / "base");
  files::write_atomic(dir.path() / "adapter/tokenizer.json", "{}");
  EXPECT_EQ(models::open_model_source(dir.path() / "adapter").folder, dir.path() / "adapter");
}

}  // namespace
}  // namespace tessera::interop
