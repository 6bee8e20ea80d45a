// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A conversion holds at most twice the largest tensor, whatever the model's size.
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/peak_memory.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using tessera::test::peak_growth;

constexpr std::int64_t kVocab = 32768, kWidth = 512, kLayers = 10, kPositions = 64;
/// The table of words.
constexpr std::int64_t kLargestBytes = kVocab * kWidth * 4;

/// A file of llm.c: 256 int32, then wte, wpe, twelve kinds of tensors for all layers, ln_f.
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

TEST(MemoryOfAConversion, IsAtMostTwiceTheLargestTensor) {
  const files::TempDir dir;
  const auto path = [&](const std::string& name) { return (dir.path() / name).string(); };
  write_llmc(path("gpt2.bin"));
  ASSERT_GT(static_cast<std::int64_t>(fs::file_size(path("gpt2.bin"))), 2 * kLargestBytes);

  struct Step {
    std::string from, to;
    std::vector<std::string> words;
  };
  for (const Step& step : {Step{"gpt2.bin", "hf", {}},
                           Step{"hf", "half", {"--dtype", "bf16"}},
                           Step{"hf", "bin", {"--to", "torch"}},
                           Step{"bin", "shards", {"--shard-size", "50MB"}},
                           Step{"shards", "ours", {"--to", "tessera"}},
                           Step{"ours", "back", {}}}) {
    const std::int64_t grown = peak_growth([&] {
      std::vector<std::string> words = {"convert", path(step.from), path(step.to)};
      words.insert(words.end(), step.words.begin(), step.words.end());
      return run_program(words).code == 0;
    });
    EXPECT_GE(grown, 0) << step.from << " to " << step.to;
    EXPECT_LE(grown, 2 * kLargestBytes) << step.from << " to " << step.to;
  }
  EXPECT_EQ(run_program({"inspect", path("back"), "--digest"}).out,
            run_program({"inspect", path("hf"), "--digest"}).out);
}

}  // namespace
}  // namespace tessera::cli
