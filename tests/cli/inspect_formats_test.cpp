// SPDX-License-Identifier: Apache-2.0
// tessera inspect opens every supported format and shows which one it is, its size and its dtypes.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cli/program.h"
#include "interop/bmtrain/modelcenter_files.h"
#include "interop/gpt_files.h"
#include "interop/llmc/llmc_files.h"
#include "interop/megatron/megatron_files.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/data/token_writer.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
namespace gpt = interop::test::gpt;
namespace llmc = interop::test::llmc;
namespace meg = interop::test::megatron;
namespace mc = interop::test::modelcenter;
using ::testing::HasSubstr;

/// Number of parameters of a GPT-2 with an MLP of `inner` channels and a tied head.
constexpr std::int64_t gpt2_parameters(std::int64_t vocab,
                                       std::int64_t positions,
                                       std::int64_t width,
                                       std::int64_t layers,
                                       std::int64_t inner) {
  const std::int64_t norms = 4 * width, attention = 4 * width * width + 4 * width;
  const std::int64_t mlp = 2 * width * inner + inner + width;
  return (vocab + positions) * width + layers * (norms + attention + mlp) + 2 * width;
}
constexpr std::int64_t gpt2_tensors(std::int64_t layers) {
  return 2 + 12 * layers + 2;
}
constexpr std::int64_t small_parameters(std::int64_t vocab, std::int64_t inner) {
  return gpt2_parameters(vocab, gpt::kPositions, gpt::kWidth, gpt::kLayers, inner);
}

struct Opened {
  std::string name;
  std::function<fs::path(const fs::path& folder)> make;
  std::string format;
  std::int64_t tensors = 0, parameters = 0;  ///< moments are tensors, no parameters
  std::string types;
  std::optional<std::int64_t> tokens = {};  ///< of token files, which have no tensors
};
void PrintTo(const Opened& opened, std::ostream* out) {
  *out << opened.name;
}

std::function<fs::path(const fs::path&)> recorded(const std::string& path) {
  return [path](const fs::path&) {
    return tessera::test::source_dir() / "tests/golden/reference" / path;
  };
}
/// Converts a recorded checkpoint with `tessera convert`.
std::function<fs::path(const fs::path&)> converted(const std::string& path, const std::string& to) {
  return [path, to](const fs::path& folder) {
    const Outcome o =
        run_program({"convert", recorded(path)(folder), (folder / "made").string(), "--to", to});
    EXPECT_EQ(o.code, 0) << o.err;
    return folder / "made";
  };
}
std::function<fs::path(const fs::path&)> file(const std::string& name, const std::string& content) {
  return [name, content](const fs::path& folder) {
    files::write_atomic(folder / name, content);
    return folder / name;
  };
}
std::function<fs::path(const fs::path&)> megatron(meg::Optimizer optimizer) {
  return [optimizer](const fs::path& folder) {
    meg::Layout layout;
    layout.tensor = 2;
    layout.pipeline = 2;
    layout.optimizer = optimizer;
    meg::write(folder / "m", layout);
    return folder / "m";
  };
}
fs::path model_center(const fs::path& folder) {
  mc::Options options;
  options.dtype = DType::F16;
  mc::write(folder / "mc", gpt::model_of(0), options);
  return folder / "mc";
}
fs::path token_pair(const fs::path& folder) {
  data::TokenWriter writer(folder / "text", data::TokenWidth::U16);
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5};
  std::vector<std::byte> bytes;
  data::append_tokens(ids, data::TokenWidth::U16, bytes);
  writer.begin_document();
  writer.write(bytes);
  writer.add_to_document(static_cast<std::int64_t>(ids.size()));
  writer.finish();
  return folder / "text.idx";
}

class Inspect : public ::testing::TestWithParam<Opened> {};

TEST_P(Inspect, NamesTheFormatAndCountsWhatItHolds) {
  const files::TempDir dir;
  const Opened& wanted = GetParam();
  const std::string path = wanted.make(dir.path()).string();

  const Outcome table = run_program({"inspect", path});
  const Outcome digest = run_program({"inspect", path, "--digest"});
  const Outcome said = run_program({"inspect", path, "--json"});

  ASSERT_EQ(table.code, 0) << table.err;
  ASSERT_EQ(digest.code, 0) << digest.err;
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(table.out, HasSubstr(wanted.format));
  const json::Value facts = json::parse_strict(said.out, "inspect");
  EXPECT_THAT(facts.find("format")->as_string(), HasSubstr(wanted.format));
  if (wanted.tokens) {
    EXPECT_EQ(facts.find("tokens")->as_integer(), *wanted.tokens);
    EXPECT_EQ(facts.find("tensors"), nullptr);
    return;
  }
  EXPECT_EQ(facts.find("tensors")->as_integer(), wanted.tensors);
  EXPECT_EQ(facts.find("parameters")->as_integer(), wanted.parameters);
  EXPECT_EQ(facts.find("types")->as_string(), wanted.types);
  const json::Value& list = *facts.find("tensor_list");
  ASSERT_EQ(list.items().size(), static_cast<std::size_t>(wanted.tensors));
  for (const json::Value& tensor : list.items()) {
    EXPECT_EQ(tensor.find("dtype")->as_string(), wanted.types);
    EXPECT_THAT(digest.out, HasSubstr(tensor.find("name")->as_string() + " " + wanted.types));
  }
}

