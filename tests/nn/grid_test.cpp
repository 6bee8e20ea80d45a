// SPDX-License-Identifier: Apache-2.0
// timeout: 300
// Layers on a grid of ranks (2d, 2.5d, 3d) against the same layers whole: values, gradients, masks,
// and what moves.
#include "tessera/nn/tensor_parallel/grid.h"

#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/grid_ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn::on_grids {
namespace {

using ::testing::HasSubstr;
using enum LogicalAxis;

// Five samples don't divide evenly; nor do 10 features over 2 and 3 ranks.
TEST(GridLinear, PairsAreTheWholeLayers) {
  for (const std::int64_t samples : {4, 5, 12}) {
    for (const std::int64_t features : {48, 10}) {
      SCOPED_TRACE(std::to_string(samples) + " samples, " + std::to_string(features) + " features");
      const Layers mlp =
          [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
            return linear(
                nn::activate(linear(x, p[0], &p[1], c), ops::Activation::GeluTanh), p[2], &p[3], c);
          };
      expect_same(mlp,
                  random({samples, kT, kC}, 1),
                  random({samples, kT, kC}, 2),
                  {{random({features, kC}, 3), {Ffn, Embed}},
                   {random({features}, 4), {Ffn}},
                   {random({kC, features}, 5), {Embed, Ffn}},
                   {random({kC}, 6), {Embed}}});
    }
  }
}

// Weight gradients that are put off find the same.
TEST(GridLinear, DefersItsWeightGradients) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return linear(linear(layer_norm(x, p[4], p[5], 1e-5, c), p[0], &p[1], c), p[2], &p[3], c);
  };
  const std::vector<Declared> declared = {{random({10, kC}, 3), {Ffn, Embed}},
                                          {random({10}, 4), {Ffn}},
                                          {random({kC, 10}, 5), {Embed, Ffn}},
                                          {random({kC}, 6), {Embed}},
                                          {random({kC}, 7), {Embed}},
                                          {random({kC}, 8), {Embed}}};
  const at::Tensor x = random({4, kT, kC}, 1), dy = random({4, kT, kC}, 2);
  const Batch batch = batch_of(4);
  for (const Grid& grid : kGrids) {
    on_grid(grid, [&](comm::World&, const TensorParallel& tensor) {
      std::vector<std::vector<at::Tensor>> grads;
      for (const bool defers : {false, true}) {
        std::vector<PlacedParam> params = placed(declared, &tensor);
        StepContext context(Mode::Train, 1);
        context.batch = &batch;
        context.tensor = &tensor;
        context.set_deferring(defers);
        const at::Tensor in = own_part(x, tensor).clone().set_requires_grad(true);
        std::vector<at::Tensor> inputs = {in};
        for (const PlacedParam& param : params)
          inputs.push_back(static_cast<const Param&>(param).tensor());
        torch::autograd::grad({layers(in, params, context)},
                              inputs,
                              {own_part(dy, tensor)},
                              std::nullopt,
                              false,
                              true);
        context.run_deferred();
        grads.emplace_back();
        for (PlacedParam& param : params)
          grads.back().push_back(param.grad().clone());
      }
      for (std::size_t p = 0; p < declared.size(); ++p)
        EXPECT_TRUE(at::equal(grads[0][p], grads[1][p])) << grid.name << ", parameter " << p;
    });
  }
}

// A mean far from zero would drown the variance where squares are summed without it.
TEST(GridLayerNorm, SumsOverTheChannelsOfAllRanks) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return layer_norm(x, p[0], p[1], 1e-5, c);
  };
  const std::vector<Declared> declared = {{random({kC}, 7), {Embed}}, {random({kC}, 8), {Embed}}};
  expect_same(layers, random({5, kT, kC}, 1), random({5, kT, kC}, 2), declared);
  expect_same(layers, random({5, kT, kC}, 1) + 100, random({5, kT, kC}, 2), declared, 1e-4);
}

TEST(GridRmsNorm, SumsOverTheChannelsOfAllRanks) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return rms_norm(x, p[0], 1e-5, c);
  };
  expect_same(
      layers, random({5, kT, kC}, 1) + 1, random({5, kT, kC}, 2), {{random({kC}, 7), {Embed}}});
}

