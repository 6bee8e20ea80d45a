// SPDX-License-Identifier: Apache-2.0
// timeout: 300
// Norms, tables, biases and heads of single families on a grid of ranks against the same layers
// whole.
#include <string>
#include <vector>

#include "support/grid_ranks.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"
#include "tessera/nn/token_log_probabilities.h"
#include "tessera/nn/vocab_head.h"

namespace tessera::nn::on_grids {
namespace {

using enum LogicalAxis;

/// The results with five samples, which do not divide evenly, and with one: most ranks have none.
void expect_same_of_any_samples(const Layers& layers,
                                const std::vector<Declared>& declared,
                                at::IntArrayRef sizes_of_sample = {kT, kC}) {
  for (const std::int64_t samples : {5, 1}) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    std::vector<std::int64_t> sizes = {samples};
    sizes.insert(sizes.end(), sizes_of_sample.begin(), sizes_of_sample.end());
    expect_same(layers, random({samples, kT, kC}, 1), random(sizes, 2), declared);
  }
}

TEST(GridNorms, MayHaveNoBiasAndWeightsWithAnOffset) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    const Normed centred = residual_layer_norm(x, {}, {}, p[0], nullptr, 1e-5, c);
    return residual_rms_norm(centred.normed_BTC, x, {}, p[1], 1e-5, c, 1.0).normed_BTC;
  };
  expect_same_of_any_samples(layers, {{random({kC}, 7), {Embed}}, {random({kC}, 8), {Embed}}});
}

// Five heads are three and two.
TEST(GridHeadNorms, AreThoseOfTheWholeHeads) {
  for (const std::int64_t heads : {4, 5}) {
    for (const bool all_heads : {false, true}) {
      SCOPED_TRACE(std::to_string(heads) + (all_heads ? " heads, all together" : " heads"));
      const Layers layers = [&](const at::Tensor& x,
                                const std::vector<PlacedParam>& p,
                                StepContext& c) {
        const at::Tensor q = split_heads(linear(x, p[0], nullptr, c), 1, heads_of(p[0]).count)[0];
        const at::Tensor y =
            all_heads ? all_heads_norm(q, p[1], 1e-6, 1.0, c) : head_norm(q, p[1], 1e-6, 1.0, c);
        return linear(merge_heads(y), p[2], nullptr, c);
      };
      const Declared norm = all_heads ? Declared{random({heads * 6}, 4), {Heads}, 6}
                                      : Declared{random({6}, 4), {None}};
      expect_same_of_any_samples(layers,
                                 {{random({1, heads, 6, kC}, 3) / 5, {None, Heads, None, Embed}},
                                  norm,
                                  {random({kC, heads * 6}, 5) / 5, {Embed, Heads}, 6}});
    }
  }
}

TEST(GridEmbedding, OfOneRowAddsItToEveryToken) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return x + embedding(at::zeros({c.batch->size(), kT}, at::kLong), p[0], c);
  };
  expect_same_of_any_samples(layers, {{random({1, kC}, 4), {None, Embed}, 1, Role::PositionTable}});
}

TEST(GridDropout, OfFeaturesIsAPartOfTheMask) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    const at::Tensor f = linear(x, p[0], nullptr, c);
    return linear(dropout_features(f, p[0], c.dropout("mlp", 0.5), c), p[1], nullptr, c);
  };
  expect_same_of_any_samples(
      layers, {{random({48, kC}, 3) / 5, {Ffn, Embed}}, {random({kC, 48}, 5) / 7, {Embed, Ffn}}});
}

// The heads of the bias are those of the queries, and its gradient is that of all samples.
TEST(GridAttention, ToAnotherTextMayHaveABiasByDistance) {
  static constexpr ops::RelativeBuckets kRule = {.count = 8, .max_distance = 5};
  for (const std::int64_t heads : {4, 5}) {
    const Layers layers =
        [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
          const std::int64_t own = heads_of(p[0]).count;
          const auto qkv = split_heads(linear(x, p[0], nullptr, c), 3, own);
          ops::AttentionArgs args;
          args.causal = false;
          args.first_head = heads_of(p[0]).first;
          args.mask_BS = at::arange(kT).lt(4).to(at::kLong).expand({c.batch->size(), kT});
          args.bias_HTS = relative_bias(p[2], kRule, kT, kT, c);
          args.dropout = c.dropout("cross_attention", 0.5);
          const at::Tensor y = cross_attention(qkv[0], qkv[1], qkv[2], args, c);
          return linear(merge_heads(y), p[1], nullptr, c);
        };
    expect_same_of_any_samples(layers,
                               {{random({3, heads, 6, kC}, 3) / 5, {None, Heads, None, Embed}},
                                {random({kC, heads * 6}, 5) / 5, {Embed, Heads}, 6},
                                {random({8, heads}, 6), {None, Heads}, 1, Role::PositionTable}});
  }
}

TEST(GridLoss, MayHaveASoftCap) {
  const Layers layers = [](const at::Tensor& x, const std::vector<PlacedParam>& p, StepContext& c) {
    return vocab_loss(x, p[0], nullptr, some_labels(5, 29), 0.1, c, 3.0).sum;
  };
  expect_same(layers,
              random({5, kT, kC}, 1),
              at::scalar_tensor(0.25, at::kDouble),
              {{random({29, kC}, 3), {Vocab, Embed}}});
}

// A part of the vocabulary needs all columns of a row.
TEST(GridLogProbabilities, AreThoseOfAllSamples) {
  for (const bool part : {false, true}) {
    Distribution how = {.softcap = 9.0, .temperature = 0.7, .squares = true, .entropies = true};
    if (part) how.support = {.top_k = 7};
    const Layers layers = [&](const at::Tensor& x,
                              const std::vector<PlacedParam>& p,
                              StepContext& c) {
      const at::Tensor labels = some_labels(5, 29).narrow(0, 0, c.batch->size());
      const TokenLogProbabilities made = token_log_probabilities(x, p[0], &p[1], labels, c, how);
      return made.values_BT * (made.log_sums_of_squares_BT + 1) + made.entropies_BT;
    };
    expect_same_of_any_samples(
        layers, {{random({29, kC}, 3) / 5, {Vocab, Embed}}, {random({29}, 4), {Vocab}}}, {kT});
  }
}

}  // namespace
}  // namespace tessera::nn::on_grids
