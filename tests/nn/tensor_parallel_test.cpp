// SPDX-License-Identifier: Apache-2.0
// Layers whose weights several ranks hold against the same layers whole: values, gradients, masks,
// and what moves.
#include "tessera/nn/tensor_parallel/tensor_parallel.h"

#include <array>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/placed_param.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {
namespace {

using ::testing::HasSubstr;
using enum LogicalAxis;

// For sums of some hundred fp32 products that are split differently.
constexpr double kTolerance = 2e-6;

/// Calls fn on `ranks` tensor-parallel ranks; `sequence`: with shares of the tokens.
void on_ranks(int ranks,
              bool sequence,
              const std::function<void(comm::World&, const TensorParallel&)>& fn) {
  comm::run_threads(mesh::Mesh({.tp_col = ranks}), [&](comm::World& world) {
    at::set_num_threads(1);
    const TensorParallel tensor{.world = &world,
                                .group = &world.group(mesh::AxisSet::tp()),
                                .mode = TensorMode::OneD,
                                .sequence = sequence};
    fn(world, tensor);
  });
}

/// This rank's tokens [B, T / ranks, ...].
at::Tensor tokens_of(const at::Tensor& x, const TensorParallel& tensor) {
  if (!tensor.sequence || x.dim() < 3) return x;
  const std::int64_t share = x.size(1) / tensor.group->size();
  return x.narrow(1, tensor.group->index * share, share);
}

/// The sum over the ranks.
at::Tensor sum_of(const at::Tensor& x, comm::World& world) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  const double* const values = wide.const_data_ptr<double>();
  const std::vector<double> sum = world.all_reduce(
      world.everyone(), {values, values + wide.numel()}, comm::Op::Sum, TESSERA_HERE("test"));
  return at::tensor(sum, at::kDouble).view(x.sizes());
}

/// Compares the layers on one rank with those on several, with whole and with split tokens.
void expect_same(const Layers& layers,
                 const at::Tensor& x,
                 const at::Tensor& dy,
                 const std::vector<Declared>& declared,
                 double tolerance = kTolerance) {
  std::vector<PlacedParam> whole = placed(declared, nullptr);
  StepContext alone(Mode::Train, 1);
  const Result expected = run(layers, x, dy, whole, alone);
  for (const int ranks : {2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      on_ranks(ranks, sequence, [&](comm::World& world, const TensorParallel& tensor) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, sequence " + std::to_string(sequence));
        std::vector<PlacedParam> params = placed(declared, &tensor);
        StepContext context(Mode::Train, 1);
        context.tensor = &tensor;
        const Result got =
            run(layers, tokens_of(x, tensor), tokens_of(dy, tensor), params, context);
        EXPECT_LT(error_of(got.y, tokens_of(expected.y, tensor)), tolerance);
        EXPECT_LT(error_of(got.dx, tokens_of(expected.dx, tensor)), tolerance);
        for (std::size_t p = 0; p < params.size(); ++p) {
          SCOPED_TRACE("parameter " + std::to_string(p));
          const bool replicated = !static_cast<const Param&>(params[p]).info().cut();
          // A parameter that a rank uses on its tokens only gets their part of the gradient.
          const at::Tensor grad =
              sequence && replicated ? sum_of(got.grads[p], world) : got.grads[p];
          EXPECT_LT(error_of(grad, params[p].part(expected.grads[p])), tolerance);
        }
      });
    }
  }
}

constexpr std::int64_t kB = 2, kT = 12, kC = 24;

// 10 features over 3 ranks: 4, 3, 3.
TEST(TensorParallelLinear, ColumnsThenRowsAreTheWholeLayers) {
  for (const std::int64_t features : {48, 10}) {
    const Layers mlp = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
      return linear(
          nn::activate(linear(x, p[0], &p[1], c), ops::Activation::GeluTanh), p[2], &p[3], c);
    };
    expect_same(mlp,
                random({kB, kT, kC}, 1),
                random({kB, kT, kC}, 2),
                {{random({features, kC}, 3), {Ffn, Embed}},
                 {random({features}, 4), {Ffn}},
                 {random({kC, features}, 5), {Embed, Ffn}},
                 {random({kC}, 6), {Embed}}});
  }
}

Layers attention_layer(double p) {
  return [p](const at::Tensor& x, const std::vector<PlacedParam>& params, StepContext& context) {
    static const nn::Batch batch = [] {
      nn::Batch out;
      out.sample_ids = {7, 3};
      return out;
    }();
    context.batch = &batch;
    context.block_name = "h.0";
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
    args.dropout = context.dropout("attention", p);
    const at::Tensor y = attention(qkv[0], qkv[1], qkv[2], args, block, context);
    const at::Tensor out = linear(merge_heads(y), params[2], &params[3], context);
    return x + nn::dropout(out, context.dropout("output", p));
  };
}

