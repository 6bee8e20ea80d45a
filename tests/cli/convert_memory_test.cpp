// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// A conversion needs at most twice the memory of the largest tensor, regardless of the model's
// size.
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"
#include "support/peak_memory.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/interop/torch/value.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using tessera::test::peak_growth;

constexpr std::int64_t kVocab = 32768, kWidth = 512, kLayers = 10, kPositions = 64;
/// The token table.
constexpr std::int64_t kLargestBytes = kVocab * kWidth * 4;

/// Writes a file of llm.c: 256 int32, then wte, wpe, twelve kinds of tensors for all layers, ln_f.
void write_llmc(const fs::path& path) {
  std::array<std::int32_t, 256> header{20240326, 3, kPositions, kVocab, kLayers, 8, kWidth, kVocab};
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(header.data()), sizeof(header));
  const std::int64_t layer = 12 * kWidth * kWidth + 13 * kWidth;
  std::vector<float> row(kWidth);
  const std::int64_t floats = (kVocab + kPositions + 2) * kWidth + kLayers * layer;
  for (std::int64_t at = 0; at < floats; at += kWidth) {
    for (std::int64_t i = 0; i < kWidth; ++i)
      row[static_cast<std::size_t>(i)] = static_cast<float>((at + i) % 8191);
    out.write(reinterpret_cast<const char*>(row.data()), kWidth * 4);
  }
}

using checkpoint::StreamedTensor;
using interop::TorchValue;
using Shape = std::vector<std::int64_t>;

/// A tensor of small whole numbers.
StreamedTensor counted(const std::string& name, Shape shape) {
  const auto read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto value = static_cast<float>(i % 8191);
      std::memcpy(out + (i - begin) * 4, &value, 4);
    }
  };
  return {name, DType::F32, std::move(shape), read, {}};
}

/// A model's tensors under the names of other programs; for Megatron, those of one of `cut` ranks.
using Names = std::vector<std::pair<std::string, Shape>>;

Names of_megatron(std::int64_t cut) {
  constexpr std::int64_t w = kWidth;
  Names out = {{"embedding.word_embeddings.weight", {kVocab / cut, w}},
               {"embedding.position_embeddings.weight", {kPositions, w}},
               {"decoder.final_layernorm.weight", {w}},
               {"decoder.final_layernorm.bias", {w}}};
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    const Names tensors = {{"input_layernorm.weight", {w}},
                           {"input_layernorm.bias", {w}},
                           {"self_attention.linear_qkv.weight", {3 * w / cut, w}},
                           {"self_attention.linear_qkv.bias", {3 * w / cut}},
                           {"self_attention.linear_proj.weight", {w, w / cut}},
                           {"self_attention.linear_proj.bias", {w}},
                           {"pre_mlp_layernorm.weight", {w}},
                           {"pre_mlp_layernorm.bias", {w}},
                           {"mlp.linear_fc1.weight", {4 * w / cut, w}},
                           {"mlp.linear_fc1.bias", {4 * w / cut}},
                           {"mlp.linear_fc2.weight", {w, 4 * w / cut}},
                           {"mlp.linear_fc2.bias", {w}}};
    for (const auto& [name, shape] : tensors)
      out.emplace_back(layer + name, shape);
  }
  return out;
}

Names of_modelcenter() {
  constexpr std::int64_t w = kWidth;
  Names out = {{"input_embedding.weight", {kVocab, w}},
               {"position_embedding.weight", {kPositions, w}},
               {"encoder.output_layernorm.weight", {w}},
               {"encoder.output_layernorm.bias", {w}}};
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "encoder.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_att.self_attention.";
    const Names matrices = {{attention + "project_q", {w, w}},
                            {attention + "project_k", {w, w}},
                            {attention + "project_v", {w, w}},
                            {attention + "attention_out", {w, w}},
                            {layer + "ffn.ffn.w_in.w", {4 * w, w}},
                            {layer + "ffn.ffn.w_out", {w, 4 * w}}};
    for (const auto& [name, shape] : matrices) {
      out.emplace_back(name + ".weight", shape);
      out.emplace_back(name + ".bias", Shape{shape[0]});
    }
    for (const char* norm : {"self_att.layernorm_before_attention.", "ffn.layernorm_before_ffn."}) {
      for (const char* part : {"weight", "bias"})
        out.emplace_back(layer + norm + part, Shape{w});
    }
  }
  return out;
}

