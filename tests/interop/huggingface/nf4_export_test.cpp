// SPDX-License-Identifier: Apache-2.0
// Models written in NF4, compared with what bitsandbytes wrote for the same numbers.
#include "tessera/interop/huggingface/nf4_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/interop/export.h"
#include "tessera/interop/huggingface/bitsandbytes.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::StreamedTensor;

/// A small Llama as bitsandbytes saved it (tests/interop/data/bitsandbytes/make.py).
fs::path bitsandbytes_folder() {
  return tessera::test::source_dir() / "tests/interop/data/bitsandbytes/nf4_double";
}

std::vector<std::uint8_t> nf4_bytes_of(const Weight& weight) {
  std::vector<std::uint8_t> out(weight.bytes());
  weight.copy(0, weight.numel(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

std::map<std::string, Weight> nf4_by_name(const std::vector<Weight>& weights) {
  std::map<std::string, Weight> out;
  for (const Weight& weight : weights)
    out.emplace(weight.name, weight);
  return out;
}

std::vector<float> nf4_floats_of(const StreamedTensor& tensor) {
  EXPECT_EQ(tensor.dtype, DType::F32);
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape)
    count *= size;
  std::vector<float> out(static_cast<std::size_t>(count));
  tensor.read(0, count, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

/// The model, widened and written in NF4 again.
fs::path written_again(const files::TempDir& dir) {
  ModelExport model = open_model_export(bitsandbytes_folder(), std::nullopt);
  store_in_nf4(model);
  for (const auto& [name, content] : model.files)
    files::write_atomic(dir.path() / name, content);
  write_hf_weights(dir.path(), model.tensors, std::uint64_t{1} << 40, [](std::uint64_t) {});
  return dir.path();
}

TEST(Nf4Export, HasTheNamesShapesAndCodesOfBitsandbytes) {
  const files::TempDir dir;
  const auto ours = nf4_by_name(open_weights(written_again(dir))),
             expected = nf4_by_name(open_weights(bitsandbytes_folder()));
  for (const auto& [name, weight] : expected) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(ours.contains(name));
    const Weight& own = ours.at(name);
    EXPECT_EQ(own.dtype, weight.dtype);
    // The numbers are those that the codes represent, whose codes are the same again, whatever the
    // rounding of the scales. Tables and the tensors that stay wide are unchanged.
    if (name.find("absmax") != std::string::npos || name.find("quant_state") != std::string::npos)
      continue;
    EXPECT_EQ(own.shape, weight.shape);
    if (name.ends_with("nested_quant_map")) {
      // The recorded table was made with numpy, which rounds the midpoints of its steps otherwise
      // than torch, by one unit in the last place.
      std::vector<float> x(256), y(256);
      own.copy(0, 256, reinterpret_cast<std::byte*>(x.data()));
      weight.copy(0, 256, reinterpret_cast<std::byte*>(y.data()));
      for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_FLOAT_EQ(x[i], y[i]);
      continue;
    }
    EXPECT_EQ(nf4_bytes_of(own), nf4_bytes_of(weight));
  }
  EXPECT_EQ(ours.size(), expected.size());
}

TEST(Nf4Export, DescribesEachMatrixAsBitsandbytesDoes) {
  const files::TempDir dir;
  const auto ours = nf4_by_name(open_weights(written_again(dir))),
             expected = nf4_by_name(open_weights(bitsandbytes_folder()));
  int described = 0;
  for (const auto& [name, weight] : expected) {
    if (name.find("quant_state") == std::string::npos) continue;
    const auto state = [](const Weight& from) {
      const std::vector<std::uint8_t> bytes = nf4_bytes_of(from);
      return json::parse_strict(std::string(bytes.begin(), bytes.end()), from.name);
    };
    const json::Value own = state(ours.at(name)), their = state(weight);
    ASSERT_EQ(own.members().size(), their.members().size()) << name;
    for (const auto& [key, value] : their.members()) {
      ASSERT_NE(own.find(key), nullptr) << key;
      // Tolerance of the mean of scales that were rounded to eight bits once: the dynamic map has
      // steps of less than a sixtieth of the largest scale.
      if (key == "nested_offset") {
        EXPECT_NEAR(own.find(key)->as_double(), value.as_double(), value.as_double() / 60);
      } else {
        EXPECT_EQ(own.find(key)->dump(), value.dump()) << key;
      }
    }
    ++described;
  }
  EXPECT_EQ(described, 7);
}

TEST(Nf4Export, IsReadBackWithinTheStepsOfTheCodes) {
  const files::TempDir dir;
  const fs::path folder = written_again(dir);
  const auto before = with_bitsandbytes(open_weights(bitsandbytes_folder())),
             after = with_bitsandbytes(open_weights(folder));
  ASSERT_EQ(before.size(), after.size());
  for (const StreamedTensor& tensor : before) {
    const auto at = std::ranges::find(after, tensor.name, &StreamedTensor::name);
    ASSERT_NE(at, after.end()) << tensor.name;
    ASSERT_EQ(at->shape, tensor.shape);
    const std::vector<float> x = nf4_floats_of(tensor), y = nf4_floats_of(*at);
    // Only the scales are rounded again, by at most a sixtieth of the largest one, which is below
    // 1.5 for normal numbers of deviation 0.3.
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], y[i], 1.5 / 60) << tensor.name << " " << i;
  }
}

TEST(Nf4Export, NamesTheLayersThatTransformersMustLeave) {
  const files::TempDir dir;
  const json::Value config =
      json::parse_strict(files::read(written_again(dir) / "config.json"), "config.json");
  const json::Value* const said = config.find("quantization_config");
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->find("quant_method")->as_string(), "bitsandbytes");
  EXPECT_EQ(said->find("bnb_4bit_quant_type")->as_string(), "nf4");
  std::set<std::string> skipped;
  for (const json::Value& name : said->find("llm_int8_skip_modules")->items())
    skipped.insert(name.as_string());
  EXPECT_THAT(skipped, testing::UnorderedElementsAre("lm_head", "model.embed_tokens"));
}

