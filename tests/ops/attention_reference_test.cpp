// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The CPU's attention with windows, soft caps, ALiBi and biases in every combination, compared with
// the reference of plain ATen operations, which computes all scores.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/support.h"

#include "tessera/ops/attention.h"
#include "tessera/ops/backend.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kB = 2, kH = 2, kK = 16;

/// Our exponential is exact to a few of its last places. 16-bit kernels round probabilities and
/// their gradients before they are multiplied.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 3e-5 : 4 * epsilon(dtype);
}

struct Sizes {
  std::int64_t queries, keys, groups;
};
void expect_reference(const Sizes& sizes, const AttentionArgs& args, at::ScalarType dtype) {
  SCOPED_TRACE(std::string("of ") + c10::toString(dtype));
  const at::Tensor q = random({kB, kH, sizes.queries, kK}, 1, dtype),
                   k = random({kB, sizes.groups, sizes.keys, kK}, 2, dtype),
                   v = random({kB, sizes.groups, sizes.keys, kK}, 3, dtype),
                   dy = random({kB, kH, sizes.queries, kK}, 4, dtype);
  const Backend &ours = *backends().get("cpu"), &reference = *backends().get("aten");
  const double within = tolerance(dtype);

  const AttentionOut out = ours.attention(q, k, v, args),
                     expected = reference.attention(q, k, v, args);
  expect_close(out.y_BHTK, doubles(expected.y_BHTK), within);
  // If no key is seen, both are -inf.
  expect_close(out.saved.clamp_min(-1e6), doubles(expected.saved.clamp_min(-1e6)), within);

  const AttentionGrads d = ours.attention_backward(dy, q, k, v, expected, args),
                       right = reference.attention_backward(dy, q, k, v, expected, args);
  expect_close(d.dq_BHTK, doubles(right.dq_BHTK), within);
  expect_close(d.dk_BGSK, doubles(right.dk_BGSK), within);
  expect_close(d.dv_BGSK, doubles(right.dv_BGSK), within);
  if (args.bias_HTS.defined()) expect_close(d.dbias_HTS, doubles(right.dbias_HTS), within);
}

// Every third one with padding, every fifth one with dropout.
TEST(AttentionReference, OfEveryCombinationOfForms) {
  constexpr std::int64_t kT = 140;
  at::Tensor mask = at::ones({kB, kT}, at::kLong);
  mask[1].slice(0, 2, kT, 4).zero_();
  // The keys of a pair are not contiguous, as in a table of positions.
  const at::Tensor bias = random({kT, kT, kH}, 5).permute({2, 0, 1});
  for (int form = 0; form < 32; ++form) {
    SCOPED_TRACE("form " + std::to_string(form));
    AttentionArgs args{.causal = (form & 1) == 0};
    args.window = (form & 2) != 0 ? 20 : 0;
    args.softcap = (form & 4) != 0 ? 0.8 : 0.0;
    if ((form & 8) != 0) {
      args.first_head = 2;
      args.alibi = alibi_slopes(6);
    }
    if ((form & 16) != 0) args.bias_HTS = bias;
    if (form % 3 == 0) args.mask_BS = mask;
    if (form % 5 == 0) args.dropout = {.p = 0.3, .key = 77, .sample_ids = {5, 8}};
    const Sizes sizes{kT, kT, form % 7 < 3 ? 1 : 2};
    expect_reference(sizes, args, at::kFloat);
    expect_reference(sizes, args, form % 7 == 1 ? at::kHalf : at::kBFloat16);
  }
}

// Blocks of 512 keys, of which windows begin and end within others than the first and the last.
TEST(AttentionReference, OfManyBlocksInWindows) {
  for (const bool causal : {true, false}) {
    for (const auto& [window, groups] : {std::pair<std::int64_t, std::int64_t>{100, 2}, {600, 1}}) {
      SCOPED_TRACE((causal ? "causal " : "two-sided ") + std::to_string(window));
      const AttentionArgs whole{.causal = causal, .window = window, .softcap = 0.8},
          later{.causal = causal, .query_offset = 960, .window = window, .alibi = alibi_slopes(2)},
          // The last queries are so far after the keys that they see none.
          beyond{.causal = causal, .query_offset = 1000, .window = window};
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        expect_reference({700, 700, groups}, whole, dtype);
        expect_reference({90, 1050, groups}, later, dtype);
        expect_reference({700, 1050, groups}, beyond, dtype);
      }
    }
  }
}

// The reference gives a probability of 0 to keys that a bias of -inf hides, also in rows with no
// other keys.
TEST(AttentionReference, OfInfiniteBiases) {
  const at::Tensor bias = random({kH, 40, 600}, 6);
  bias.slice(2, 0, 520).fill_(-std::numeric_limits<double>::infinity());
  bias[1][3].fill_(-std::numeric_limits<double>::infinity());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    expect_reference({40, 600, 2}, {.causal = false, .bias_HTS = bias}, dtype);
}

}  // namespace
}  // namespace tessera::ops