Layers attention_layer(double p, const at::Tensor& mask = {}) {
  return
      [p, mask](const at::Tensor& x, const std::vector<PlacedParam>& params, StepContext& context) {
        const at::Tensor h = layer_norm(x, params[4], params[5], 1e-5, context);
        const HeadRange heads = heads_of(params[0]);
        const auto qkv = split_heads(linear(h, params[0], &params[1], context), 3, heads.count);
        class Nothing final : public Block {
          void declare(Params&) override {}
          Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
        };
        const Nothing block;
        ops::AttentionArgs args;
        args.first_head = heads.first;
        args.mask_BS = mask;
        args.dropout = context.dropout("attention", p);
        const at::Tensor y = attention(qkv[0], qkv[1], qkv[2], args, block, context);
        const at::Tensor out = linear(merge_heads(y), params[2], &params[3], context);
        return x + nn::dropout(out, context.dropout("output", p));
      };
}

// Queries and keys are sums that are split too, and a score's rounding error grows with the score:
// so these weights keep the size of their input, as those of a model do.
std::vector<Declared> attention_params(std::int64_t H, std::int64_t K) {
  return {{random({3, H, K, kC}, 3) / 5, {None, Heads, None, Embed}},
          {random({3, H, K}, 4) / 5, {None, Heads, None}},
          {random({kC, H * K}, 5) / 5, {Embed, Heads}, K},
          {random({kC}, 6), {Embed}},
          {random({kC}, 7), {Embed}},
          {random({kC}, 8), {Embed}}};
}

TEST(GridAttention, IsCutByWholeHeadsAndSamples) {
  for (const std::int64_t heads : {4, 5}) {
    expect_same(attention_layer(0.0),
                random({5, kT, kC}, 1),
                random({5, kT, kC}, 2),
                attention_params(heads, 6));
  }
}

TEST(GridAttention, DropsWhatOneDeviceDrops) {
  expect_same(
      attention_layer(0.5), random({5, kT, kC}, 1), random({5, kT, kC}, 2), attention_params(5, 6));
}

// Every sample has padding of another length.
TEST(GridAttention, MasksThePaddingOfItsOwnSamples) {
  const at::Tensor mask =
      at::arange(kT).unsqueeze(0).lt(at::arange(2, 7).unsqueeze(1)).to(at::kLong);
  expect_same(attention_layer(0.0, mask),
              random({5, kT, kC}, 1),
              random({5, kT, kC}, 2),
              attention_params(4, 6));
}

TEST(GridDropout, OfARanksPartIsAPartOfTheMask) {
  const at::Tensor ones = at::ones({5, kT, kC});
  const Batch batch = batch_of(5);
  StepContext alone(Mode::Train, 1);
  alone.batch = &batch;
  const at::Tensor mask = nn::dropout(ones, alone.dropout("output", 0.5));
  for (const Grid& grid : kGrids) {
    on_grid(grid, [&](comm::World&, const TensorParallel& tensor) {
      StepContext context(Mode::Train, 1);
      context.batch = &batch;
      context.tensor = &tensor;
      EXPECT_TRUE(at::equal(
          nn::dropout(own_part(ones, tensor).contiguous(), context.dropout("output", 0.5)),
          own_part(mask, tensor)))
          << grid.name;
    });
  }
}

// 13 rows over 2 and 3 ranks; a token of every rank's rows, and some that come twice.
TEST(GridEmbedding, LooksRowsUpWhereTheyAre) {
  for (const std::int64_t samples : {4, 5}) {
    const at::Tensor ids =
        at::randint(0, 13, {samples, kT}, at::make_generator<at::CPUGeneratorImpl>(3), at::kLong);
    const Layers layers =
        [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
          const at::Tensor positions = at::arange(kT, at::kLong).expand({samples, kT});
          return x + embedding(ids, p[0], c) + embedding(positions, p[1], c);
        };
    expect_same(layers,
                random({samples, kT, kC}, 1),
                random({samples, kT, kC}, 2),
                {{random({13, kC}, 3), {Vocab, Embed}},
                 {random({kT, kC}, 4), {None, Embed}, 1, Role::PositionTable}});
  }
}

