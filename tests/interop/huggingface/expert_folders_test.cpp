// SPDX-License-Identifier: Apache-2.0
// Folders of models with experts that lack something: what is missing is named before anything
// starts.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "golden/hf_models.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kModels = tessera::test::source_dir() / "tests/golden/reference/models";

/// The error of opening a copy of a folder without one tensor.
std::string refusal_without(const std::string& model, const std::string& tensor) {
  const files::TempDir copy;
  const checkpoint::SafetensorsFile file(kModels / model / "model.safetensors");
  std::vector<checkpoint::TensorBytes> kept;
  for (const auto& entry : file.entries()) {
    if (entry.name == tensor) continue;
    const auto bytes = file.bytes(entry);
    kept.push_back({entry.name, entry.dtype, entry.shape, {bytes.data(), bytes.size()}});
  }
  EXPECT_EQ(kept.size() + 1, file.entries().size()) << "no tensor " << tensor;
  checkpoint::write_safetensors(copy.path() / "model.safetensors", kept, {{"format", "pt"}});
  const json::Value config = json::parse_strict(files::read(kModels / model / "config.json"), "");
  const models::Family& family = models::families().get(models::family_of_hf(config));
  try {
    (void)weights_from_hf(copy.path(), family, golden::resolved_from_hf(config));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertFolders, AreRefusedWithTheRouterOrExpertThatTheyLack) {
  const std::pair<const char*, const char*> missing[] = {
      {"mixtral", "model.layers.1.block_sparse_moe.gate.weight"},
      {"mixtral", "model.layers.0.block_sparse_moe.experts.2.w3.weight"},
      {"qwen3_moe", "model.layers.2.mlp.experts.0.down_proj.weight"},
      {"deepseek_v3", "model.layers.1.mlp.gate.e_score_correction_bias"},
      {"gpt_oss", "model.layers.0.mlp.experts.gate_up_proj"},
      {"granitemoe", "model.layers.0.block_sparse_moe.router.layer.weight"},
      {"jetmoe", "model.layers.1.self_attention.experts.input_linear.weight"},
      {"llama4_text", "model.layers.2.feed_forward.router.weight"},
      {"switch_transformers", "decoder.block.1.layer.2.mlp.experts.expert_4.wi.weight"},
      {"switch_transformers", "encoder.block.1.layer.1.mlp.router.classifier.weight"}};
  for (const auto& [model, tensor] : missing)
    EXPECT_THAT(refusal_without(model, tensor), HasSubstr(tensor)) << model;
}

TEST(ExpertFolders, AreRefusedIfATokenUsesMoreExpertsThanThereAre) {
  for (const auto& [model, key] : {std::pair("mixtral", "num_local_experts"),
                                   std::pair("granitemoe", "num_local_experts"),
                                   std::pair("jetmoe", "num_local_experts"),
                                   std::pair("olmoe", "num_experts")}) {
    json::Value config = json::parse_strict(files::read(kModels / model / "config.json"), "");
    config[key] = json::Value::integer(1);
    try {
      (void)golden::resolved_from_hf(config);
      ADD_FAILURE() << model << ": nothing is refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("may choose among 1")) << model;
    }
  }
}

}  // namespace
}  // namespace tessera::interop
