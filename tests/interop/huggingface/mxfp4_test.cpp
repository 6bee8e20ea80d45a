// SPDX-License-Identifier: Apache-2.0
// MXFP4 as gpt-oss is published, compared with the table and the formula of the specification.
#include "tessera/interop/huggingface/mxfp4.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/interop/gguf/blocks.h"
#include "tessera/interop/huggingface/quantized_weights.h"

namespace tessera::interop {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kExperts = 2, kOutputs = 3, kGroups = 2, kInputs = 32 * kGroups;

/// E2M1: a sign, two bits of exponent with bias 1, one bit of mantissa; exponent 0 is subnormal.
double e2m1(unsigned code) {
  const double sign = (code & 8U) != 0 ? -1 : 1;
  const unsigned exponent = code >> 1 & 3U, mantissa = code & 1U;
  if (exponent == 0) return sign * 0.5 * mantissa;
  return sign * std::ldexp(1.0 + 0.5 * mantissa, static_cast<int>(exponent) - 1);
}

/// Blocks and scales that own their bytes.
struct Stored {
  std::vector<std::byte> blocks, scales;
  Stored() {
    for (std::int64_t i = 0; i < kExperts * kOutputs * kGroups * 16; ++i)
      blocks.push_back(static_cast<std::byte>(i * 37 % 256));
    for (std::int64_t i = 0; i < kExperts * kOutputs * kGroups; ++i)
      scales.push_back(static_cast<std::byte>(120 + i));
  }
  [[nodiscard]] std::vector<Weight> weights(const std::string& name) const {
    Weight first{.name = name + "_blocks",
                 .dtype = DType::U8,
                 .shape = {kExperts, kOutputs, kGroups, 16},
                 .data = blocks.data(),
                 .file = "model.safetensors"};
    Weight second{.name = name + "_scales",
                  .dtype = DType::U8,
                  .shape = {kExperts, kOutputs, kGroups},
                  .data = scales.data(),
                  .file = "model.safetensors"};
    for (Weight* const weight : {&first, &second})
      weight->strides = row_major(weight->shape);
    return {first, second};
  }
  /// The number of an expert that multiplies input `i` for output `o`.
  [[nodiscard]] double number(std::int64_t e, std::int64_t i, std::int64_t o) const {
    const std::int64_t block = (e * kOutputs + o) * kGroups + i / 32;
    const auto byte =
        static_cast<unsigned>(blocks[static_cast<std::size_t>(block * 16 + i % 32 / 2)]);
    const int exponent = static_cast<int>(scales[static_cast<std::size_t>(block)]) - 127;
    return std::ldexp(e2m1(i % 2 == 0 ? byte & 15U : byte >> 4), exponent);
  }
};

std::vector<float> values_of(const checkpoint::StreamedTensor& tensor,
                             std::int64_t begin,
                             std::int64_t end) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(end - begin));
  EXPECT_EQ(tensor.dtype, DType::BF16);
  tensor.read(begin, end, reinterpret_cast<std::byte*>(bits.data()));
  std::vector<float> out;
  for (const std::uint16_t one : bits)
    out.push_back(from_bf16(one));
  return out;
}

TEST(Mxfp4, HasTheNumbersOfTheSpecification) {
  const Stored stored;

  const auto tensors = plain_weights(stored.weights("mlp.experts.down_proj"));

  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].name, "mlp.experts.down_proj");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{kExperts, kInputs, kOutputs}));
  const std::vector<float> values = values_of(tensors[0], 0, kExperts * kInputs * kOutputs);
  std::size_t at = 0;
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t i = 0; i < kInputs; ++i) {
      for (std::int64_t o = 0; o < kOutputs; ++o)
        EXPECT_EQ(values[at++], stored.number(e, i, o)) << e << ", " << i << ", " << o;
    }
  }
}

TEST(Mxfp4, CanBeReadInPieces) {
  const Stored stored;
  const auto tensor = plain_weights(stored.weights("w"))[0];
  const std::int64_t all = kExperts * kInputs * kOutputs;
  const std::vector<float> whole = values_of(tensor, 0, all);

  for (const auto& [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{5, 6}, {90, 101}, {1, all}, {190, 195}}) {
    EXPECT_EQ(values_of(tensor, begin, end),
              std::vector<float>(whole.begin() + begin, whole.begin() + end));
  }
}

// GGUF stores the same codes, the first half of a block in the low nibbles.
TEST(Mxfp4, OfGgufHasTheSameNumbers) {
  std::vector<std::byte> block = {static_cast<std::byte>(125)};
  for (unsigned j = 0; j < 16; ++j)
    block.push_back(static_cast<std::byte>(j | (15 - j) << 4));
  std::vector<float> out(32);

  decode_blocks(GgmlType::MXFP4, block.data(), 0, 32, out.data());

  for (unsigned j = 0; j < 16; ++j) {
    EXPECT_EQ(out[j], std::ldexp(e2m1(j), -2));
    EXPECT_EQ(out[j + 16], std::ldexp(e2m1(15 - j), -2));
  }
}

std::string refusal(const std::vector<Weight>& weights) {
  try {
    (void)plain_weights(weights);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    return error.what();
  }
  return "nothing is refused";
}

TEST(Mxfp4, OfOtherSizesIsRefusedByName) {
  const Stored stored;
  std::vector<Weight> weights = stored.weights("w");
  weights[1].shape = {kExperts, kOutputs, kGroups - 1};
  weights[1].strides = row_major(weights[1].shape);
  EXPECT_THAT(refusal(weights), HasSubstr("w_scales"));
  weights = stored.weights("w");
  weights[0].shape = {kExperts, kOutputs, 2 * kGroups, 8};
  weights[0].strides = row_major(weights[0].shape);
  EXPECT_THAT(refusal(weights), HasSubstr("w_blocks"));
  weights = stored.weights("w");
  weights[0].dtype = DType::I8;
  EXPECT_THAT(refusal(weights), HasSubstr("w_blocks"));
  weights = stored.weights("w");
  weights.pop_back();
  EXPECT_THAT(refusal(weights), HasSubstr("w_scales"));
  weights = stored.weights("w");
  for (Weight& weight : weights) {
    weight.shape[0] = 0;
    weight.strides = row_major(weight.shape);
  }
  EXPECT_THAT(refusal(weights), HasSubstr("w_blocks"));
}

TEST(Mxfp4, IsNotASettingOfTheModel) {
  json::Value config = json::parse_strict(
      R"({"quantization_config": {"quant_method": "mxfp4"}, "model_type": "gpt_oss"})", "");

  EXPECT_TRUE(drop_quantization(config));
  EXPECT_EQ(config.find("quantization_config"), nullptr);
  EXPECT_FALSE(drop_quantization(config));
}

}  // namespace
}  // namespace tessera::interop
