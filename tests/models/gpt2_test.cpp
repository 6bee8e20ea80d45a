// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/gpt2.h"

#include <cmath>
#include <string>
#include <vector>

#include "support/model_runner.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::models {
namespace {

using test::make_batch;
using test::ModelRunner;

Gpt2Shape tiny() {
  Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 61;
  shape.max_positions = 24;
  return shape;
}

at::Tensor random_ids(std::int64_t batch, std::int64_t tokens, std::int64_t vocab) {
  return at::randint(vocab,
                     {batch, tokens},
                     at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{3}),
                     at::kLong);
}

TEST(Gpt2, HasTheParametersItPromises) {
  for (const bool tie : {true, false}) {
    for (const bool bias : {true, false}) {
      Gpt2Shape shape = tiny();
      shape.num_kv_heads = tie ? 0 : 2;
      shape.tie_embeddings = tie;
      shape.qkv_bias = bias;

      const ModelRunner runner(gpt2(shape));
      std::int64_t total = 0;
      for (const auto& [name, info] : runner.infos)
        total += info->numel();

      EXPECT_EQ(total, shape.num_parameters());
      EXPECT_EQ(runner.infos.count("lm_head.weight"), tie ? 0U : 1U);
      EXPECT_EQ(runner.infos.count("h.1.attn.c_attn.bias"), bias ? 1U : 0U);
      EXPECT_EQ(runner.infos.at("wte.weight")->tied, tie);
    }
  }
}

TEST(Gpt2, FusesQueriesKeysAndValuesInOneParameterCutByHeads) {
  const ModelRunner runner(gpt2(tiny()));

  const ParamInfo& weight = *runner.infos.at("h.0.attn.c_attn.weight");
  EXPECT_EQ(weight.shape, (Shape{3, 4, 8, 32}));
  EXPECT_EQ(weight.matrix_shape, (Shape{96, 32}));
  EXPECT_EQ(weight.axes.at(1), LogicalAxis::Heads);
  EXPECT_TRUE(decays(weight));
  EXPECT_FALSE(decays(*runner.infos.at("h.0.attn.c_attn.bias")));
}

/// The logits of a model whose weights are drawn, with the queries of layer i multiplied by
/// factors[i].
at::Tensor logits_with(const Gpt2Shape& shape, const std::vector<double>& factors) {
  ModelRunner runner(gpt2(shape));
  runner.initialize(1);
  const ModelRunner::Tensors drawn = runner.weights;
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    at::Tensor value = drawn.at(info.name) * 3;  // attention is far from uniform
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (info.name.starts_with(fmt::format("h.{}.attn.c_attn.", i))) value[0].mul_(factors[i]);
    }
    out.copy_(value.reshape({-1}));
  });
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const nn::Batch batch = make_batch(random_ids(2, 12, 61));
  return runner.infer(batch, context).outputs.at("logits").clone();
}

// Factors are powers of two, so that the scores have the same bits.
TEST(Gpt2, ScalesAttentionByTheOptionsOfHuggingFace) {
  Gpt2Shape shape = tiny();
  shape.num_heads = 2;  // of 16 channels
  const at::Tensor usual = logits_with(shape, {});
  const double rounding = 1e-6 * usual.abs().max().item<double>();
  const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  };

  Gpt2Shape by_layer = shape;
  by_layer.scale_by_layer = true;
  EXPECT_LT(apart(logits_with(by_layer, {}), logits_with(shape, {1.0, 0.5})), rounding);
  EXPECT_GT(apart(logits_with(by_layer, {}), usual), 10 * rounding);

  Gpt2Shape unscaled = shape;
  unscaled.scale_attention = false;
  EXPECT_LT(apart(logits_with(unscaled, {}), logits_with(shape, {4.0, 4.0})), rounding);
  unscaled.scale_by_layer = true;
  EXPECT_LT(apart(logits_with(unscaled, {}), logits_with(shape, {4.0, 2.0})), rounding);
}

TEST(Gpt2, StartsWithSmallerResidualProjections) {
  ModelRunner runner(gpt2(tiny()));
  runner.initialize(1);

  const auto spread = [&](const char* name) {
    return runner.weights.at(name).std().item<double>();
  };

  // A sample of 1,024 normal numbers or more has its deviation within 10 %.
  EXPECT_NEAR(spread("h.0.attn.c_attn.weight"), 0.02, 2e-3);
  EXPECT_NEAR(spread("h.0.attn.c_proj.weight"), 0.02 / std::sqrt(4.0), 1e-3);
  EXPECT_NEAR(spread("h.1.mlp.c_proj.weight"), 0.02 / std::sqrt(4.0), 1e-3);
  EXPECT_TRUE(at::equal(runner.weights.at("h.0.ln_1.weight"), at::ones({32})));
  EXPECT_TRUE(at::equal(runner.weights.at("h.0.mlp.c_fc.bias"), at::zeros({64})));
}

