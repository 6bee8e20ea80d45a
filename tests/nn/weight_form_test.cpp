// SPDX-License-Identifier: Apache-2.0
// Which class computes a layer, for each way of holding its weight; and the layers of 8-bit
// weights.
#include "tessera/nn/weight_form.h"

#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"

namespace tessera::nn {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kOutputs = 6, kInputs = 8;

Param weight() {
  ParamInfo info;
  info.name = "w";
  info.shape = info.matrix_shape = {kOutputs, kInputs};
  info.axes = {LogicalAxis::Ffn, LogicalAxis::Embed};
  return Param(std::make_shared<const ParamInfo>(std::move(info)));
}

/// The weight with the half of its dim `dim` that the first of two ranks holds.
Param split(int dim) {
  Param param = weight();
  mesh::Box box{{0, 0}, {kOutputs, kInputs}};
  box.end[static_cast<std::size_t>(dim)] /= 2;
  param.place({{{dim, mesh::AxisSet::tp()}}}, box, kOutputs * kInputs / 2);
  return param;
}

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

struct EightBits {
  Param param = weight();
  at::Tensor rows = at::randint(-127, 128, {kOutputs, kInputs}, at::kChar),
             scales = random({kOutputs}, 3).abs();
  EightBits() { param.attach_int8(rows, scales); }
  [[nodiscard]] at::Tensor wide() const { return rows.to(at::kFloat) * scales.unsqueeze(1); }
};

TEST(WeightForm, FollowsHowTheWeightIsHeld) {
  const StepContext context(Mode::Train, 1);

  EXPECT_EQ(&weight_form(weight(), context), &whole_form());
  EXPECT_EQ(&weight_form(split(0), context), &split_outputs_form());
  EXPECT_EQ(&weight_form(split(1), context), &split_inputs_form());
}

TEST(WeightForm, OnAGridDependsOnTheWeightBeingSplit) {
  StepContext context(Mode::Train, 1);
  for (const TensorMode mode : {TensorMode::TwoD, TensorMode::ThreeD}) {
    const TensorParallel tensor{.mode = mode};
    context.tensor = &tensor;

    EXPECT_EQ(&weight_form(weight(), context), &whole_on_grid_form());
    EXPECT_EQ(&weight_form(split(0), context), &grid_form());
    EXPECT_EQ(&weight_form(split(1), context), &grid_form());
  }
}

TEST(WeightForm, OfEightBitsMultipliesByScaledRows) {
  const EightBits eight;
  StepContext context(Mode::Prefill, 1);
  const c10::NoGradGuard no_grad;
  const at::Tensor x = random({2, 3, kInputs}, 5);
  const at::Tensor wanted = at::matmul(x, eight.wide().t());
  // The input of the product has 8 significant bits (bf16), or 8-bit codes per row.
  const double tolerance = wanted.abs().max().item<double>() * 0x1p-6;

  const at::Tensor y = linear(x.to(at::kBFloat16), eight.param, nullptr, context);
  const at::Tensor logits = vocab_logits(x.to(at::kBFloat16), eight.param, context);

  EXPECT_LT((y.to(at::kFloat) - wanted).abs().max().item<double>(), tolerance);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LT((logits - wanted).abs().max().item<double>(), tolerance);
}

TEST(WeightForm, OfEightBitsLooksUpScaledRows) {
  const EightBits eight;
  StepContext context(Mode::Prefill, 1);
  const c10::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor({4, 0, 5, 4}, at::kLong).view({2, 2});

  const at::Tensor rows = embedding(ids, eight.param, context);

  EXPECT_TRUE(at::equal(
      rows, eight.wide().index_select(0, ids.view({-1})).to(at::kBFloat16).view({2, 2, kInputs})));
}

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(WeightForm, WithSplitInputsIsNeitherATableNorAHead) {
  const Param param = split(1);
  StepContext context(Mode::Train, 1);
  const at::Tensor ids = at::zeros({1, 2}, at::kLong), x = random({1, 2, kInputs}, 1);

  EXPECT_THAT(refusal([&] { embedding(ids, param, context); }), HasSubstr("w is a table"));
  EXPECT_THAT(refusal([&] { vocab_logits(x, param, context); }), HasSubstr("w is an output head"));
}

}  // namespace
}  // namespace tessera::nn
