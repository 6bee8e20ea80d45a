// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
#include "equivalence/learning.h"

namespace tessera::test {
namespace {

TEST(Learning, OfANanoGptInBf16IsWithinHalfAPercentOfFp32) {
  expect_bf16_learns_alike(shakespeare_run(R"({"preset": "nano", "dropout": 0.0})", "1e-3", 64),
                           {.ranks = 1, .micro_batch = 12});
}

}  // namespace
}  // namespace tessera::test
