// SPDX-License-Identifier: Apache-2.0
// What feed-forward networks say about themselves, against what they declare and compute.
#include "tessera/models/feed_forward.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/op_log.h"

namespace tessera::models {
namespace {

MlpSpec mlp(bool gated, bool bias) {
  return {.hidden_size = 8,
          .ffn_hidden_size = 12,
          .input_name = "in",
          .output_name = "out",
          .bias = bias,
          .activation = "silu",
          .gated = gated};
}

TEST(FeedForward, CountsItsParametersAndItsArithmetic) {
  for (const bool gated : {false, true}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(std::string(gated ? "gated" : "plain") + (bias ? " with biases" : ""));
      const std::unique_ptr<FeedForward> feed_forward = make_feed_forward(mlp(gated, bias));
      nn::Params params("h.0");
      feed_forward->declare(params);
      std::int64_t declared = 0;
      const auto meta = at::TensorOptions().dtype(at::kFloat).device(at::kMeta);
      for (const auto& param : params.list()) {
        declared += param->info().numel();
        param->attach(at::empty(param->info().local_shape(), meta));
      }
      nn::StepContext context(nn::Mode::Eval, 0);
      context.block_name = "h.0";
      std::vector<nn::Term> terms;
      double flops = 0;
      {
        const ops::OpLog log;
        (*feed_forward)(at::empty({2, 5, 8}, meta), context, terms);
        for (const ops::OpRow& row : log.rows())
          flops += row.flops;
      }

      const FeedForward::Size size = feed_forward->size();
      EXPECT_EQ(size.total, declared);
      EXPECT_EQ(size.active, declared) << "every token uses all of an MLP";
      EXPECT_EQ(10 * size.flops_a_token, flops);
      EXPECT_TRUE(terms.empty());
      EXPECT_TRUE(feed_forward->works_by_token());
      EXPECT_EQ(feed_forward->grid_obstacle(), "");
    }
  }
}

ExpertsSpec experts(bool gated, bool bias) {
  ExpertsSpec spec = {.hidden_size = 8, .ffn_hidden_size = 12, .num_experts = 5};
  spec.router = {.top_k = 2, .bias = bias, .correction = bias};
  spec.bias = bias;
  spec.activation.gated = gated;
  spec.shared.ffn_hidden_size = gated ? 6 : 0;
  if (bias) spec.shared.gate_name = "shared_gate";
  return spec;
}

TEST(FeedForward, OfExpertsCountsWhatATokenUses) {
  for (const bool gated : {false, true}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(std::string(gated ? "gated" : "plain") + (bias ? " with biases" : ""));
      const std::unique_ptr<FeedForward> feed_forward = make_feed_forward(experts(gated, bias));
      nn::Params params("layers.0");
      feed_forward->declare(params);
      std::int64_t declared = 0, of_one_expert = 0;
      const auto meta = at::TensorOptions().dtype(at::kFloat).device(at::kMeta);
      for (const auto& param : params.list()) {
        declared += param->info().numel();
        if (param->info().stacked()) of_one_expert += param->info().numel() / 5;
        param->attach(at::empty(param->info().local_shape(), meta));
      }
      nn::StepContext context(nn::Mode::Eval, 0);
      context.block_name = "layers.0";
      std::vector<nn::Term> terms;
      double flops = 0;
      {
        const ops::OpLog log;
        (*feed_forward)(at::empty({2, 5, 8}, meta), context, terms);
        for (const ops::OpRow& row : log.rows())
          flops += row.flops;
      }
      const FeedForward::Size size = feed_forward->size();
      EXPECT_EQ(size.total, declared);
      EXPECT_EQ(size.active, declared - 3 * of_one_expert) << "a token uses two of five experts";
      EXPECT_EQ(10 * size.flops_a_token, flops);
      EXPECT_TRUE(terms.empty()) << "outside of training";
    }
  }
}

TEST(FeedForward, IsRefusedWithAnUnknownActivation) {
  MlpSpec spec = mlp(false, false);
  spec.activation = "sillu";
  EXPECT_THROW(make_feed_forward(spec), Error);
  EXPECT_EQ(size_of(FeedForwardSpec(spec)).total, 2 * 8 * 12) << "sizes need no activation";
}

}  // namespace
}  // namespace tessera::models