TEST(GridEmbedding, RefusesATokenOfNobody) {
  for (const Grid& grid : kGrids) {
    EXPECT_THROW(on_grid(grid,
                         [](comm::World&, const TensorParallel& tensor) {
                           const PlacedParam table({random({13, kC}, 3), {Vocab, Embed}}, &tensor);
                           StepContext context(Mode::Eval, 1);
                           context.tensor = &tensor;
                           embedding(at::full({9, 4}, 13, at::kLong), table, context);
                         }),
                 Error)
        << grid.name;
  }
}

TEST(GridLoss, IsTheWholeMicroBatchsAndVocabularys) {
  for (const double smoothing : {0.0, 0.1}) {
    const Layers layers =
        [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
          return vocab_loss(x, p[0], some_labels(5, 29), smoothing, c).sum;
        };
    expect_same(layers,
                random({5, kT, kC}, 1),
                at::scalar_tensor(0.25, at::kDouble),
                {{random({29, kC}, 3), {Vocab, Embed}}});
  }
}

TEST(GridLoss, GivesTheLogitsOfAllSamplesToEveryRank) {
  const at::Tensor x = random({5, kT, kC}, 1), labels = some_labels(5, 29);
  const Declared table{random({29, kC}, 3), {Vocab, Embed}};
  const Batch batch = batch_of(5);
  const auto loss = [&](const PlacedParam& weight, const at::Tensor& in, StepContext& context) {
    context.batch = &batch;
    context.want_logits = true;
    return vocab_loss(in, weight, labels, 0.0, context);
  };
  StepContext alone(Mode::Eval, 1);
  const PlacedParam whole(table, nullptr);
  const VocabLoss expected = loss(whole, x, alone);
  for (const Grid& grid : kGrids) {
    on_grid(grid, [&](comm::World&, const TensorParallel& tensor) {
      const PlacedParam part(table, &tensor);
      StepContext context(Mode::Eval, 1);
      context.tensor = &tensor;
      const VocabLoss got = loss(part, own_part(x, tensor), context);
      expect_near(got.sum, expected.sum, kTolerance);
      expect_near(got.logits, expected.logits, kTolerance);
    });
  }
}

TEST(GridLogits, HaveTheGradientOfTheWhole) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return vocab_logits(x, p[0], c).mean(at::IntArrayRef{0, 1});
  };
  expect_same(
      layers, random({5, kT, kC}, 1), random({29}, 2), {{random({29, kC}, 3), {Vocab, Embed}}});
}

TEST(GridLoss, In16BitsDiffersByRoundingAlone) {
  // bf16 keeps 8 bits, and ranks round their parts of sums.
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kBFloat16, 2e-2}, std::pair{at::kHalf, 2e-3}}) {
    const Layers layers = [&](const at::Tensor& x,
                              const std::vector<PlacedParam>& p,
                              StepContext& c) {
      const at::Tensor h = layer_norm(x, p[5], p[6], 1e-5, c);
      return vocab_loss(linear(nn::activate(linear(h, p[1], &p[2], c), ops::Activation::GeluTanh),
                               p[3],
                               &p[4],
                               c),
                        p[0],
                        some_labels(5, 29),
                        0.1,
                        c)
          .sum;
    };
    expect_same(layers,
                random({5, kT, kC}, 1).to(dtype),
                at::scalar_tensor(1.0, at::kDouble),
                {{random({29, kC}, 3).to(dtype), {Vocab, Embed}},
                 {(random({48, kC}, 4) / 5).to(dtype), {Ffn, Embed}},
                 {random({48}, 5).to(dtype), {Ffn}},
                 {(random({kC, 48}, 6) / 7).to(dtype), {Embed, Ffn}},
                 {random({kC}, 7).to(dtype), {Embed}},
                 {random({kC}, 8).to(dtype), {Embed}},
                 {random({kC}, 9).to(dtype), {Embed}}},
                tolerance,
                at::kFloat);
  }
}