TorchValue whole(std::int64_t value) {
  return TorchValue::integer(value);
}

class MemoryOfAConversion : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const {
    return (dir_.path() / name).string();
  }
  /// Converts, and checks that the process grows by at most twice the size of the token table.
  void expect_small(const std::string& from,
                    const std::string& to,
                    const std::vector<std::string>& more = {}) {
    const std::int64_t grown = peak_growth([&] {
      std::vector<std::string> words = {"convert", path(from), path(to)};
      words.insert(words.end(), more.begin(), more.end());
      return run_program(words).code == 0;
    });
    EXPECT_GE(grown, 0) << from << " to " << to;
    EXPECT_LE(grown, 2 * kLargestBytes) << from << " to " << to;
  }
  [[nodiscard]] std::string digest(const std::string& name) const {
    return run_program({"inspect", path(name), "--digest"}).out;
  }
  /// Copies the weights of checkpoint `from` as moments.
  void add_moments(const std::string& from, const std::string& to) {
    const auto opened = std::make_shared<const checkpoint::Checkpoint>(path(from));
    std::vector<StreamedTensor> tensors = checkpoint::tensors_of(opened);
    const std::size_t count = tensors.size();
    for (const char* state : {"optimizer.exp_avg.", "optimizer.exp_avg_sq."}) {
      for (std::size_t i = 0; i < count; ++i) {
        StreamedTensor moment = tensors[i];
        moment.name = state + moment.name;
        tensors.push_back(std::move(moment));
      }
    }
    checkpoint::Meta meta = opened->meta();
    meta.step = 5;
    fs::create_directory(path(to));
    checkpoint::write_checkpoint(path(to), meta, tensors);
  }

 private:
  files::TempDir dir_;
};

TEST_F(MemoryOfAConversion, OfWeightsIsAtMostTwiceTheLargestTensor) {
  write_llmc(path("gpt2.bin"));
  ASSERT_GT(static_cast<std::int64_t>(fs::file_size(path("gpt2.bin"))), 2 * kLargestBytes);

  expect_small("gpt2.bin", "hf");
  expect_small("hf", "half", {"--dtype", "bf16"});
  expect_small("hf", "bin", {"--to", "torch"});
  expect_small("bin", "shards", {"--shard-size", "50MB"});
  expect_small("shards", "ours", {"--to", "tessera"});
  expect_small("ours", "back");

  EXPECT_FALSE(digest("hf").empty());
  EXPECT_EQ(digest("back"), digest("hf"));
}

TEST_F(MemoryOfAConversion, OfATrainingIsAtMostTwiceTheLargestTensor) {
  write_llmc(path("gpt2.bin"));
  ASSERT_EQ(run_program({"convert", path("gpt2.bin"), path("hf")}).code, 0);
  ASSERT_EQ(run_program({"convert", path("hf"), path("weights"), "--to", "tessera"}).code, 0);
  add_moments("weights", "ours");
  fs::copy_file(path("hf") + "/config.json", path("config.json"));

  expect_small("ours", "ds", {"--to", "deepspeed-universal"});
  fs::copy_file(path("hf") + "/config.json", path("ds") + "/config.json");
  expect_small("ds", "model_000005.pth");
  expect_small("model_000005.pth", "ds-again", {"--to", "deepspeed-universal"});
  fs::remove_all(path("ds-again"));
  expect_small("model_000005.pth", "alone");
  expect_small("ds", "start", {"--to", "tessera"});

  EXPECT_FALSE(digest("ours").empty());
  EXPECT_EQ(digest("start"), digest("ours"));
  EXPECT_EQ(digest("alone"), digest("hf"));
}

