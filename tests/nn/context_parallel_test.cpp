// SPDX-License-Identifier: Apache-2.0
// Ranks that share the tokens against one that has all: which tokens, masks, attention and its
// gradients, and what moves.
#include "tessera/nn/context_parallel/context_parallel.h"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_reference.h"
#include "support/test_param.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {
namespace {

using test::relative_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// For sums of some dozen fp32 products that are split differently.
constexpr double kTolerance = 4e-6;
constexpr std::array kModes = {ContextMode::Ring, ContextMode::Ulysses};

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

/// Calls fn on `ranks` ranks that share the tokens, times `tensor` that share the layers.
void on_ranks(int ranks,
              ContextMode mode,
              const std::function<void(comm::World&, const ContextParallel&)>& fn,
              int tensor = 1) {
  comm::run_threads(mesh::Mesh({.cp = ranks, .tp_col = tensor}), [&](comm::World& world) {
    at::set_num_threads(1);
    fn(world, {&world, &world.group({mesh::Axis::Cp}), mode});
  });
}

/// This rank's tokens of x [B, H, T, K].
at::Tensor rows_of(const at::Tensor& x_BHTK, const ContextParallel& shared) {
  return own_tokens(x_BHTK.transpose(1, 2), shared).transpose(1, 2);
}

class Nothing final : public Block {
  void declare(Params&) override {}
  Outcome forward(Flow, const Batch&, StepContext&) override { return {}; }
};

// ---- tokens ----

TEST(ContextChunks, ARankOfARingHasAnEarlyAndALateOne) {
  EXPECT_THAT(chunks_of(ContextMode::Ring, 4, 0), ElementsAre(0, 7));
  EXPECT_THAT(chunks_of(ContextMode::Ring, 4, 3), ElementsAre(3, 4));
  EXPECT_THAT(chunks_of(ContextMode::Ulysses, 4, 3), ElementsAre(3));
}

// Causal work of a rank: queries times the keys they see.
TEST(ContextChunks, OfARingGiveEveryRankTheSameWork) {
  constexpr std::int64_t kRanks = 4, kSize = 5;
  std::vector<std::int64_t> work;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    std::int64_t sum = 0;
    for (const std::int64_t chunk : chunks_of(ContextMode::Ring, kRanks, rank)) {
      for (std::int64_t t = chunk * kSize; t < (chunk + 1) * kSize; ++t)
        sum += t + 1;
    }
    work.push_back(sum);
  }

  EXPECT_THAT(work, ::testing::Each(work.front()));
}

TEST(ContextTokens, PositionsAndLabelsFollowTheTokensAndTheMaskStaysWhole) {
  Batch batch;
  batch.sample_ids = {0, 1};
  batch.set("input_ids", at::arange(16).view({2, 8}));
  batch.set("labels", at::arange(16).view({2, 8}) + 100);
  batch.set("attention_mask", at::ones({2, 8}, at::kLong));
  on_ranks(2, ContextMode::Ring, [&](comm::World&, const ContextParallel& shared) {
    StepContext context(Mode::Train, 1);
    context.context_parallel = &shared;
    const Batch own = own_tokens(batch, shared);
    const at::Tensor& ids = own.tensor("input_ids");

    EXPECT_EQ(own.size(), 2);
    EXPECT_EQ(ids.sizes(), at::IntArrayRef({2, 4}));
    EXPECT_TRUE(at::equal(own.tensor("labels"), ids + 100));
    EXPECT_TRUE(at::equal(positions(ids, 8, context), ids.remainder(8)));
    EXPECT_EQ(own.tensor("attention_mask").size(1), 8);
    EXPECT_THROW(positions(ids, 7, context), Error);
    context.set_mode(Mode::Prefill);
    EXPECT_EQ(positions(batch.tensor("input_ids"), 8, context)[0][7].item<std::int64_t>(), 7);
  });
}

TEST(ContextTokens, ThatDoNotDivideAreRefused) {
  try {
    on_ranks(2, ContextMode::Ring, [](comm::World&, const ContextParallel& shared) {
      own_tokens(at::zeros({1, 6}, at::kLong), shared);
    });
    FAIL() << "six tokens were cut into four chunks";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("6 tokens cannot be cut into 4 chunks"));
  }
}