// Weights that keep the size of their input: with scores of hundreds the softmax would amplify
// rounding.
std::vector<Declared> attention_params(std::int64_t H, std::int64_t K) {
  return {{random({3, H, K, kC}, 3) / std::sqrt(kC), {None, Heads, None, Embed}},
          {random({3, H, K}, 4), {None, Heads, None}},
          {random({kC, H * K}, 5), {Embed, Heads}, K},
          {random({kC}, 6), {Embed}},
          {random({kC}, 7), {Embed}},
          {random({kC}, 8), {Embed}}};
}

// 5 heads over 2, 3 and 4 ranks.
TEST(TensorParallelAttention, IsCutByWholeHeadsEvenlyOrNot) {
  for (const std::int64_t heads : {4, 5}) {
    expect_same(attention_layer(0.0),
                random({kB, kT, kC}, 1),
                random({kB, kT, kC}, 2),
                attention_params(heads, 6));
  }
}

TEST(TensorParallelAttention, DropsWhatOneDeviceDrops) {
  expect_same(attention_layer(0.5),
              random({kB, kT, kC}, 1),
              random({kB, kT, kC}, 2),
              attention_params(5, 6));
}

TEST(TensorParallelDropout, OfASharesOfTheTokensIsAShareOfTheMask) {
  const at::Tensor ones = at::ones({2, 12, 8});
  const ops::DropoutKey whole{.p = 0.5, .key = 11, .sample_ids = {4, 9}};
  const at::Tensor mask = ops::dropout(ones, whole);

  for (std::int64_t part = 0; part < 3; ++part) {
    ops::DropoutKey key = whole;
    key.parts = {part};
    EXPECT_TRUE(
        at::equal(ops::dropout(ones.narrow(1, 4 * part, 4), key), mask.narrow(1, 4 * part, 4)));
  }
  EXPECT_FALSE(at::equal(mask.narrow(1, 0, 4), mask.narrow(1, 4, 4)));
}

// 13 rows over 2, 3 and 4 ranks; a token of every rank's rows, and one that comes twice.
TEST(TensorParallelEmbedding, LooksRowsUpWhereTheyAre) {
  const at::Tensor ids =
      at::tensor({0, 12, 5, 5, 6, 7, 1, 2, 3, 4, 8, 9, 10, 11, 0, 0, 3, 12, 6, 2, 9, 4, 5, 1})
          .to(at::kLong)
          .view({kB, kT});
  const Layers layers =
      [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
        const at::Tensor positions = at::arange(kT, at::kLong).expand({kB, kT});
        return x + embedding(ids, p[0], c) + embedding(positions, p[1], c);
      };
  expect_same(layers,
              random({kB, kT, kC}, 1),
              random({kB, kT, kC}, 2),
              {{random({13, kC}, 3), {Vocab, Embed}},
               {random({kT, kC}, 4), {None, Embed}, 1, Role::PositionTable}});
}

TEST(TensorParallelEmbedding, RefusesATokenOfNobody) {
  EXPECT_THROW(on_ranks(2,
                        false,
                        [](comm::World&, const TensorParallel& tensor) {
                          const PlacedParam table({random({13, kC}, 3), {Vocab, Embed}}, &tensor);
                          StepContext context(Mode::Eval, 1);
                          context.tensor = &tensor;
                          embedding(at::full({1, 4}, 13, at::kLong), table, context);
                        }),
               Error);
}

at::Tensor some_labels(std::int64_t vocab) {
  at::Tensor labels =
      at::randint(0, vocab, {kB, kT}, at::make_generator<at::CPUGeneratorImpl>(9), at::kLong);
  labels[0][3].fill_(-100);
  labels[1][kT - 1].fill_(-100);
  return labels;
}

// The mean over a rank's own shard would be another number than the one over the vocabulary.
TEST(TensorParallelLoss, IsTheWholeVocabularysWithAndWithoutLabelSmoothing) {
  for (const double smoothing : {0.0, 0.1}) {
    const Layers layers =
        [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
          return vocab_loss(x, p[0], some_labels(29), smoothing, c).sum;
        };
    expect_same(layers,
                random({kB, kT, kC}, 1),
                at::scalar_tensor(0.25, at::kDouble),
                {{random({29, kC}, 3), {Vocab, Embed}}});
  }
}

TEST(TensorParallelLoss, DoesNotOverflowWithLargeLogits) {
  const Layers layers =
      [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
        return vocab_loss(x, p[0], some_labels(29), 0.0, c).sum;
      };
  expect_same(layers,
              random({kB, kT, kC}, 1) * 100,
              at::scalar_tensor(1.0, at::kDouble),
              {{random({29, kC}, 3), {Vocab, Embed}}},
              1e-4);
}

