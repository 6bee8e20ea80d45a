// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/dataset.h"

#include <functional>
#include <utility>

#include "support/text_files.h"
#include <gtest/gtest.h>

namespace tessera::data {
namespace {

using test::contains;
using test::error_of;

/// Two samples whose tensors and contents a test chooses.
class Chosen final : public Dataset {
 public:
  using Write = std::function<void(std::int64_t index, SampleWriter& out)>;
  Chosen(std::vector<TensorSpec> tensors, Write write)
      : tensors_(std::move(tensors)), write_(std::move(write)) {}
  [[nodiscard]] std::string name() const override { return "weather"; }
  [[nodiscard]] std::int64_t size() const override { return 2; }
  [[nodiscard]] std::vector<TensorSpec> tensors() const override { return tensors_; }
  void read(std::int64_t index, SampleWriter& out) const override { write_(index, out); }

 private:
  std::vector<TensorSpec> tensors_;
  Write write_;
};

const std::vector<TensorSpec> kWind = {{.name = "wind", .dtype = DType::F32, .shape = {2, 2}}};

Error error_of_reading(std::vector<TensorSpec> tensors, Chosen::Write write) {
  const Chosen dataset(std::move(tensors), std::move(write));
  return error_of([&] { Sample(dataset, 0); });
}

TEST(Dataset, GivesNamedTensorsOfItsOwnTypesAndShapes) {
  const Chosen dataset({{.name = "wind", .dtype = DType::F32, .shape = {2, 2}},
                        {.name = "day", .dtype = DType::I64},
                        {.name = "half", .dtype = DType::BF16, .shape = {1}}},
                       [](std::int64_t index, SampleWriter& out) {
                         out.set("wind", std::vector<float>{1.5F, 2.5F, 3.5F, 4.5F});
                         out.set("day", index);
                         out.tensor<std::uint16_t>("half")[0] = to_bf16(0.5F);
                       });

  Sample sample(dataset, 1);

  EXPECT_EQ(sample.values<float>("wind")[3], 4.5F);
  EXPECT_EQ(sample.values<std::int64_t>("day")[0], 1);
  EXPECT_EQ(from_bf16(sample.values<std::uint16_t>("half")[0]), 0.5F);
  EXPECT_FALSE(dataset.sequence_length().has_value());
}

TEST(Dataset, HasAnOptionalTensorOnlyWhereASampleNeedsIt) {
  const Chosen dataset({{.name = "gaps", .dtype = DType::Bool, .shape = {3}, .optional = true}},
                       [](std::int64_t index, SampleWriter& out) {
                         out.tensor<bool>("gaps")[0] = true;
                         if (index == 1) out.need("gaps");
                       });

  EXPECT_FALSE(Sample(dataset, 0).has("gaps"));
  EXPECT_TRUE(Sample(dataset, 1).has("gaps"));
  EXPECT_FALSE(Sample(dataset, 1).has("rain"));
}

TEST(Dataset, IsNamedWithTheTensorWhoseTypeIsWrong) {
  const Error error = error_of_reading(
      kWind, [](std::int64_t, SampleWriter& out) { out.tensor<double>("wind")[0] = 0.0; });

  EXPECT_EQ(error.kind(), Error::Kind::Shape);
  EXPECT_TRUE(
      contains(error.what(), "weather: tensor \"wind\" is declared as F32 and used as F64"));
}

TEST(Dataset, IsNamedWithTheTensorWhoseSizeIsWrong) {
  const Error error = error_of_reading(kWind, [](std::int64_t, SampleWriter& out) {
    out.set("wind", std::vector<float>{1.0F, 2.0F, 3.0F});
  });

  EXPECT_EQ(error.kind(), Error::Kind::Shape);
  EXPECT_TRUE(contains(error.what(), "weather: tensor \"wind\" has 3 values in sample 0"));
  EXPECT_TRUE(contains(error.what(), "[2, 2] has 4"));
}

TEST(Dataset, IsNamedWithATensorThatItDoesNotWriteOrDeclare) {
  const Error silent = error_of_reading(kWind, [](std::int64_t, SampleWriter&) {});
  const Error unknown =
      error_of_reading(kWind, [](std::int64_t, SampleWriter& out) { out.set("rain", 1.0F); });

  EXPECT_TRUE(contains(silent.what(), "weather: tensor \"wind\" is not written in sample 0"));
  EXPECT_TRUE(contains(unknown.what(), "weather: tensor \"rain\" is not declared"));
  EXPECT_TRUE(contains(unknown.fix(), "wind"));
}

TEST(Dataset, IsRefusedWithoutTensorsAndWithTwoOfOneNameOrWithoutElements) {
  const auto refusal = [](std::vector<TensorSpec> tensors) {
    return error_of([&] { check_tensors(Chosen(std::move(tensors), {})); }).text();
  };

  EXPECT_NO_THROW(check_tensors(Chosen(kWind, {})));
  EXPECT_TRUE(contains(refusal({}), "weather: its samples have no tensors"));
  EXPECT_TRUE(contains(refusal({kWind[0], kWind[0]}), "\"wind\" is declared twice"));
  EXPECT_TRUE(contains(refusal({{.name = "wind", .dtype = DType::F32, .shape = {2, 0}}}),
                       "has the shape [2, 0]"));
}

}  // namespace
}  // namespace tessera::data