TEST(Gpt2, HasBiasesAndGatesAsTold) {
  for (const bool bias : {true, false}) {
    for (const bool gated : {true, false}) {
      Gpt2Shape shape = tiny();
      shape.bias = bias;
      shape.gated = gated;
      const ModelRunner runner(gpt2(shape));
      std::int64_t total = 0;
      for (const auto& [name, info] : runner.infos)
        total += info->numel();
      EXPECT_EQ(total, shape.num_parameters());
      for (const char* name : {"h.0.attn.c_attn.bias",
                               "h.0.attn.c_proj.bias",
                               "h.0.mlp.c_fc.bias",
                               "h.0.mlp.c_proj.bias"})
        EXPECT_EQ(runner.infos.count(name), bias ? 1U : 0U) << name;
      EXPECT_EQ(runner.infos.count("h.0.ln_1.bias"), 1U);
      EXPECT_EQ(runner.infos.at("h.0.mlp.c_fc.weight")->numel(), (gated ? 2 : 1) * 64 * 32);
    }
  }
}

// Biases begin at 0, so that the first loss is the same without them.
TEST(Gpt2, ComputesWithoutBiasesWhatItComputesWithThoseOfZero) {
  const at::Tensor ids = random_ids(2, 24, 61);
  for (const bool gated : {true, false}) {
    Gpt2Shape shape = tiny();
    shape.gated = gated;
    ModelRunner with(gpt2(shape));
    shape.bias = false;
    ModelRunner without(gpt2(shape));
    with.initialize(1);
    without.initialize(1);
    EXPECT_NEAR(with.train(make_batch(ids, ids)), without.train(make_batch(ids, ids)), 1e-6);
    EXPECT_TRUE(at::allclose(
        with.grads.at("h.0.mlp.c_fc.weight"), without.grads.at("h.0.mlp.c_fc.weight"), 1e-5, 1e-7));
  }
}

// Layer norms of heads take out the size of queries and keys, and so of their weights.
TEST(Gpt2, WithNormsOfHeadsDoesNotSeeTheSizeOfQueriesAndKeys) {
  const at::Tensor ids = random_ids(2, 24, 61);
  const auto loss = [&](bool norms, float factor) {
    Gpt2Shape shape = tiny();
    shape.qk_norm = norms;
    ModelRunner runner(gpt2(shape));
    EXPECT_EQ(runner.infos.count("h.0.attn.q_norm.bias"), norms ? 1U : 0U);
    std::int64_t total = 0;
    for (const auto& [name, info] : runner.infos)
      total += info->numel();
    EXPECT_EQ(total, shape.num_parameters());
    at::Generator generator = at::detail::createCPUGenerator(5);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      if (info.name.ends_with(".bias")) {
        out.zero_();
      } else if (info.name.find("norm") != std::string::npos ||
                 info.name.find("ln_") != std::string::npos) {
        out.fill_(1.0);
      } else {
        out.normal_(0.0, 0.4, generator);
      }
      // Queries and keys are the first two thirds.
      if (info.name.ends_with("c_attn.weight")) out.view({3, -1}).narrow(0, 0, 2).mul_(factor);
    });
    return runner.train(make_batch(ids, ids));
  };
  EXPECT_NEAR(loss(true, 4.0F), loss(true, 16.0F), 1e-3);
  EXPECT_GT(std::abs(loss(false, 0.05F) - loss(false, 0.5F)), 1e-2);
}

TEST(Gpt2, StartsAtTheEntropyOfItsVocabulary) {
  ModelRunner runner(gpt2(tiny()));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 24, 61);

  // Not the tokens themselves: a tied head starts with a liking for them.
  const double loss = runner.train(make_batch(ids, ids.roll(1, 1)));

  // Logits of a fresh model are within a few hundredths of 0.
  EXPECT_NEAR(loss, std::log(61.0), 0.05);
}

TEST(Gpt2, GivesEveryParameterAGradient) {
  ModelRunner runner(gpt2(tiny()));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 24, 61);

  runner.train(make_batch(ids, ids));

  for (const auto& [name, grad] : runner.grads) {
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << name;
    EXPECT_GT(grad.abs().max().item<double>(), 0.0) << name;
    EXPECT_LT(grad.abs().max().item<double>(), 100.0) << name;  // the garbage in the sinks is 123
  }
}