TEST_F(MemoryOfAConversion, OfDeepSpeedsRanksIsAtMostTwiceTheLargestTensor) {
  constexpr std::int64_t kRanks = 2;
  std::vector<TorchValue::Item> shapes, module;
  std::int64_t numel = 0;
  for (const auto& [name, shape] : of_modelcenter()) {
    shapes.emplace_back(name, TorchValue::size(shape));
    module.emplace_back(name, TorchValue::tensor(counted(name, shape)));
    std::int64_t count = 1;
    for (const std::int64_t size : shape)
      count *= size;
    numel += count;
  }
  ASSERT_EQ(numel % kRanks, 0);
  const fs::path folder = path("zero");
  fs::create_directories(folder / "global_step5");
  files::write_atomic(folder / "latest", "global_step5");
  files::write_atomic(folder / "config.json", "{}");
  std::vector<TorchValue> groups;
  groups.push_back(TorchValue::ordered(std::move(shapes)));
  interop::write_torch_file(folder / "global_step5/mp_rank_00_model_states.pt",
                            TorchValue::dict({{"module", TorchValue::dict(std::move(module))},
                                              {"param_shapes", TorchValue::list(std::move(groups))},
                                              {"global_steps", whole(5)},
                                              {"global_samples", whole(20)}}));
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const auto flat = [&] { return TorchValue::tensor(counted("", {numel / kRanks})); };
    const TorchValue state = TorchValue::dict(
        {{"0",
          TorchValue::dict({{"exp_avg", flat()}, {"exp_avg_sq", flat()}, {"step", whole(5)}})}},
        /*numbered=*/true);
    interop::write_torch_file(
        folder / "global_step5" /
            ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"),
        TorchValue::dict(
            {{"optimizer_state_dict",
              TorchValue::dict({{"single_partition_of_fp32_groups", TorchValue::list({flat()})},
                                {"base_optimizer_state", TorchValue::dict({{"state", state}})},
                                {"loss_scaler", TorchValue()},
                                {"partition_count", TorchValue::list({whole(kRanks)})}})}}));
  }

  expect_small("zero", "universal", {"--to", "deepspeed-universal"});
  expect_small("zero", "model_000005.pth");
  expect_small("zero", "alone");
}

TEST_F(MemoryOfAConversion, OfMegatronsRanksIsAtMostTwiceTheLargestTensor) {
  constexpr std::int64_t kRanks = 2;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const fs::path folder = path("megatron") + "/mp_rank_0" + std::to_string(rank);
    fs::create_directories(folder);
    std::vector<TorchValue::Item> model;
    for (const auto& [name, shape] : of_megatron(kRanks))
      model.emplace_back(name, TorchValue::tensor(counted(name, shape)));
    const TorchValue args = TorchValue::dict({{"num_layers", whole(kLayers)},
                                              {"hidden_size", whole(kWidth)},
                                              {"num_attention_heads", whole(8)},
                                              {"max_position_embeddings", whole(kPositions)}});
    interop::write_torch_file(folder / "model_optim_rng.pt",
                              TorchValue::dict({{"args", TorchValue::dict({{"state", args}})},
                                                {"checkpoint_version", whole(3)},
                                                {"iteration", whole(5)},
                                                {"model", TorchValue::dict(std::move(model))}}));
  }

  expect_small("megatron", "hf");
  expect_small("megatron", "ours", {"--to", "tessera"});
}

TEST_F(MemoryOfAConversion, OfModelCentersFileIsAtMostTwiceTheLargestTensor) {
  std::vector<StreamedTensor> tensors;
  for (const auto& [name, shape] : of_modelcenter())
    tensors.push_back(counted(name, shape));
  fs::create_directory(path("center"));
  interop::write_torch_weights(path("center") + "/pytorch_model.pt", tensors);
  files::write_atomic(path("center") + "/config.json", R"({"num_heads": 8})");

  expect_small("center", "hf");
  expect_small("center", "ours", {"--to", "tessera"});
}

}  // namespace
}  // namespace tessera::cli