// The recorded models: vocabulary 211, positions 64, width 48, 2 layers; and 96, 32, 32, 3.
constexpr std::int64_t kModel = gpt2_parameters(211, 64, 48, 2, 4 * 48);
constexpr std::int64_t kTraining = gpt2_parameters(96, 32, 32, 3, 4 * 32);
/// torch files store the tied head under both names.
constexpr std::int64_t kWithHead = kTraining + std::int64_t{96} * 32;

const std::vector<Opened>& formats() {
  static const std::vector<Opened> all = {
      {"HuggingFaceSafetensors",
       recorded("models/gpt2"),
       "a Hugging Face folder of safetensors",
       gpt2_tensors(2),
       kModel,
       "F32"},
      // 21 tensors and 180096 bytes, according to its index.
      {"HuggingFaceShards",
       recorded("models/llama_bf16_sharded"),
       "a Hugging Face folder of safetensors",
       21,
       180096 / 2,
       "BF16"},
      {"HuggingFaceBinZip",
       recorded("interop/bin_zip"),
       "a Hugging Face folder of torch.save (zip)",
       gpt2_tensors(3) + 1,
       kWithHead,
       "F32"},
      {"HuggingFaceBinBf16",
       recorded("interop/bin_zip_bf16"),
       "a Hugging Face folder of torch.save (zip)",
       gpt2_tensors(3) + 1,
       kWithHead,
       "BF16"},
      {"HuggingFaceBinLegacy",
       recorded("interop/bin_legacy"),
       "a Hugging Face folder of torch.save (before torch 1.6)",
       gpt2_tensors(3) + 1,
       kWithHead,
       "F32"},
      {"LoneSafetensors",
       recorded("models/gpt2/model.safetensors"),
       "safetensors",
       gpt2_tensors(2),
       kModel,
       "F32"},
      {"LoneTorchFile",
       recorded("interop/bin_legacy/pytorch_model.bin"),
       "torch.save (before torch 1.6)",
       gpt2_tensors(3) + 1,
       kWithHead,
       "F32"},
      {"DeepSpeedStage1",
       recorded("interop/deepspeed_z1_fp32"),
       "a DeepSpeed checkpoint (ZeRO stage 1, 2 ranks)",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"DeepSpeedStage2",
       recorded("interop/deepspeed_z2_bf16"),
       "a DeepSpeed checkpoint (ZeRO stage 2, 2 ranks)",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"DeepSpeedStage3",
       recorded("interop/deepspeed_z3_bf16"),
       "a DeepSpeed checkpoint (ZeRO stage 3, 2 ranks)",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"DeepSpeedUniversal",
       converted("interop/deepspeed_z3_bf16", "deepspeed-universal"),
       "universal checkpoint",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"TorchLoop",
       recorded("interop/torch_tutorial"),
       "a torch training loop's model and optimizer",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"TorchLoopsFile",
       recorded("interop/torch_tutorial/model_000005.pth"),
       "a torch training loop's model and optimizer",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"MegatronTraining",
       megatron(meg::Optimizer::Mixed),
       "a Megatron-LM checkpoint (tensor parallel 2, pipeline parallel 2",
       3 * gpt2_tensors(gpt::kLayers),
       small_parameters(meg::kPadded, gpt::kInner),
       "F32"},
      {"MegatronWeights",
       megatron(meg::Optimizer::Distributed),
       "its weights alone: of its optimizer's state a distributed optimizer keeps it elsewhere",
       gpt2_tensors(gpt::kLayers),
       small_parameters(meg::kPadded, gpt::kInner),
       "F32"},
      {"ModelCenter",
       model_center,
       "a GPT2 of ModelCenter",
       gpt2_tensors(gpt::kLayers),
       small_parameters(gpt::kVocab, gpt::kInner),
       "F16"},
      {"LlmcFp32",
       file("gpt2.bin", llmc::file(gpt::model_of(0, 4 * gpt::kWidth), 3)),
       "llm.c's weights of a GPT-2 (F32)",
       gpt2_tensors(gpt::kLayers),
       small_parameters(gpt::kVocab, 4 * gpt::kWidth),
       "F32"},
      {"LlmcBf16",
       file("gpt2.bin", llmc::file(gpt::model_of(0, 4 * gpt::kWidth), 5)),
       "llm.c's weights of a GPT-2 (BF16)",
       gpt2_tensors(gpt::kLayers),
       small_parameters(gpt::kVocab, 4 * gpt::kWidth),
       "BF16"},
      {"Tessera",
       converted("models/gpt2", "tessera"),
       "a checkpoint of tessera",
       gpt2_tensors(2),
       kModel,
       "F32"},
      {"TesseraTraining",
       converted("interop/deepspeed_z2_bf16", "tessera"),
       "a checkpoint of tessera",
       3 * gpt2_tensors(3),
       kTraining,
       "F32"},
      {"MegatronTokens", token_pair, "Megatron's .bin/.idx", 0, 0, "", 5},
      {"LlmcTokens",
       file("gpt2.bin", llmc::tokens({50256, 1, 65535}, false)),
       "llm.c's tokens",
       0,
       0,
       "",
       3},
      {"LlmcTokensOfLlama",
       file("llama.bin", llmc::tokens({128000, 70000}, true)),
       "llm.c's tokens",
       0,
       0,
       "",
       2}};
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everything, Inspect, ::testing::ValuesIn(formats()), [](const auto& info) {
  return info.param.name;
});

}  // namespace
}  // namespace tessera::cli
