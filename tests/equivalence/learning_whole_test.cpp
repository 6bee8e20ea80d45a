// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// timeout: 7200
#include "equivalence/learning.h"

namespace tessera::test {
namespace {

/// 124M parameters, with GPT-2's vocabulary although bytes use 256 rows of it.
constexpr const char* kGpt2Small =
    R"({"preset": "gpt2-small", "vocab_size": 50257, "dropout": 0.0})";

TEST(LearningWhole, OfThe124MGpt2InBf16IsWithinHalfAPercentOfFp32) {
  expect_bf16_learns_alike(shakespeare_run(kGpt2Small, "3e-4", 128),
                           {.ranks = 2, .micro_batch = 2});
}

}  // namespace
}  // namespace tessera::test