// With one text on four and on eight ranks, most of them have no sample.
TEST(GridLayers, OfFewerSamplesThanRanksAreTheSame) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return vocab_loss(
               attention_layer(0.5)(x, p, c), p[6], at::arange(kT, at::kLong).unsqueeze(0), 0.0, c)
        .sum;
  };
  std::vector<Declared> declared = attention_params(4, 6);
  declared.push_back({random({29, kC}, 9) / 5, {Vocab, Embed}});
  expect_same(layers, random({1, kT, kC}, 1), at::scalar_tensor(1.0, at::kDouble), declared);
}

/// Data that one rank sends in collectives and messages, forward and backward.
struct Moved {
  comm::Traffic forward, backward;
};
Moved moved(const Grid& grid,
            const Layers& layers,
            const std::vector<Declared>& declared,
            std::int64_t samples) {
  Moved out;
  const Batch batch = batch_of(samples);
  on_grid(grid, [&](comm::World& world, const TensorParallel& tensor) {
    std::vector<PlacedParam> params = placed(declared, &tensor);
    StepContext context(Mode::Train, 1);
    context.batch = &batch;
    context.tensor = &tensor;
    const at::Tensor in =
        own_part(random({samples, kT, kC}, 1), tensor).clone().set_requires_grad(true);
    std::vector<at::Tensor> inputs = {in};
    for (const PlacedParam& param : params)
      inputs.push_back(static_cast<const Param&>(param).tensor());
    const comm::Traffic start = world.transport().traffic();
    const at::Tensor y = layers(in, params, context);
    const comm::Traffic middle = world.transport().traffic();
    torch::autograd::grad({y}, inputs, {y.detach()}, std::nullopt, false, true);
    if (world.rank() == 0) out = {middle - start, world.transport().traffic() - middle};
  });
  return out;
}

// With blocks x (rows x inputs), w and y of a rank on a q x q grid: each of q steps broadcasts two
// of them, or broadcasts one and sends a sum to its owner, which does not send its own.
TEST(GridTraffic, OfALinearLayerIn2dIsThatOfSumma) {
  constexpr std::int64_t kSamples = 12, kF = 48;
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return linear(x, p[0], nullptr, c);
  };
  const std::vector<Declared> declared = {{random({kF, kC}, 3), {Ffn, Embed}}};
  for (const Grid& grid : {kTwo, kNine, kHalf}) {
    SCOPED_TRACE(grid.name);
    const std::int64_t q = grid.row, rows = kSamples * kT / (q * grid.depth);
    const std::int64_t x = rows * kC / q, w = kF * kC / (q * q), sums = grid.depth > 1 ? 1 : 0;

    const Moved found = moved(grid, layers, declared, kSamples);

    EXPECT_EQ(found.forward.elements, q * (x + w));
    EXPECT_EQ(found.forward.calls, 2 * q);
    EXPECT_EQ(found.forward.bytes, 4 * q * (x + w));
    // dx: the weight and terms of dx; dw: the input and terms of dw, and their sum over the depth.
    EXPECT_EQ(found.backward.elements, q * w + (q - 1) * x + q * x + (q - 1) * w + sums * 2 * w);
    EXPECT_EQ(found.backward.calls, 2 * (2 * q - 1) + sums);
  }
}

// The table is distributed as for lookups, so that terms of the output are sent to its owner.
TEST(GridTraffic, OfTheHeadIn2dSendsTermsOfLogits) {
  constexpr std::int64_t kSamples = 12, kV = 36;
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return linear(x, p[0], nullptr, c);
  };
  for (const Grid& grid : {kTwo, kNine}) {
    SCOPED_TRACE(grid.name);
    const std::int64_t q = grid.row, y = kSamples * kT / q * kV / q, w = kV * kC / (q * q);

    const Moved found = moved(grid, layers, {{random({kV, kC}, 3), {Vocab, Embed}}}, kSamples);

    EXPECT_EQ(found.forward.elements, (q - 1) * y + q * w);
    EXPECT_EQ(found.forward.calls, 2 * q - 1);
    EXPECT_EQ(found.backward.elements, 2 * q * y + (2 * q - 1) * w);
    EXPECT_EQ(found.backward.calls, 4 * q - 1);
  }
}

