// SPDX-License-Identifier: Apache-2.0
// Samples that ranks cannot share evenly: their tokens with padding behind them, and attention that
// does not see the padding.
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/test_param.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/comm/world.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"
#include "tessera/ops/attention.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using test::TestParam;

constexpr std::int64_t kB = 2, kH = 4, kK = 8, kC = 3;
/// Five tokens leave some ranks of a ring of four without any.
constexpr std::array<std::int64_t, 3> kLengths = {5, 9, 16};
// A bound for sums of some dozen fp32 products that are split differently.
constexpr double kTolerance = 4e-6;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

/// The ranks that hold the tokens: `context` ranks share them, and `tensor` ranks split each share.
struct Sharing {
  ContextMode mode = ContextMode::Ring;
  int context = 1, tensor = 1;
  [[nodiscard]] std::string text() const {
    return (mode == ContextMode::Ring ? "ring " : "ulysses ") + std::to_string(context) +
           " tensor " + std::to_string(tensor);
  }
  /// A sample has a multiple of it as tokens.
  [[nodiscard]] std::int64_t unit() const {
    // Two chunks are split by two ranks, and four by four.
    const int chunks = context == 1 ? 1 : static_cast<int>(num_chunks(mode, 1));
    return static_cast<std::int64_t>(context) * std::max(chunks, tensor);
  }
};
constexpr std::array kSharings = {Sharing{ContextMode::Ring, 2},
                                  Sharing{ContextMode::Ring, 4},
                                  Sharing{ContextMode::Ulysses, 2},
                                  Sharing{ContextMode::Ulysses, 4},
                                  Sharing{ContextMode::Ring, 1, 2},
                                  Sharing{ContextMode::Ring, 1, 4},
                                  Sharing{ContextMode::Ring, 2, 2},
                                  Sharing{ContextMode::Ulysses, 2, 2}};

void on_ranks(const Sharing& how, const std::function<void(comm::World&, StepContext&)>& fn) {
  comm::run_threads(mesh::Mesh({.cp = how.context, .tp_col = how.tensor}), [&](comm::World& world) {
    at::set_num_threads(1);
    const ContextParallel shared{&world, &world.group({mesh::Axis::Cp}), how.mode};
    const TensorParallel tensor{
        .world = &world, .group = &world.group(mesh::AxisSet::tp()), .sequence = true};
    Batch batch;
    batch.sample_ids = {7, 3};
    StepContext context(Mode::Train, 1);
    context.batch = &batch;
    context.block_name = "layer.0";
    if (how.context > 1) context.context_parallel = &shared;
    if (how.tensor > 1) context.tensor = &tensor;
    fn(world, context);
  });
}

at::Tensor with_padding(const at::Tensor& x_BTC, std::int64_t tokens, double value = 0.0) {
  return at::constant_pad_nd(x_BTC, {0, 0, 0, tokens - x_BTC.size(1)}, value);
}
std::int64_t padded_length(std::int64_t tokens, const Sharing& how) {
  return (tokens + how.unit() - 1) / how.unit() * how.unit();
}

/// A rank's tokens of a sample whose length divides.
at::Tensor part_of(const at::Tensor& x_BTC, const StepContext& context) {
  const at::Tensor own =
      context.shares_tokens() ? own_tokens(x_BTC, *context.context_parallel) : x_BTC;
  if (!context.cuts_tokens()) return own;
  const std::int64_t share = own.size(1) / context.tensor->group->size();
  return own.narrow(1, share * context.tensor->group->index, share);
}

TEST(TakenTokens, AreThoseOfTheRankWithZerosBehindThem) {
  for (const Sharing& how : kSharings) {
    for (const std::int64_t tokens : kLengths) {
      SCOPED_TRACE(how.text() + " tokens " + std::to_string(tokens));
      const at::Tensor x = random({kB, tokens, kC}, 1);
      const at::Tensor padded = with_padding(x, padded_length(tokens, how));
      std::vector<at::Tensor> gradients(static_cast<std::size_t>(how.context * how.tensor));
      on_ranks(how, [&](comm::World& world, StepContext& context) {
        const at::Tensor in = x.detach().clone().set_requires_grad(true);
        const at::Tensor y = take_tokens(in, context);
        gradients[static_cast<std::size_t>(world.rank())] =
            torch::autograd::grad({y}, {in}, {at::ones_like(y)})[0];

        EXPECT_TRUE(at::equal(y, part_of(padded, context)));
      });
      at::Tensor sum = at::zeros_like(x);
      for (const at::Tensor& one : gradients)
        sum += one;

      EXPECT_TRUE(at::equal(sum, at::ones_like(x))) << "every token is taken once";
    }
  }
}