// With and without tensor-parallel ranks that split the rank's tokens again: into 2 and 3 parts of
// chunks.
TEST(ContextDropout, OfARanksTokensIsItsPartOfTheMask) {
  Batch batch;
  batch.sample_ids = {4, 9};
  const auto mask_of = [&](const at::Tensor& ones, StepContext& context) {
    context.batch = &batch;
    context.block_name = "h.0";
    return ops::dropout(ones, context.dropout("output", 0.5));
  };
  StepContext alone(Mode::Train, 1);
  const at::Tensor whole = mask_of(at::ones({2, 24, 6}), alone);
  for (const ContextMode mode : kModes) {
    for (const int tensor_ranks : {1, 2, 3}) {
      SCOPED_TRACE(tensor_ranks);
      on_ranks(
          2,
          mode,
          [&](comm::World& world, const ContextParallel& shared) {
            const TensorParallel tensor{.world = &world,
                                        .group = &world.group(mesh::AxisSet::tp()),
                                        .mode = TensorMode::OneD,
                                        .sequence = true};
            StepContext context(Mode::Train, 1);
            context.context_parallel = &shared;
            if (tensor_ranks > 1) context.tensor = &tensor;
            const std::int64_t share = 12 / tensor_ranks;
            const at::Tensor expected =
                own_tokens(whole, shared).narrow(1, share * tensor.group->index, share);

            EXPECT_TRUE(at::equal(mask_of(at::ones({2, share, 6}), context), expected));
          },
          tensor_ranks);
    }
  }
}

// ---- attention ----

constexpr std::int64_t kB = 2, kH = 4, kT = 24, kK = 8;

struct Case {
  bool causal = true, padded = false;
  double p = 0.0;
};

