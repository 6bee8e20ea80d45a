// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// A program's own blocks, built from the layers of nn/functional.h with logical axes, train on
// ranks that share layers and tokens as on one rank, up to rounding.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/own_model.h"
#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"

namespace tessera::test {
namespace {

using enum LogicalAxis;

// Legend: B batch, T tokens, C embed, F ffn, H heads, K channels of a head, V vocabulary.
constexpr std::int64_t kEmbed = 32, kHeads = 4, kFeatures = 48, kVocab = 256, kPositions = 16;
constexpr double kDropout = 0.1, kEps = 1e-5;

class Tables final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    tokens_ = params.add("tokens", {kVocab, kEmbed}, {Vocab, Embed}, Init::normal(0.1));
    positions_ = params.add("positions",
                            {kPositions, kEmbed},
                            {None, Embed},
                            Init::normal(0.1),
                            {.role = Role::PositionTable});
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    const at::Tensor& ids_BT = batch.tensor("input_ids");
    const at::Tensor x_BTC =
        nn::embedding(ids_BT, *tokens_, context) +
        nn::embedding(nn::positions(ids_BT, kPositions, context), *positions_, context);
    return {.flow = {.diff = {nn::dropout(x_BTC, context.dropout("tables", kDropout))}}};
  }
  [[nodiscard]] bool works_by_token() const override { return true; }

 private:
  Param* tokens_ = nullptr;
  Param* positions_ = nullptr;
};

/// Attention and a gated MLP on one norm, side by side; a scale by plain autograd.
class Layer final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    constexpr std::int64_t K = kEmbed / kHeads;
    const Init init = Init::normal(0.1);
    weight_ = params.add("norm.weight", {kEmbed}, {Embed}, Init::ones());
    bias_ = params.add("norm.bias", {kEmbed}, {Embed}, Init::zeros());
    qkv_ = params.add("qkv",
                      {3, kHeads, K, kEmbed},
                      {None, Heads, None, Embed},
                      init,
                      {.matrix_shape = {3 * kEmbed, kEmbed}});
    merge_ = params.add("merge", {kEmbed, kEmbed}, {Embed, Heads}, init, {.unit = K});
    gate_ = params.add("gate", {kFeatures, kEmbed}, {Ffn, Embed}, init);
    up_ = params.add("up", {kFeatures, kEmbed}, {Ffn, Embed}, init);
    down_ = params.add("down", {kEmbed, kFeatures}, {Embed, Ffn}, init);
    scale_ = params.add("scale", {kEmbed}, {Embed}, Init::ones());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& /*batch*/, nn::StepContext& context) override {
    const at::Tensor x_BTC = in.diff.at(0);
    const at::Tensor h_BTC = nn::layer_norm(x_BTC, *weight_, *bias_, kEps, context);
    const nn::HeadRange heads = nn::heads_of(*qkv_);
    const auto qkv = nn::split_heads(nn::linear(h_BTC, *qkv_, nullptr, context), 3, heads.count);
    ops::AttentionArgs args;
    args.first_head = heads.first;
    args.dropout = context.dropout("attention", kDropout);
    const at::Tensor y_BHTK =
        nn::attention(qkv[0], qkv[1], qkv[2], std::move(args), *this, context);
    const at::Tensor f_BTF = at::silu(nn::linear(h_BTC, *gate_, nullptr, context)) *
                             nn::linear(h_BTC, *up_, nullptr, context);
    const at::Tensor sum_BTC = nn::linear(nn::merge_heads(y_BHTK), *merge_, nullptr, context) +
                               nn::linear(f_BTF, *down_, nullptr, context);
    return {.flow = {.diff = {x_BTC + sum_BTC * scale_->tensor()}}};
  }
  [[nodiscard]] bool works_by_token() const override { return true; }

 private:
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
  Param* qkv_ = nullptr;
  Param* merge_ = nullptr;
  Param* gate_ = nullptr;
  Param* up_ = nullptr;
  Param* down_ = nullptr;
  Param* scale_ = nullptr;
};

class Loss final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {kVocab, kEmbed}, {Vocab, Embed}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    return {.terms = {{.name = "loss",
                       .sum = nn::vocab_loss(
                                  in.diff.at(0), *weight_, batch.tensor("labels"), 0.0, context)
                                  .sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor("labels").numel())};
  }
  [[nodiscard]] bool works_by_token() const override { return true; }

 private:
  Param* weight_ = nullptr;
};

nn::Model model() {
  nn::Model out;
  out.blocks.push_back({"tables", [] { return std::make_unique<Tables>(); }});
  for (int layer = 0; layer < 2; ++layer) {
    out.blocks.push_back(
        {"layer." + std::to_string(layer), [] { return std::make_unique<Layer>(); }});
  }
  out.blocks.push_back({"loss", [] { return std::make_unique<Loss>(); }});
  return out;
}

Gradient gradient_of(const TinyRun& run, const Layout& layout) {
  const files::TempDir folder;
  (void)train_own(model(), run, layout, 1, folder.path());
  return first_moments(folder.path());
}

// Ten steps, as the bound of the loss is for.
TEST(OwnLayers, ThatRanksShareAreThoseOfOneRank) {
  const TinyRun run;
  for (const Layout& layout : std::vector<Layout>{
           {.ranks = 2, .accumulation = 2, .stage = 0, .tensor = 2},
           {.ranks = 2, .accumulation = 2, .stage = 0, .tensor = 2, .sequence = true},
           {.ranks = 2, .accumulation = 2, .stage = 0, .context = 2},
           {.ranks = 2, .accumulation = 2, .stage = 0, .context = 2, .context_mode = "ulysses"},
           {.ranks = 8, .stage = 3, .tensor = 2, .sequence = true, .context = 2},
           {.ranks = 4, .accumulation = 2, .pipeline = "2", .context = 2}}) {
    SCOPED_TRACE(text_of(layout));
    const Layout one = one_rank(layout);
    const Gradient whole = gradient_of(run, one);
    ASSERT_EQ(whole.size(), 2U + 2 * 8 + 1);

    expect_close(whole, gradient_of(run, layout), kGradient);
    expect_close(train_own(model(), run, one, 10), train_own(model(), run, layout, 10), kLoss);
  }
}

}  // namespace
}  // namespace tessera::test