TEST(Gpt2, CountsLabelsThatAreNotIgnored) {
  ModelRunner runner(gpt2(tiny()));
  at::Tensor labels = random_ids(2, 5, 61);
  labels[1].narrow(0, 2, 3).fill_(-100);

  EXPECT_EQ(runner.instance().objective()->denominators(make_batch(labels, labels)),
            std::vector<double>{7.0});
}

TEST(Gpt2, DoesNotLookAtPaddingThatIsMasked) {
  ModelRunner runner(gpt2(tiny()));
  runner.initialize(1);
  at::Tensor ids = random_ids(2, 10, 61), mask = at::ones({2, 10}, at::kLong), labels = ids.clone();
  mask[1].narrow(0, 6, 4).zero_();
  labels[1].narrow(0, 6, 4).fill_(-100);
  const auto loss_of = [&](const at::Tensor& input) {
    nn::Batch batch = make_batch(input, labels);
    batch.set("attention_mask", mask);
    return runner.train(batch);
  };

  const double before = loss_of(ids);
  at::Tensor changed = ids.clone();
  changed[1].narrow(0, 6, 4).fill_(7);

  EXPECT_EQ(loss_of(changed), before);
}

// Positions count from where a document begins, and no token sees another document.
TEST(Gpt2, ReadsPackedDocumentsAsEachAlone) {
  Gpt2Shape shape = tiny();
  shape.num_kv_heads = 2;
  shape.init_std = 0.3;
  ModelRunner runner(gpt2(shape));
  runner.initialize(1);
  const at::Tensor ids = random_ids(1, 20, 61);
  const auto logits_of = [&](const at::Tensor& input, const at::Tensor& starts) {
    nn::StepContext context(nn::Mode::Eval, 1);
    nn::Batch batch = make_batch(input);
    if (starts.defined()) batch.set("document_starts", starts);
    return runner.infer(batch, context).outputs.at("logits");
  };
  at::Tensor starts = at::zeros({1, 20}, at::kLong);
  starts.narrow(1, 5, 12).fill_(5);
  starts.narrow(1, 17, 3).fill_(17);

  const at::Tensor packed = logits_of(ids, starts);
  const at::Tensor alone = at::cat({logits_of(ids.narrow(1, 0, 5), {}),
                                    logits_of(ids.narrow(1, 5, 12), {}),
                                    logits_of(ids.narrow(1, 17, 3), {})},
                                   1);

  EXPECT_LT((packed - alone).abs().max().item<double>(), 2e-5);  // matrix products of other shapes
  EXPECT_GT((logits_of(ids, {}) - alone).abs().max().item<double>(), 0.01);
}

TEST(Gpt2, DropsTheSameElementsInAnyMicroBatch) {
  Gpt2Shape shape = tiny();
  shape.embedding_dropout = shape.attention_dropout = shape.residual_dropout = 0.2;
  ModelRunner runner(gpt2(shape));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 12, 61);

  const double both = runner.train(make_batch(ids, ids));
  const double first = runner.train(make_batch(ids.narrow(0, 0, 1), ids.narrow(0, 0, 1), 0));
  const double second = runner.train(make_batch(ids.narrow(0, 1, 1), ids.narrow(0, 1, 1), 1));
  const double moved = runner.train(make_batch(ids.narrow(0, 1, 1), ids.narrow(0, 1, 1), 5));

  EXPECT_NEAR(both, 0.5 * (first + second), 1e-6);  // fp32 matrix products of other shapes
  EXPECT_GT(std::abs(moved - second), 1e-5);
}

TEST(Gpt2, SmoothsLabelsInTrainingOnly) {
  Gpt2Shape plain = tiny(), smooth = tiny();
  smooth.label_smoothing = 0.1;
  plain.init_std = smooth.init_std = 0.3;
  ModelRunner a(gpt2(plain)), b(gpt2(smooth));
  a.initialize(1);
  b.initialize(1);
  const at::Tensor ids = random_ids(2, 12, 61);
  const auto evaluate = [&](ModelRunner& runner) {
    nn::StepContext context(nn::Mode::Eval, 1);
    return runner.infer(make_batch(ids, ids), context).terms.at(0).sum.item<double>();
  };

  EXPECT_NE(a.train(make_batch(ids, ids)), b.train(make_batch(ids, ids)));
  EXPECT_EQ(evaluate(a), evaluate(b));
}