TEST(TakenTokens, AreAllOfThemOnOneRank) {
  StepContext context(Mode::Train, 1);
  const at::Tensor x = random({kB, 5, kC}, 1);
  EXPECT_TRUE(take_tokens(x, context).is_same(x));
}

TEST(WholeEmbedding, GivesEveryRankAllRows) {
  const at::Tensor ids = at::arange(10).view({2, 5});
  const at::Tensor values = random({10, kC}, 1);
  for (const Sharing& how : kSharings) {
    SCOPED_TRACE(how.text());
    on_ranks(how, [&](comm::World&, StepContext& context) {
      const TestParam table(values);
      EXPECT_TRUE(at::equal(whole_embedding(ids, table, context), values.view({2, 5, kC})));
    });
  }
}

class Nothing final : public Block {
  void declare(Params&) override {}
  Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
};

/// Not-a-number in the padding of all inputs shows that nothing reads it.
void expect_attention_of_one_device(const Sharing& how, std::int64_t tokens, bool with_bias) {
  std::vector<at::Tensor> whole;
  for (const std::uint64_t seed : {1, 2, 3, 4})
    whole.push_back(random({kB, kH, tokens, kK}, seed));
  const at::Tensor bias = random({kH, tokens, tokens}, 5);
  ops::AttentionArgs args{.causal = false};
  args.dropout = {.p = 0.3, .key = 77, .sample_ids = {7, 3}};
  ops::AttentionArgs alone = args;
  if (with_bias) alone.bias_HTS = bias;
  const ops::AttentionOut out = ops::attention(whole[0], whole[1], whole[2], alone);
  const ops::AttentionGrads d =
      ops::attention_backward(whole[3], whole[0], whole[1], whole[2], out, alone);
  on_ranks(how, [&](comm::World&, StepContext& context) {
    const std::int64_t all = padded_length(tokens, how);
    // Ranks that split tokens gather them before attention.
    const auto rows_of = [&](const at::Tensor& x_BHTK, double padding) {
      const at::Tensor x = with_padding(x_BHTK.transpose(1, 2).flatten(2), all, padding);
      const at::Tensor own = context.shares_tokens() ? own_tokens(x, *context.context_parallel) : x;
      return own.view({kB, -1, kH, kK}).transpose(1, 2);
    };
    std::vector<at::Tensor> own;
    for (const at::Tensor& x : whole)
      own.push_back(rows_of(x, std::nan("")).contiguous());
    for (std::size_t i = 0; i < 3; ++i)
      own[i].set_requires_grad(true);
    ops::AttentionArgs here = args;
    if (with_bias) {
      const at::Tensor padded =
          at::constant_pad_nd(bias, {0, all - tokens, 0, all - tokens}, std::nan(""));
      here.bias_HTS = padded;
      if (context.shares_tokens()) {
        const ContextParallel& with = *context.context_parallel;
        const std::int64_t heads = kH / with.group->size();
        here.bias_HTS = with.mode == ContextMode::Ring
                            ? own_tokens(padded, with)
                            : padded.narrow(0, with.group->index * heads, heads);
      }
      here.bias_HTS = here.bias_HTS.contiguous();
    }
    const Nothing block;

    const at::Tensor y = padded_attention(own[0], own[1], own[2], here, tokens, block, context);
    const auto grads = torch::autograd::grad({y}, {own[0], own[1], own[2]}, {own[3]});

    EXPECT_LT(relative_error(y, rows_of(out.y_BHTK, 0)), kTolerance);
    EXPECT_LT(relative_error(grads[0], rows_of(d.dq_BHTK, 0)), kTolerance);
    EXPECT_LT(relative_error(grads[1], rows_of(d.dk_BGSK, 0)), kTolerance);
    EXPECT_LT(relative_error(grads[2], rows_of(d.dv_BGSK, 0)), kTolerance);
  });
}

TEST(PaddedAttention, IsThatOfOneDeviceWithItsDropout) {
  for (const Sharing& how : kSharings) {
    for (const std::int64_t tokens : kLengths) {
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(how.text() + " tokens " + std::to_string(tokens) +
                     (with_bias ? " and a bias" : ""));
        expect_attention_of_one_device(how, tokens, with_bias);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::nn
