// SPDX-License-Identifier: Apache-2.0
// A run to convert, and the program that converts it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/json.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {

namespace fs = std::filesystem;

class Conversions : public ::testing::Test {
 protected:
  /// Creates a run with one checkpoint of a small GPT-2 whose weights are a function of name and
  /// index.
  explicit Conversions(text::TokenizerOptions tokenizer = {}) {
    models::ModelOptions options("gpt2");
    options->num_layers = 2;
    options->hidden_size = 8;
    options->num_heads = 2;
    options->max_positions = 16;
    config::Problems problems;
    resolved = models::resolve(
        options, text::make_tokenizer(tokenizer)->size(), std::nullopt, problems, {});
    problems.raise();
    std::vector<checkpoint::PieceBytes> pieces;
    for (const nn::BlockSpec& block : resolved.model.blocks) {
      nn::Params params(block.name);
      const auto instance = block.make();
      instance->declare(params);
      for (const auto& param : params.list())
        add(param->shared_info(), pieces);
    }
    checkpoint::Meta meta;
    meta.step = 3;
    meta.config = json::Value::object(
        {{"model", resolved.description},
         {"tokenizer", config::write(tokenizer)},
         {"data", json::Value::object({{"train", json::Value::string("text.txt")}})},
         {"train_batch_size", json::Value::integer(1)}});
    meta.extra = json::Value::object();
    checkpoint::save(run_folder() / "checkpoints", meta, pieces, checkpoint::Ranks());
  }
  void add(const std::shared_ptr<const ParamInfo>& info,
           std::vector<checkpoint::PieceBytes>& pieces) {
    if (!infos.emplace(info->name, info).second) return;  // a tied head declares the table again
    auto& memory = weights[info->name];
    for (std::int64_t i = 0; i < info->numel(); ++i) {
      const std::uint64_t noise =
          mix64(std::hash<std::string>()(info->name), static_cast<std::uint64_t>(i));
      memory.push_back(static_cast<float>(noise >> 40) / 1e7F - 0.5F);
    }
    pieces.push_back({info->name,
                      DType::F32,
                      info->shape,
                      {mesh::whole(info->shape), 0, info->numel()},
                      std::as_writable_bytes(std::span(memory))});
  }
  [[nodiscard]] fs::path run_folder() const { return dir.path() / "run"; }
  [[nodiscard]] std::string path(const std::string& name) const { return dir.path() / name; }
  Outcome convert(std::vector<std::string> words) {
    words.insert(words.begin(), "convert");
    return run_program(words);
  }
  std::string digest(const std::string& name) {
    return run_program({"inspect", path(name), "--digest"}).out;
  }
  void expect_weights(const fs::path& folder) {
    const auto source = interop::weights_from_hf(folder, models::families().get("gpt2"), resolved);
    for (const auto& [name, expected] : weights) {
      std::vector<float> got(expected.size());
      source(*infos.at(name), 0, infos.at(name)->numel(), got.data());
      EXPECT_EQ(got, expected) << name;
    }
  }

  files::TempDir dir;
  models::Resolved resolved;
  std::map<std::string, std::vector<float>> weights;
  std::map<std::string, std::shared_ptr<const ParamInfo>> infos;
};

}  // namespace tessera::cli