/// nn::attention of shared tokens and its gradients against all of them in float64.
void expect_whole_attention(int ranks, ContextMode mode, const Case& how) {
  const std::vector<at::Tensor> whole = {random({kB, kH, kT, kK}, 1),
                                         random({kB, kH, kT, kK}, 2),
                                         random({kB, kH, kT, kK}, 3),
                                         random({kB, kH, kT, kK}, 4)};
  Batch batch;
  batch.sample_ids = {7, 3};
  const auto args_in = [&](StepContext& context) {
    context.batch = &batch;
    context.block_name = "h.0";
    ops::AttentionArgs args;
    args.causal = how.causal;
    if (how.padded) {
      args.mask_BS = at::ones({kB, kT}, at::kLong);
      args.mask_BS[1].slice(0, 10).zero_();
    }
    args.dropout = context.dropout("attention", how.p);
    return args;
  };
  StepContext alone(Mode::Train, 1);
  const ops::AttentionArgs args = args_in(alone);
  const at::Tensor kept =
      how.p > 0 ? ops::dropout(at::ones({kB, kH, kT, kT}), args.dropout) : at::Tensor();
  const test::AttentionReference expected = test::attention_reference(
      whole[0], whole[1], whole[2], whole[3], how.causal, args.mask_BS, kept);
  on_ranks(ranks, mode, [&](comm::World&, const ContextParallel& shared) {
    StepContext context(Mode::Train, 1);
    context.context_parallel = &shared;
    std::vector<at::Tensor> own;
    for (const at::Tensor& x : whole)
      own.push_back(rows_of(x, shared).contiguous());
    for (std::size_t i = 0; i < 3; ++i)
      own[i].set_requires_grad(true);
    const Nothing block;

    const at::Tensor y = attention(own[0], own[1], own[2], args_in(context), block, context);
    const auto grads = torch::autograd::grad({y}, {own[0], own[1], own[2]}, {own[3]});

    EXPECT_LT(relative_error(y, rows_of(expected.y, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[0], rows_of(expected.dq, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[1], rows_of(expected.dk, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[2], rows_of(expected.dv, shared)), kTolerance);
  });
}

TEST(ContextAttention, IsThatOfAllTokens) {
  for (const ContextMode mode : kModes) {
    for (const int ranks : {2, 4}) {
      for (const Case& how : {Case{},
                              Case{.causal = false},
                              Case{.padded = true},
                              Case{.p = 0.4},
                              Case{.padded = true, .p = 0.4}}) {
        SCOPED_TRACE(std::to_string(ranks) + (mode == ContextMode::Ring ? " ring" : " ulysses") +
                     " causal " + std::to_string(how.causal) + " padded " +
                     std::to_string(how.padded) + " dropout " + std::to_string(how.p));
        expect_whole_attention(ranks, mode, how);
      }
    }
  }
}

/// nn::attention of shared tokens with `args` and its gradients against those of one device.
void expect_attention_of_one_device(int ranks, ContextMode mode, const ops::AttentionArgs& args) {
  const std::vector<at::Tensor> whole = {random({kB, kH, kT, kK}, 1),
                                         random({kB, kH, kT, kK}, 2),
                                         random({kB, kH, kT, kK}, 3),
                                         random({kB, kH, kT, kK}, 4)};
  const ops::AttentionOut out = ops::attention(whole[0], whole[1], whole[2], args);
  const ops::AttentionGrads d =
      ops::attention_backward(whole[3], whole[0], whole[1], whole[2], out, args);
  on_ranks(ranks, mode, [&](comm::World&, const ContextParallel& shared) {
    StepContext context(Mode::Train, 1);
    context.context_parallel = &shared;
    std::vector<at::Tensor> own;
    for (const at::Tensor& x : whole)
      own.push_back(rows_of(x, shared).contiguous());
    for (std::size_t i = 0; i < 3; ++i)
      own[i].set_requires_grad(true);
    const Nothing block;

    const at::Tensor y = attention(own[0], own[1], own[2], args, block, context);
    const auto grads = torch::autograd::grad({y}, {own[0], own[1], own[2]}, {own[3]});

    EXPECT_LT(relative_error(y, rows_of(out.y_BHTK, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[0], rows_of(d.dq_BHTK, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[1], rows_of(d.dk_BGSK, shared)), kTolerance);
    EXPECT_LT(relative_error(grads[2], rows_of(d.dv_BGSK, shared)), kTolerance);
  });
}

TEST(ContextAttention, WithWindowsSoftCapsAndAlibiIsThatOfOneDevice) {
  const std::vector<double> slopes = ops::alibi_slopes(kH);
  const at::Tensor starts = at::zeros({kB, kT}, at::kLong), mask = at::ones({kB, kT}, at::kLong);
  starts[1].slice(0, 7).fill_(7);
  // A padding token must not be alone in a window: scores of -10000 have few digits.
  mask[0][9].zero_();
  for (const ContextMode mode : kModes) {
    for (const int ranks : {2, 4}) {
      for (const bool causal : {true, false}) {
        for (const bool packed : {false, true}) {
          // With a causal window of 1 the gradients of queries and keys would be 0.
          for (const std::int64_t window : {0, 2, 4, 11}) {
            SCOPED_TRACE(std::to_string(ranks) +
                         (mode == ContextMode::Ring ? " ring" : " ulysses") + " causal " +
                         std::to_string(causal) + " packed " + std::to_string(packed) + " window " +
                         std::to_string(window));
            ops::AttentionArgs args{.causal = causal, .mask_BS = mask};
            if (packed) args.starts_BT = starts;
            args.window = window;
            args.softcap = 2.0;
            expect_attention_of_one_device(ranks, mode, args);
            args.alibi = slopes;
            expect_attention_of_one_device(ranks, mode, args);
          }
        }
      }
    }
  }
}

TEST(ContextAttention, OfAnOddNumberOfRanksIsThatOfAllTokens) {
  expect_whole_attention(3, ContextMode::Ring, {});
  expect_whole_attention(3, ContextMode::Ring, {.p = 0.4});
}

// Selective recompute sends keys around once more, and gives the same bits.
TEST(ContextAttention, RunAgainInBackwardGivesTheSameBits) {
  for (const ContextMode mode : kModes) {
    on_ranks(2, mode, [&](comm::World&, const ContextParallel& shared) {
      std::vector<at::Tensor> results;
      for (const bool again : {false, true}) {
        StepContext context(Mode::Train, 1);
        context.context_parallel = &shared;
        context.set_recompute_regions(again);
        const at::Tensor q = random({kB, kH, kT / 2, kK}, 1).set_requires_grad(true);
        const Nothing block;
        const at::Tensor y = attention(q, q * 0.5, q * 2.0, {}, block, context);
        results.push_back(torch::autograd::grad({y}, {q}, {y.detach()})[0]);
      }
      EXPECT_TRUE(at::equal(results[0], results[1]));
    });
  }
}

// While a text is being generated, every rank has all of it.
TEST(ContextAttention, OfATextThatIsBeingMadeMeetsNobody) {
  on_ranks(2, ContextMode::Ring, [](comm::World& world, const ContextParallel& shared) {
    const c10::NoGradGuard no_grad;
    StepContext context(Mode::Prefill, 1);
    context.context_parallel = &shared;
    const at::Tensor x = random({1, kH, 5, kK}, 1);
    const Nothing block;

    const at::Tensor y = attention(x, x, x, {}, block, context);

    EXPECT_LT(relative_error(y, test::attention_reference(x, x, x, x, true).y), kTolerance);
    EXPECT_EQ(world.transport().traffic().elements, 0);
  });
}

// For a rank's tokens: keys and values are sent P - 1 times, and their gradients P times.
TEST(ContextAttention, MovesKeysAndValuesAroundTheRing) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kValues = 2 * kB * kH * (kT / kRanks) * kK;
  on_ranks(kRanks, ContextMode::Ring, [](comm::World& world, const ContextParallel& shared) {
    StepContext context(Mode::Train, 1);
    context.context_parallel = &shared;
    const at::Tensor x = random({kB, kH, kT / kRanks, kK}, 1).set_requires_grad(true);
    const Nothing block;

    const at::Tensor y = attention(x, x, x, {}, block, context);
    const std::int64_t forward = world.transport().traffic().elements;
    torch::autograd::grad({y}, {x}, {y.detach()});

    EXPECT_EQ(forward, (kRanks - 1) * kValues);
    EXPECT_EQ(world.transport().traffic().elements - forward, (2 * kRanks - 1) * kValues);
  });
}

TEST(ContextAttention, HeadsThatDoNotDivideAreRefused) {
  try {
    on_ranks(3, ContextMode::Ulysses, [](comm::World&, const ContextParallel& shared) {
      StepContext context(Mode::Eval, 1);
      context.context_parallel = &shared;
      const at::Tensor x = random({1, 4, 5, 8}, 1);
      const Nothing block;
      attention(x, x, x, {}, block, context);
    });
    FAIL() << "four heads were shared by three ranks";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 heads cannot be shared evenly by 3"));
  }
}

TEST(ContextAttention, KnowsItsShapesAndMessagesOnMeta) {
  const at::Tensor x = at::empty({2, 4, 6, 8}, at::TensorOptions().device(at::kMeta));
  const auto result = [&](comm::World& world, ContextMode mode) {
    const ContextParallel shared = {&world, &world.group({mesh::Axis::Cp}), mode};
    StepContext context(Mode::Eval, 1);
    context.context_parallel = &shared;
    return attention(x, x, x, {}, Nothing(), context);
  };
  for (const ContextMode mode : kModes) {
    const auto shapes = comm::shape_world(mesh::Mesh({.cp = 2}), 0);
    EXPECT_EQ(result(*shapes, mode).sizes(), x.sizes());
    // Keys and values once around the ring, or queries, keys, values and the result exchanged.
    EXPECT_EQ(shapes->transport().traffic().elements,
              (mode == ContextMode::Ring ? 2 : 4) * x.numel());
    on_ranks(2, mode, [&](comm::World& world, const ContextParallel&) {
      EXPECT_THROW(result(world, mode), Error) << "a real world has nothing to send";
    });
  }
}

}  // namespace
}  // namespace tessera::nn