TEST(Gpt2, DecodesWithTheCacheLikeAFullForward) {
  Gpt2Shape shape = tiny();
  shape.init_std = 0.2;
  ModelRunner runner(gpt2(shape));
  runner.initialize(1);
  const at::Tensor ids = random_ids(2, 16, 61);
  nn::StepContext full(nn::Mode::Eval, 1), cached(nn::Mode::Prefill, 1);
  const at::Tensor expected = runner.infer(make_batch(ids), full).outputs.at("logits");

  at::Tensor logits = runner.infer(make_batch(ids.narrow(1, 0, 5)), cached).outputs.at("logits");
  cached.set_mode(nn::Mode::Decode);
  for (std::int64_t t = 5; t < 16; ++t) {
    // Matrix products of other shapes sum in another order.
    EXPECT_LT((logits.select(1, -1) - expected.select(1, t - 1)).abs().max().item<double>(),
              1e-6 * expected.abs().max().item<double>() + 1e-6);
    cached.position = t;
    logits = runner.infer(make_batch(ids.narrow(1, t, 1)), cached).outputs.at("logits");
  }

  EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 1, 61}));
}

TEST(Gpt2, RefusesMoreTokensThanPositions) {
  ModelRunner runner(gpt2(tiny()));
  nn::StepContext context(nn::Mode::Eval, 1);

  EXPECT_THROW(runner.infer(make_batch(random_ids(1, 25, 61)), context), Error);
}

TEST(Gpt2, TrainsInBf16CloseToFp32) {
  Gpt2Shape shape = tiny();
  ModelRunner exact(gpt2(shape)), rounded(gpt2(shape), DType::BF16);
  exact.initialize(1);
  rounded.initialize(1);
  const at::Tensor ids = random_ids(2, 24, 61);

  const double expected = exact.train(make_batch(ids, ids)),
               loss = rounded.train(make_batch(ids, ids));

  EXPECT_NEAR(loss, expected, 1e-2);  // bf16 has 8 bits
  double total = 0.0;
  for (const auto& [name, grad] : exact.grads)
    total += grad.to(at::kDouble).square().sum().item<double>();
  for (const auto& [name, grad] : exact.grads) {
    const double error = (rounded.grads.at(name) - grad).norm().item<double>();
    const double size = std::max(grad.norm().item<double>(), 1e-3 * std::sqrt(total));
    EXPECT_LT(error, 2e-2 * size) << name;
  }
}

TEST(Gpt2, RunsForwardAndBackwardOnMeta) {
  const auto meta = [](const Shape& shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
  };
  Gpt2Shape shape = tiny();
  shape.attention_dropout = 0.1;
  const nn::Model model = gpt2(shape);
  nn::Batch batch = make_batch(meta({2, 24}, at::kLong), meta({2, 24}, at::kLong));
  nn::StepContext context(nn::Mode::Train, 1);
  context.batch = &batch;
  nn::Flow flow;

  for (const nn::BlockSpec& spec : model.blocks) {
    const auto block = spec.make();
    nn::Params params(spec.name);
    block->declare(params);
    std::vector<at::Tensor> inputs;
    for (at::Tensor& x : flow.diff)
      inputs.push_back(x = x.detach().set_requires_grad(true));
    for (const auto& param : params.list()) {
      param->attach(meta(param->info().shape, at::kBFloat16).set_requires_grad(true));
      param->grad().open(meta(param->info().shape, at::kFloat));
      inputs.push_back(param->tensor());
    }
    context.block_name = spec.name;

    nn::Outcome out = block->forward(flow, batch, context);
    const at::Tensor root = out.terms.empty() ? out.flow.diff.at(0) : out.terms.at(0).sum;
    torch::autograd::grad({root}, inputs, {at::empty_like(root)}, std::nullopt, false, true);

    for (const auto& param : params.list())
      EXPECT_TRUE(param->grad().was_written()) << param->info().name;
    flow = out.flow;
  }
}

// The ranks hold 3001 and 3000 rows: if each took as many samples at once as its own rows allow,
// they would communicate at different samples.
TEST(Gpt2, RunsItsObjectiveOnTheSameSamplesWhereRanksShareAnOddVocabulary) {
  Gpt2Shape shape = tiny();
  shape.num_layers = 1;
  shape.hidden_size = 8;
  shape.num_heads = 2;
  shape.ffn_hidden_size = 8;
  shape.vocab_size = 6001;
  const at::Tensor ids = at::zeros({1, 8}, at::kLong);
  const nn::Batch batch = make_batch(ids, ids);

  comm::run_threads(mesh::Mesh({.tp_col = 2}), [&](comm::World& world) {
    ModelRunner runner(gpt2(shape), DType::F32, &world);

    EXPECT_EQ(runner.infos.at("wte.weight")->local_shape().front(),
              world.rank() == 0 ? 3001 : 3000);
    EXPECT_EQ(runner.instance().objective()->samples_at_once(batch),
              ops::samples_of_logits(8, 3001));
  });
  ASSERT_NE(ops::samples_of_logits(8, 3001), ops::samples_of_logits(8, 3000));
}

}  // namespace
}  // namespace tessera::models