TEST(TensorParallelLoss, In16BitsDiffersByRoundingAlone) {
  // bf16 keeps 8 bits, and every rank rounds its part of a sum.
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kBFloat16, 2e-2}, std::pair{at::kHalf, 2e-3}}) {
    const Layers layers = [&](const at::Tensor& x,
                              const std::vector<PlacedParam>& p,
                              StepContext& c) {
      return vocab_loss(linear(nn::activate(linear(x, p[1], &p[2], c), ops::Activation::GeluTanh),
                               p[3],
                               &p[4],
                               c),
                        p[0],
                        some_labels(29),
                        0.1,
                        c)
          .sum;
    };
    expect_same(layers,
                random({kB, kT, kC}, 1).to(dtype),
                at::scalar_tensor(1.0, at::kDouble),
                {{random({29, kC}, 3).to(dtype), {Vocab, Embed}},
                 {(random({48, kC}, 4) / 5).to(dtype), {Ffn, Embed}},
                 {random({48}, 5).to(dtype), {Ffn}},
                 {(random({kC, 48}, 6) / 7).to(dtype), {Embed, Ffn}},
                 {random({kC}, 7).to(dtype), {Embed}}},
                tolerance);
  }
}

TEST(TensorParallelLogits, AreGatheredFromUnevenShares) {
  const Declared table{random({29, kC}, 3), {Vocab, Embed}};
  const at::Tensor x = random({kB, kT, kC}, 1);
  StepContext alone(Mode::Prefill, 1);
  const PlacedParam whole(table, nullptr);
  const at::Tensor expected = vocab_logits(x, whole, alone);
  on_ranks(3, true, [&](comm::World&, const TensorParallel& tensor) {
    const PlacedParam part(table, &tensor);
    StepContext context(Mode::Prefill, 1);
    context.tensor = &tensor;

    const at::Tensor logits = vocab_logits(x, part, context);

    EXPECT_EQ(logits.sizes(), expected.sizes());
    EXPECT_LT(error_of(logits, expected), kTolerance);
  });
}

TEST(TensorParallelLogits, HaveTheGradientOfTheWhole) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return vocab_logits(x, p[0], c).mean(at::IntArrayRef{0, 1});
  };
  expect_same(
      layers, random({kB, kT, kC}, 1), random({29}, 2), {{random({29, kC}, 3), {Vocab, Embed}}});
}

// All-reduces count twice their data, gathers and scatters once theirs.
TEST(TensorParallelLayer, MeetsTwiceForwardAndTwiceBackward) {
  const Layers attention = attention_layer(0.0);
  const Layers both = [&](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    const at::Tensor h = attention(x, p, c);
    return h + linear(nn::activate(linear(h, p[6], nullptr, c), ops::Activation::GeluTanh),
                      p[7],
                      nullptr,
                      c);
  };
  std::vector<Declared> declared = attention_params(4, 6);
  declared.push_back({random({48, kC}, 9), {Ffn, Embed}});
  declared.push_back({random({kC, 48}, 10), {Embed, Ffn}});
  for (const bool sequence : {false, true}) {
    on_ranks(2, sequence, [&](comm::World& world, const TensorParallel& tensor) {
      std::vector<PlacedParam> params = placed(declared, &tensor);
      StepContext context(Mode::Train, 1);
      context.tensor = &tensor;
      const at::Tensor x = tokens_of(random({kB, kT, kC}, 1), tensor);
      const std::int64_t before = world.transport().traffic(*tensor.group).elements;

      const at::Tensor in = x.clone().set_requires_grad(true);
      const at::Tensor y = both(in, params, context);
      const std::int64_t forward = world.transport().traffic(*tensor.group).elements - before;
      torch::autograd::grad({y}, {in}, {y.detach()});
      const std::int64_t backward =
          world.transport().traffic(*tensor.group).elements - before - forward;

      EXPECT_EQ(forward, 2 * 2 * kB * kT * kC);
      EXPECT_EQ(backward, 2 * 2 * kB * kT * kC);
    });
  }
}

TEST(TensorParallelPlaces, RefuseFewerHeadsThanRanks) {
  try {
    on_ranks(3, false, [](comm::World&, const TensorParallel& tensor) {
      const PlacedParam param({random({kC, 12}, 1), {Embed, Heads}, 6}, &tensor);
    });
    FAIL() << "two heads were cut into three parts";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be cut into 3 parts"));
  }
}

TEST(TensorParallelTokens, ThatDoNotDivideAreRefused) {
  try {
    on_ranks(2, true, [](comm::World&, const TensorParallel& tensor) {
      const PlacedParam table({random({8, kC}, 3), {None, Embed}, 1, Role::PositionTable}, &tensor);
      StepContext context(Mode::Train, 1);
      context.tensor = &tensor;
      embedding(at::zeros({1, 5}, at::kLong), table, context);
    });
    FAIL() << "five tokens were shared by two ranks";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("5 tokens"));
  }
}

}  // namespace
}  // namespace tessera::nn
