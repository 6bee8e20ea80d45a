// SPDX-License-Identifier: Apache-2.0
// Weights of llm.c in all versions: each tensor is read as it was written, and a truncated file is
// rejected.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "interop/llmc/llmc_files.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace gpt = test::gpt;
namespace llmc = test::llmc;

class Llmc : public test::ForeignCheckpoints {
 protected:
  fs::path file(const std::string& content) {
    files::write_atomic(path("gpt2.bin"), content);
    return path("gpt2.bin");
  }
  /// Writes the file of version 3 with one number of its header replaced.
  fs::path with(std::size_t place, std::int32_t number) {
    std::string content = llmc::file(gpt::model_of(0, 4 * gpt::kWidth), 3);
    std::memcpy(content.data() + 4 * place, &number, sizeof(number));
    return file(content);
  }
};

TEST_F(Llmc, EveryVersionHasHuggingFacesNamesAndLayout) {
  const gpt::Model model = gpt::model_of(0, 4 * gpt::kWidth);
  for (const std::int32_t version : {1, 3, 5}) {
    SCOPED_TRACE(version);
    const Foreign read = open_foreign(file(llmc::file(model, version))).value();

    std::map<std::string, checkpoint::StreamedTensor> found;
    for (const checkpoint::StreamedTensor& tensor : read.weights)
      found.emplace(tensor.name, tensor);
    EXPECT_EQ(found.size(), model.size() - 1);  // it has no separate head
    for (const auto& [name, tensor] : model) {
      if (name == "lm_head.weight") continue;
      const checkpoint::StreamedTensor& got = found.at("transformer." + name);
      EXPECT_EQ(got.shape, tensor.shape) << name;
      EXPECT_EQ(got.dtype, version == 5 ? DType::BF16 : DType::F32) << name;
      if (version != 5) {
        EXPECT_EQ(test::values_of(got), tensor.values) << name;
        continue;
      }
      std::vector<std::uint16_t> bits(tensor.values.size()), expected;
      got.read(
          0, static_cast<std::int64_t>(bits.size()), reinterpret_cast<std::byte*>(bits.data()));
      for (const float value : tensor.values)
        expected.push_back(static_cast<std::uint16_t>(value));
      EXPECT_EQ(bits, expected) << name;
    }
    EXPECT_EQ(read.weights.front().aliases, (std::vector<std::string>{"lm_head.weight"}));
    EXPECT_EQ(integer_at(read.model_config, "vocab_size", 0), gpt::kVocab);  // without padding
    EXPECT_EQ(integer_at(read.model_config, "n_positions", 0), gpt::kPositions);
    EXPECT_EQ(integer_at(read.model_config, "n_layer", 0), gpt::kLayers);
    EXPECT_EQ(integer_at(read.model_config, "n_head", 0), gpt::kHeads);
    EXPECT_EQ(at_path(read.model_config, "torch_dtype")->as_string(),
              version == 5 ? "bfloat16" : "float32");
  }
}

TEST_F(Llmc, AFileThatWasCutAnywhereIsRefused) {
  for (const std::int32_t version : {1, 3, 5}) {
    const std::string whole = llmc::file(gpt::model_of(0, 4 * gpt::kWidth), version);
    for (std::size_t bytes = 8; bytes < whole.size(); bytes += 331) {
      SCOPED_TRACE(fmt::format("version {}, {} of {} bytes", version, bytes, whole.size()));
      refused(file(whole.substr(0, bytes)),
              bytes < 1024 ? "shorter than its header" : "ends before its last parameter");
    }
    refused(file(whole.substr(0, whole.size() - 1)), "ends before its last parameter");
    refused(file(whole + "xyz"), "has 3 bytes more than its parameters");
  }
}

TEST_F(Llmc, FalseHeadersAreRefused) {
  for (const std::int32_t version : {0, 2, 4, 6, -1})
    refused(with(1, version), fmt::format("is of version {}", version));
  for (const std::size_t place : {2, 3, 4, 5, 6}) {
    refused(with(place, 0), "has 0 where a size belongs");
    refused(with(place, -5), "has -5 where a size belongs");
  }
  refused(with(5, 3), "contradict each other");  // num_heads does not divide the width
  refused(with(7, 9), "contradict each other");  // fewer rows than tokens
  refused(with(4, 2147483647), "contradict each other");
  refused(with(2, 2147483647), "ends before its last parameter");
  refused(with(7, 2147483647), "ends before its last parameter");
}

}  // namespace
}  // namespace tessera::interop
