// SPDX-License-Identifier: Apache-2.0
// Weights quantized by bitsandbytes, compared with the values to which its own library dequantizes
// them.
#include "tessera/interop/huggingface/bitsandbytes.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/interop/model_export.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using checkpoint::StreamedTensor;

const char* const kCases[] = {"nf4_double", "fp4", "int8"};

fs::path folder_of(const std::string& name) {
  return tessera::test::source_dir() / "tests/interop/data/bitsandbytes" / name;
}

std::vector<float> values_of(const StreamedTensor& tensor, std::int64_t begin, std::int64_t end) {
  std::vector<float> out(static_cast<std::size_t>(end - begin));
  EXPECT_EQ(tensor.dtype, DType::F32);
  tensor.read(begin, end, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

const StreamedTensor& named(const std::vector<StreamedTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(
      tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
  if (at == tensors.end()) throw std::runtime_error("there is no " + name);
  return *at;
}

TEST(Bitsandbytes, WidensAsItsLibraryDoes) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    const auto tensors = with_bitsandbytes(open_weights(folder_of(name)));
    EXPECT_EQ(tensors.size(), 12U) << "nothing but the weights is left";
    int narrow = 0;
    for (const Weight& expected : open_weight_file(folder_of(name) / "expected.safetensors")) {
      SCOPED_TRACE(expected.name);
      const StreamedTensor& tensor = named(tensors, expected.name);
      ASSERT_EQ(tensor.shape, expected.shape);
      std::vector<float> wide(static_cast<std::size_t>(expected.numel()));
      expected.copy(0, expected.numel(), reinterpret_cast<std::byte*>(wide.data()));

      EXPECT_EQ(values_of(tensor, 0, expected.numel()), wide);
      // Ranges are arbitrary: from an odd element and across blocks.
      EXPECT_EQ(values_of(tensor, 61, 775),
                std::vector<float>(wide.begin() + 61, wide.begin() + 775));
      ++narrow;
    }
    EXPECT_EQ(narrow, 7);
  }
}

TEST(Bitsandbytes, IsReadAsAModelAndWrittenAsPlainWeights) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    const fs::path folder = folder_of(name);
    json::Value config = json::parse_strict(files::read(folder / "config.json"), "config.json");
    EXPECT_TRUE(drop_bitsandbytes(config));
    config::Problems problems;
    const models::ModelOptions options = models::options_from_hf(config);
    const models::Resolved model =
        models::resolve(options, 61, std::nullopt, problems, config::Origins());
    const auto source = weights_from_hf(folder, models::families().get(options.family()), model);
    for (const auto& info : nn::parameters_of(model.model)) {
      std::vector<float> out(static_cast<std::size_t>(info->numel()));
      source(*info, 0, info->numel(), out.data());
      EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](float x) { return x != 0.0F; }))
          << info->name;
    }

    const ModelExport plain = open_model_export(folder, DType::BF16);

    EXPECT_EQ(plain.tensors.size(), 12U);
    for (const StreamedTensor& tensor : plain.tensors)
      EXPECT_EQ(tensor.dtype, DType::BF16) << tensor.name;
    EXPECT_THAT(plain.files.front().second, ::testing::Not(::testing::HasSubstr("quantization")));
  }
}

/// Returns the error for a folder's weights after `change`.
std::string error_after(const std::string& name,
                        const std::function<void(std::vector<Weight>&)>& change) {
  std::vector<Weight> weights = open_weights(folder_of(name));
  change(weights);
  try {
    (void)with_bitsandbytes(weights);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Weight& ending(std::vector<Weight>& weights, const std::string& end) {
  return *std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) {
    return weight.name.ends_with(end);
  });
}

TEST(Bitsandbytes, RefusesWhatDoesNotFitTogether) {
  using testing::HasSubstr;
  const auto without = [](const std::string& end) {
    return [end](std::vector<Weight>& weights) {
      const std::string name = ending(weights, end).name;
      std::erase_if(weights, [&](const Weight& weight) { return weight.name == name; });
    };
  };
  EXPECT_THAT(error_after("nf4_double", without("down_proj.weight.absmax")), HasSubstr("absmax"));
  EXPECT_THAT(error_after("nf4_double", without("down_proj.weight.quant_map")),
              HasSubstr("quant_map"));
  EXPECT_THAT(error_after("nf4_double", without("nested_quant_map")),
              HasSubstr("nested_quant_map"));
  EXPECT_THAT(error_after("nf4_double",
                          [](auto& weights) {
                            Weight& codes = ending(weights, "down_proj.weight");
                            codes.shape.front() -= 1;
                          }),
              HasSubstr("expected 4096"));
  EXPECT_THAT(error_after("fp4",
                          [](auto& weights) {
                            ending(weights, "down_proj.weight.absmax").dtype = DType::I32;
                          }),
              HasSubstr("I32"));
  EXPECT_THAT(
      error_after("int8", [](auto& weights) { ending(weights, "down_proj.SCB").shape = {63}; }),
      HasSubstr("63 elements"));
  EXPECT_THAT(error_after("fp4",
                          [](auto& weights) {
                            Weight& state = ending(weights,
                                                   "down_proj.weight.quant_state"
                                                   ".bitsandbytes__fp4");
                            state.name.replace(state.name.size() - 3, 3, "af4");
                          }),
              HasSubstr("af4"));
}

TEST(Bitsandbytes, RefusesFalseDescriptions) {
  const std::string end = "down_proj.weight.quant_state.bitsandbytes__nf4";
  for (
      const char* text : {
          R"({"blocksize": 64, "shape": [64, 128]})",  // no offset
          R"({"blocksize": 64, "shape": [64, 128], "nested_blocksize": 0, "nested_offset": 1})",
          R"({"blocksize": 0, "shape": [64, 128], "nested_blocksize": 256, "nested_offset": 1})",
          R"({"blocksize": 1e30, "shape": [64, 128], "nested_blocksize": 256, "nested_offset": 1})",
          R"({"blocksize": 64, "shape": [64, 127], "nested_blocksize": 256, "nested_offset": 1})",
          R"({"blocksize": 64, "shape": [9223372036854775807, 128], "nested_blocksize": 256})",
          R"({"blocksize": 64, "shape": [-64, -128], "nested_blocksize": 256, "nested_offset": 1})",
          R"({"blocksize": 64, "shape": "64, 128", "nested_blocksize": 256, "nested_offset": 1})",
          R"([])",
          R"({)",
          "",
      }) {
    const std::string error = error_after("nf4_double", [&](auto& weights) {
      Weight& state = ending(weights, end);
      state.data = reinterpret_cast<const std::byte*>(text);
      state.shape = {static_cast<std::int64_t>(std::strlen(text))};
    });
    EXPECT_FALSE(error.empty()) << text;
  }
}

}  // namespace
}  // namespace tessera::interop
