// SPDX-License-Identifier: Apache-2.0
// Layers of weights in tiles against the same layers of whole weights, and which tiles are in
// memory meanwhile.
#include "tessera/nn/tiled_form.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using test::TestParam;

at::Tensor seeded(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}
at::Tensor leaf_of(const at::Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}

/// A weight [rows, columns] in three tiles, which records what is fetched and released.
class InTiles {
 public:
  explicit InTiles(const at::Tensor& value) : param_(info(value)) {
    const std::int64_t all = value.size(0), each = (all + 2) / 3;
    std::vector<WeightTile> tiles;
    for (std::int64_t begin = 0; begin < all; begin += each) {
      const std::int64_t rows = std::min(each, all - begin);
      const at::Tensor part = value.narrow(0, begin, rows);
      auto tile = std::make_shared<Param>(info(part));
      tile->attach(leaf_of(part));
      grads_.push_back(at::full(part.sizes(), 123.0F));
      tile->grad().open(grads_.back());
      tiles.push_back({std::move(tile), begin, rows});
    }
    form_ = std::make_shared<TiledForm>(std::move(tiles), param_);
    form_->bind([this](std::size_t tile) { calls_ += "+" + std::to_string(tile); },
                [this](std::size_t tile) { calls_ += "-" + std::to_string(tile); });
    param_.extend(form_);
  }
  [[nodiscard]] const Param& param() const { return param_; }
  [[nodiscard]] const at::Tensor& edge() const { return edge_of(param_); }
  [[nodiscard]] at::Tensor grad() const { return at::cat(grads_); }
  /// What was fetched (+) and released (-) since the last call.
  [[nodiscard]] std::string calls() { return std::exchange(calls_, ""); }

 private:
  static std::shared_ptr<const ParamInfo> info(const at::Tensor& value) {
    auto out = std::make_shared<ParamInfo>();
    out->name = "w";
    out->shape = out->matrix_shape = value.sizes().vec();
    out->axes.assign(out->shape.size(), LogicalAxis::None);
    return out;
  }
  Param param_;
  std::shared_ptr<TiledForm> form_;
  std::vector<at::Tensor> grads_;
  std::string calls_;
};

constexpr const char* kEachInOrder = "+0-0+1-1+2-2";

TEST(TiledForm, LinearIsThatOfTheWholeWeightWithOneTileInMemoryAtATime) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    // The last tile has fewer rows.
    const at::Tensor value = seeded({40, 24}, 1).to(dtype);
    const TestParam whole(value), bias(seeded({40}, 2).to(dtype)), other(seeded({40}, 2).to(dtype));
    InTiles tiled(value);
    const at::Tensor x = leaf_of(seeded({2, 50, 24}, 3).to(dtype)), again = leaf_of(x),
                     dy = seeded({2, 50, 40}, 4).to(dtype);
    StepContext context(Mode::Train, 1);

    const at::Tensor y = linear(x, whole, &bias, context);
    const at::Tensor ours = linear(again, tiled.param(), &other, context);
    EXPECT_EQ(tiled.calls(), kEachInOrder);
    const auto dx = torch::autograd::grad(
        {y}, {x, whole.tensor(), bias.tensor()}, {dy}, std::nullopt, false, true);
    const auto our_dx = torch::autograd::grad(
        {ours}, {again, tiled.edge(), other.tensor()}, {dy}, std::nullopt, false, true);
    EXPECT_EQ(tiled.calls(), kEachInOrder);

    const double rounding = dtype == at::kFloat ? 1e-6 : 1e-2;
    EXPECT_EQ(ours.scalar_type(), dtype);
    EXPECT_LT(relative_error(ours, y), rounding);
    EXPECT_EQ(our_dx[0].scalar_type(), dtype);
    EXPECT_LT(relative_error(our_dx[0], dx[0]), rounding);
    EXPECT_LT(relative_error(tiled.grad(), whole.grad()), rounding);
    EXPECT_TRUE(at::equal(other.grad(), bias.grad()));
  }
}

TEST(TiledForm, TheLossOfAHeadIsThatOfTheWholeWeight) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const double softcap : {0.0, 5.0}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::to_string(softcap));
      const at::Tensor value = seeded({37, 16}, 1).to(dtype);
      const TestParam whole(value);
      InTiles tiled(value);
      const at::Tensor x = leaf_of(seeded({2, 9, 16}, 3).to(dtype)), again = leaf_of(x);
      at::Tensor labels = at::arange(18, at::kLong).view({2, 9});
      labels[1][3] = -100;
      StepContext context(Mode::Train, 1);
      context.want_logits = true;

      const VocabLoss loss = vocab_loss(x, whole, nullptr, labels, 0.1, context, softcap);
      const VocabLoss ours =
          vocab_loss(again, tiled.param(), nullptr, labels, 0.1, context, softcap);
      EXPECT_EQ(tiled.calls(), std::string(kEachInOrder) + kEachInOrder) << "logits, and the loss";
      const at::Tensor one = at::full_like(loss.sum, 0.25);
      const auto dx =
          torch::autograd::grad({loss.sum}, {x, whole.tensor()}, {one}, std::nullopt, false, true);
      const auto our_dx = torch::autograd::grad(
          {ours.sum}, {again, tiled.edge()}, {one}, std::nullopt, false, true);
      EXPECT_EQ(tiled.calls(), kEachInOrder);

      const double rounding = dtype == at::kFloat ? 2e-6 : 1e-2;
      EXPECT_LT(relative_error(ours.sum, loss.sum), rounding);
      EXPECT_LT(relative_error(ours.logits, loss.logits), rounding);
      EXPECT_LT(relative_error(our_dx[0], dx[0]), rounding);
      EXPECT_LT(relative_error(tiled.grad(), whole.grad()), rounding);
    }
  }
}

TEST(TiledForm, AnEmbeddingLooksUpTheSameRows) {
  const at::Tensor value = seeded({10, 8}, 1);
  const TestParam whole(value);
  InTiles tiled(value);
  const at::Tensor ids = at::tensor({9, 0, 3, 3, 5, 9}, at::kLong).view({2, 3}),
                   dy = seeded({2, 3, 8}, 2);
  StepContext context(Mode::Train, 1);

  const at::Tensor y = embedding(ids, whole, context);
  const at::Tensor ours = embedding(ids, tiled.param(), context);
  EXPECT_EQ(tiled.calls(), kEachInOrder);
  (void)torch::autograd::grad({y}, {whole.tensor()}, {dy}, std::nullopt, false, true);
  (void)torch::autograd::grad({ours}, {tiled.edge()}, {dy}, std::nullopt, false, true);

  EXPECT_EQ(tiled.calls(), "") << "the gradient of a table needs no values";
  EXPECT_TRUE(at::equal(ours, y));
  EXPECT_TRUE(at::equal(tiled.grad(), whole.grad()));
}

TEST(TiledForm, ReleasesATileWhenTheWorkFails) {
  InTiles tiled(seeded({10, 8}, 1));
  EXPECT_THROW(
      tiled_form_of(tiled.param())->each_tile([](const WeightTile& tile, const at::Tensor&) {
        if (tile.begin > 0) throw std::runtime_error("no");
      }),
      std::runtime_error);
  EXPECT_EQ(tiled.calls(), "+0-0+1-1");
}

}  // namespace
}  // namespace tessera::nn
