// SPDX-License-Identifier: Apache-2.0
// The keys of generation_config.json that have an effect here.
#include "tessera/engine/generation_config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::engine {
namespace {

/// `keys` and `config`: the folder's files; empty: it has none.
GenerationConfig read(const std::string& keys, const std::string& config = "") {
  const files::TempDir folder;
  if (!config.empty()) files::write_atomic(folder.path() / "config.json", config);
  if (!keys.empty()) files::write_atomic(folder.path() / "generation_config.json", keys);
  OpenModel model;
  model.source = folder.path();
  model.shape.vocab_size = 100;
  return generation_config_of(model);
}

TEST(GenerationConfig, HasTheOptionsOfAFolderThatDraws) {
  const GenerationConfig found = read(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05,
          "eos_token_id": [7, 9, 200], "repetition_penalty": 1.1})");
  EXPECT_EQ(found.temperature, 0.6);
  EXPECT_EQ(found.top_k, 20);
  EXPECT_EQ(found.top_p, 0.95);
  EXPECT_EQ(found.min_p, 0.05);
  EXPECT_EQ(found.repetition_penalty, 1.1);
  EXPECT_EQ(found.ends, (std::vector<std::int32_t>{7, 9})) << "200 is beyond the vocabulary";
}

TEST(GenerationConfig, IsGreedyIfAFolderSaysThatItDoesNotDraw) {
  const GenerationConfig found =
      read(R"({"do_sample": false, "temperature": 0.6, "top_k": 20, "eos_token_id": 7})");
  EXPECT_EQ(found.temperature, 0.0);
  EXPECT_EQ(found.top_k, std::nullopt);
  EXPECT_EQ(found.ends, std::vector<std::int32_t>{7});
}

// do_sample is false by default in transformers.
TEST(GenerationConfig, IsGreedyIfAFolderDoesNotSayThatItDraws) {
  EXPECT_EQ(read(R"({"temperature": 0.6})").temperature, 0.0);
  EXPECT_EQ(read("{}").temperature, 0.0);
  EXPECT_EQ(read("", /*config=*/"{}").temperature, 0.0);
  EXPECT_EQ(read(R"({"do_sample": true})").temperature, std::nullopt);
}

TEST(GenerationConfig, LeavesModelsOfOtherFoldersToTheCommand) {
  EXPECT_EQ(read("").temperature, std::nullopt);
}

TEST(GenerationConfig, RefusesValuesOutOfTheirRanges) {
  EXPECT_THROW((void)read(R"({"do_sample": true, "top_p": 2})"), Error);
  EXPECT_THROW((void)read(R"({"repetition_penalty": "much"})"), Error);
  EXPECT_THROW((void)read(R"({"eos_token_id": "end"})"), Error);
}

}  // namespace
}  // namespace tessera::engine