// Parts of input and weight are gathered, the output's terms scattered: q times a rank's part each.
TEST(GridTraffic, OfALinearLayerIn3dIsThreePartsOfAFace) {
  constexpr std::int64_t kSamples = 8, kF = 48, kQ = 2;
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return linear(x, p[0], nullptr, c);
  };
  constexpr std::int64_t kRows = kSamples * kT / (kQ * kQ);
  constexpr std::int64_t kX = kRows * kC / kQ, kY = kRows * kF / kQ, kW = kF * kC / (kQ * kQ * kQ);

  const Moved found = moved(kThree, layers, {{random({kF, kC}, 3), {Ffn, Embed}}}, kSamples);

  EXPECT_EQ(found.forward.elements, kQ * (kX + kW + kY));
  EXPECT_EQ(found.forward.calls, 3);
  EXPECT_EQ(found.backward.elements, kQ * (kY + kW + kX + kX + kW));
  EXPECT_EQ(found.backward.calls, 5);
}

// Two fp64 sums of each row from every rank of it, both ways; gradients of two vectors.
TEST(GridTraffic, OfANormIsTwoSumsOfEachRow) {
  constexpr std::int64_t kSamples = 12;
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return layer_norm(x, p[0], p[1], 1e-5, c);
  };
  for (const Grid& grid : kGrids) {
    SCOPED_TRACE(grid.name);
    const std::int64_t q = grid.row, rows = kSamples * kT / (grid.depth * grid.col);

    const Moved found =
        moved(grid, layers, {{random({kC}, 7), {Embed}}, {random({kC}, 8), {Embed}}}, kSamples);

    EXPECT_EQ(found.forward.elements, q * 2 * rows);
    EXPECT_EQ(found.forward.calls, 1);
    EXPECT_EQ(found.backward.elements, q * 2 * rows + 2 * 2 * kC / q);
    EXPECT_EQ(found.backward.calls, 2);
  }
}

TEST(GridPlaces, CoverEveryParameterOnceExceptCopies) {
  const std::vector<Declared> declared = {
      {at::zeros({3, 5, 6, kC}), {None, Heads, None, Embed}},
      {at::zeros({kC, 30}), {Embed, Heads}, 6},
      {at::zeros({3, 5, 6}), {None, Heads, None}},
      {at::zeros({13, kC}), {Vocab, Embed}},
      {at::zeros({kT, kC}), {None, Embed}, 1, Role::PositionTable},
      {at::zeros({kC}), {Embed}}};
  for (const Grid& grid : kGrids) {
    on_grid(grid, [&](comm::World& world, const TensorParallel& tensor) {
      for (const Declared& one : declared) {
        const PlacedParam param(one, &tensor);
        const ParamInfo& info = static_cast<const Param&>(param).info();
        at::Tensor times = at::zeros(one.value.sizes(), at::kDouble);
        // Ranks along axes that do not cut it hold the same values: the first of them counts.
        const mesh::AxisSet same = mesh::AxisSet::tp() - info.spec.axes();
        if (world.mesh().is_first(world.rank(), same)) part_of(times, info.held()).add_(1);
        const std::vector<double> sum =
            world.all_reduce(world.everyone(),
                             {times.data_ptr<double>(), times.data_ptr<double>() + times.numel()},
                             comm::Op::Sum,
                             TESSERA_HERE("test"));
        for (const double count : sum)
          ASSERT_EQ(count, 1.0) << grid.name << ", " << one.value.sizes();
        EXPECT_LE(info.local_numel(), info.room_numel());
      }
    });
  }
}

TEST(GridPlaces, RefuseFewerHeadsThanTheSide) {
  try {
    on_grid(kNine, [](comm::World&, const TensorParallel& tensor) {
      const PlacedParam param({random({kC, 12}, 1), {Embed, Heads}, 6}, &tensor);
    });
    FAIL() << "two heads were cut into three parts";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be cut into 9 parts"));
  }
}

}  // namespace
}  // namespace tessera::nn::on_grids