TEST(Nf4Export, WritesPartsInAnyPieces) {
  ModelExport model = open_model_export(bitsandbytes_folder(), std::nullopt);
  store_in_nf4(model);
  const auto codes = std::ranges::find(
      model.tensors, "model.layers.0.mlp.down_proj.weight", &StreamedTensor::name);
  ASSERT_NE(codes, model.tensors.end());
  std::vector<std::byte> whole(codes->bytes()), pieces(codes->bytes());
  codes->read(0, std::ssize(whole), whole.data());
  for (std::int64_t at = 0; at < std::ssize(whole); at += 37)
    codes->read(at, std::min(at + 37, std::ssize(whole)), pieces.data() + at);

  EXPECT_EQ(pieces, whole);
}

TEST(Nf4Export, RefusesNumbersThatAreNotFinite) {
  ModelExport model = open_model_export(bitsandbytes_folder(), std::nullopt);
  const auto matrix = std::ranges::find(
      model.tensors, "model.layers.0.mlp.down_proj.weight", &StreamedTensor::name);
  ASSERT_NE(matrix, model.tensors.end());
  matrix->read = [](std::int64_t begin, std::int64_t end, std::byte* out) {
    const float bad = std::numeric_limits<float>::quiet_NaN();
    for (std::int64_t i = begin; i < end; ++i)
      std::memcpy(out + (i - begin) * 4, &bad, 4);
  };
  store_in_nf4(model);
  for (const StreamedTensor& tensor : model.tensors) {
    const bool computed = tensor.name.ends_with("down_proj.weight") ||
                          tensor.name.ends_with("down_proj.weight.absmax");
    if (!computed) continue;
    std::vector<std::byte> out(tensor.bytes());
    EXPECT_THROW(tensor.read(0, std::int64_t(out.size() / size_of(tensor.dtype)), out.data()),
                 Error)
        << tensor.name;
  }
}

}  // namespace
}  // namespace tessera::interop
