// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/batches.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/data/token_dataset.h"

namespace tessera::engine {
namespace {

at::Tensor integers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

using Numbers = std::vector<std::int64_t>;

/// Sample i has the values i, i + 1, ... in a matrix, and needs its optional tensor if i is odd.
class Matrices final : public data::Dataset {
 public:
  [[nodiscard]] std::string name() const override { return "matrices"; }
  [[nodiscard]] std::int64_t size() const override { return 10; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "matrix", .dtype = DType::F32, .shape = {2, 3}},
            {.name = "half", .dtype = DType::BF16, .shape = {1}},
            {.name = "number", .dtype = DType::I32},
            {.name = "odd", .dtype = DType::Bool, .optional = true}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    float value = static_cast<float>(index);
    for (float& element : out.tensor<float>("matrix"))
      element = value++;
    out.set("half", to_bf16(static_cast<float>(index) / 2));
    out.set("number", static_cast<std::int32_t>(index));
    out.set("odd", index % 2 == 1);
    if (index % 2 == 1) out.need("odd");
  }
};

TEST(Batches, StackTheTensorsOfTheirSamples) {
  const nn::Batch batch = make_batch(Matrices(), Numbers{4, 7}, Numbers{20, 21});

  EXPECT_EQ(batch.sample_ids, (Numbers{20, 21}));
  const at::Tensor& matrix = batch.tensor("matrix");
  EXPECT_EQ(matrix.sizes(), (at::IntArrayRef{2, 2, 3}));
  EXPECT_EQ(matrix.scalar_type(), at::kFloat);
  EXPECT_EQ(matrix[0][1][2].item<float>(), 9.0F);
  EXPECT_EQ(matrix[1][0][0].item<float>(), 7.0F);
  EXPECT_EQ(batch.tensor("half").scalar_type(), at::kBFloat16);
  EXPECT_EQ(batch.tensor("half")[1][0].item<float>(), 3.5F);
  EXPECT_TRUE(at::equal(batch.tensor("number"), integers({4, 7}).to(at::kInt)));
}

TEST(Batches, CountTheirPadding) {
  nn::Batch batch;
  batch.sample_ids = {0, 1};
  batch.set("input_ids", at::zeros({2, 3}, at::kLong));
  EXPECT_EQ(padding_of(batch), 0);
  batch.set("attention_mask", integers({1, 0, 0, 1, 1, 0}).view({2, 3}));
  EXPECT_EQ(padding_of(batch), 3);
}

TEST(Batches, HaveAnOptionalTensorOnlyWhereASampleNeedsIt) {
  EXPECT_FALSE(make_batch(Matrices(), Numbers{2, 4}, Numbers{0, 1}).has("odd"));
  const nn::Batch batch = make_batch(Matrices(), Numbers{2, 5}, Numbers{0, 1});

  ASSERT_TRUE(batch.has("odd"));
  EXPECT_TRUE(at::equal(batch.tensor("odd"), integers({0, 1}).to(at::kBool)));
}

TEST(Batches, MayHaveNoSamples) {
  const nn::Batch batch = make_batch(Matrices(), Numbers{}, Numbers{});

  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(batch.tensor("matrix").sizes(), (at::IntArrayRef{0, 2, 3}));
  EXPECT_FALSE(batch.has("odd"));
}

/// Two documents, the second one shorter than a sample.
class Documents final : public data::TokenDataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 2; }
  [[nodiscard]] std::int64_t length() const override { return 2; }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    for (std::int64_t t = 0; t < 2; ++t) {
      input_ids[t] = 10 * index + t;
      labels[t] = 10 * index + t + 1;
      mask[t] = index == 1 && t == 1 ? 0 : 1;
    }
    return index == 1;
  }
};

TEST(Batches, OfTokensHaveAMaskOnlyWhereASampleIsPadded) {
  const nn::Batch whole = make_batch(Documents(), Numbers{0}, Numbers{0}),
                  padded = make_batch(Documents(), Numbers{0, 1}, Numbers{0, 1});

  EXPECT_FALSE(whole.has("attention_mask"));
  EXPECT_FALSE(whole.has("document_starts"));
  EXPECT_TRUE(at::equal(padded.tensor("attention_mask"), integers({1, 1, 1, 0}).view({2, 2})));
  EXPECT_TRUE(at::equal(padded.tensor("labels"), integers({1, 2, 11, 12}).view({2, 2})));
}

}  // namespace
}  // namespace tessera::engine
