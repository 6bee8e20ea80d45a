// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/support.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/support.h"

namespace tessera::ops {
namespace {

/// The ids that remain of one row of logits.
std::vector<std::int64_t> kept(const std::vector<float>& logits,
                               const Support& support,
                               std::int64_t label = -1) {
  const at::Tensor row_1V = at::tensor(logits, at::kFloat).unsqueeze(0);
  keep_support_(row_1V, label < 0 ? at::Tensor() : int64s({label}), support);
  std::vector<std::int64_t> out;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const float left = row_1V[0][static_cast<std::int64_t>(id)].item<float>();
    if (std::isinf(left)) continue;
    EXPECT_EQ(left, logits[id]);
    out.push_back(static_cast<std::int64_t>(id));
  }
  return out;
}
using Ids = std::vector<std::int64_t>;

float log_of(double share) {
  return static_cast<float>(std::log(share));
}

TEST(Support, TopKKeepsTheMostLikelyAndOfEqualOnesTheFirst) {
  const std::vector<float> logits = {1, 3, 2, 3, 2};
  EXPECT_EQ(kept(logits, {}), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept(logits, {.top_k = 1}), (Ids{1}));
  EXPECT_EQ(kept(logits, {.top_k = 3}), (Ids{1, 2, 3}));
  EXPECT_EQ(kept(logits, {.top_k = 9}), (Ids{0, 1, 2, 3, 4}));
}

TEST(Support, TopPKeepsTheFewestThatReachTheShare) {
  const std::vector<float> logits = {log_of(0.1), log_of(0.5), log_of(0.15), log_of(0.25)};
  EXPECT_EQ(kept(logits, {.top_p = 0.4}), (Ids{1}));
  EXPECT_EQ(kept(logits, {.top_p = 0.7}), (Ids{1, 3}));
  EXPECT_EQ(kept(logits, {.top_p = 0.8}), (Ids{1, 2, 3}));
  EXPECT_EQ(kept(logits, {.top_p = 1e-9}), (Ids{1}));
  // Of the two most likely ones, the first has two thirds.
  EXPECT_EQ(kept(logits, {.top_k = 2, .top_p = 0.6}), (Ids{1}));
}

TEST(Support, HasTheLabelAndNoTokenBehindTheVocabulary) {
  const std::vector<float> logits = {1, 3, 2, 9};
  EXPECT_EQ(kept(logits, {.vocab = 3, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(kept(logits, {.vocab = 3, .top_k = 1}, 0), (Ids{0, 1}));
}

TEST(Support, OfManyTokensIsThatOfASort) {
  const at::Tensor logits_NV = random({3, 5000}, 7) * 4;
  const at::Tensor kept_NV = logits_NV.clone();
  keep_support_(kept_NV, {}, {.top_p = 0.6});
  for (std::int64_t row = 0; row < 3; ++row) {
    const at::Tensor p_V = logits_NV[row].to(at::kDouble).softmax(0);
    const at::Tensor sorted_V = std::get<0>(p_V.sort(0, /*descending=*/true));
    const auto count = sorted_V.cumsum(0).lt(0.6).sum().item<std::int64_t>() + 1;
    EXPECT_GT(count, 256);
    EXPECT_EQ(kept_NV[row].isfinite().sum().item<std::int64_t>(), count);
    EXPECT_TRUE(kept_NV[row].isfinite().equal(p_V.ge(sorted_V[count - 1])));
  }
}

}  // namespace
}  // namespace tessera::ops
