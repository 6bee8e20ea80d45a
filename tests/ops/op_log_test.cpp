// SPDX-License-Identifier: Apache-2.0
// A log of operations: arithmetic and bytes by their definitions, and every second counted once.
#include "tessera/ops/op_log.h"

#include <algorithm>
#include <thread>

#include "ops/support.h"

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {
namespace {

const OpRow* find(const std::vector<OpRow>& rows, const std::string& name) {
  const auto it =
      std::find_if(rows.begin(), rows.end(), [&](const OpRow& row) { return row.name == name; });
  return it == rows.end() ? nullptr : &*it;
}

TEST(OpLog, CountsTheProductsOfALinearLayer) {
  const at::Tensor x = random({6, 5}, 1, at::kBFloat16), weight = random({7, 5}, 2, at::kBFloat16),
                   dy = random({6, 7}, 3, at::kBFloat16), dw = at::zeros({7, 5});
  std::vector<OpRow> rows;
  {
    const OpLog log;
    ops::linear(x, weight);
    ops::linear(x, weight);
    linear_input_grad(dy, weight);
    linear_weight_grad(dy, x, dw, true);
    rows = log.rows();
  }

  ASSERT_EQ(rows.size(), 3U) << "what runs inside of an operation is no operation of its own";
  const double flops = 2.0 * 6 * 5 * 7;  // a multiplication and an addition each
  for (const char* name : {"linear", "linear dx", "linear dW"}) {
    const OpRow* row = find(rows, name);
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->shape, "6 x 5 -> 7");
    EXPECT_EQ(row->calls, row->name == "linear" ? 2 : 1);
    EXPECT_EQ(row->flops, static_cast<double>(row->calls) * flops);
    EXPECT_GT(row->seconds, 0.0);
  }
  EXPECT_EQ(find(rows, "linear")->bytes, 2 * 2.0 * (6 * 5 + 7 * 5 + 6 * 7));
  EXPECT_EQ(find(rows, "linear dx")->bytes, 2.0 * (6 * 7 + 7 * 5 + 6 * 5));
  // Sums so far are read and written in fp32.
  EXPECT_EQ(find(rows, "linear dW")->bytes, 2.0 * (6 * 7 + 6 * 5) + 2 * 4.0 * 7 * 5);
}

TEST(OpLog, CountsThePairsThatAttentionSees) {
  constexpr std::int64_t B = 2, H = 3, T = 5, S = 9, K = 4, offset = 4;
  const at::Tensor q = random({B, H, T, K}, 1), k = random({B, H, S, K}, 2);
  AttentionArgs args;
  args.query_offset = offset;
  double terms = 0;
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t s = 0; s < S; ++s)
      terms += s <= offset + t ? static_cast<double>(B * H * K) : 0.0;
  }
  const OpLog log;

  const AttentionOut out = attention(q, k, k, args);
  attention_backward(q, q, k, k, out, args);

  // Scores and their sums of values; backward the scores again and four gradients.
  EXPECT_EQ(find(log.rows(), "attention")->flops, 2 * 2 * terms);
  EXPECT_EQ(find(log.rows(), "attention backward")->flops, 5 * 2 * terms);
  EXPECT_EQ(find(log.rows(), "attention")->shape, "B2 H3 T5 S9 K4");
}

TEST(OpLog, CountsWhatAnUpdateReadsAndWrites) {
  std::vector<float> state(4 * 100, 1.0F);
  std::vector<std::uint16_t> working(100);
  const OpLog log;

  adamw(state.data(),
        state.data() + 100,
        state.data() + 200,
        state.data() + 300,
        working.data(),
        DType::BF16,
        100,
        {.step = 1});

  // Master and two moments both ways, the gradient one way, bf16 weights out.
  EXPECT_EQ(find(log.rows(), "adamw")->bytes, 100 * (3 * 8 + 4 + 2));
}

TEST(OpLog, KnowsOperationsOfLibtorch) {
  const at::Tensor a = random({10, 20}, 1), b = random({20, 30}, 2), c = random({10, 20}, 3);
  const OpLog log;

  at::add(a, c);
  at::mm(a, b);
  at::Tensor copy = at::empty({10, 20});
  copy.copy_(a);
  const at::Tensor view = a.view({200});

  const std::vector<OpRow> rows = log.rows();
  EXPECT_EQ(find(rows, "aten::add")->bytes, 3 * 4.0 * 200);
  EXPECT_EQ(find(rows, "aten::mm")->flops, 2.0 * 10 * 20 * 30);
  EXPECT_EQ(find(rows, "aten::copy_")->bytes, 2 * 4.0 * 200) << "the destination is not read";
  EXPECT_EQ(find(rows, "aten::view")->bytes, 0.0) << "a view moves nothing";
  EXPECT_EQ(find(rows, "aten::empty")->bytes, 0.0);
}

TEST(OpLog, CountsNoSecondTwice) {
  const at::Tensor x = random({64, 64}, 1), weight = random({64, 64}, 2);
  double sum = 0;

  const double begin = now_s();
  {
    const OpLog log;
    for (int i = 0; i < 100; ++i)
      at::add(ops::linear(x, weight), x);
    for (const OpRow& row : log.rows())
      sum += row.seconds;
  }
  const double wall = now_s() - begin;

  EXPECT_GT(sum, 0.0);
  EXPECT_LE(sum, wall);
}

TEST(OpLog, IsOfItsThreadAndItsTime) {
  const at::Tensor x = random({4, 4}, 1);
  {
    const OpLog log;
    EXPECT_EQ(OpLog::current(), &log);
    std::thread([&] {
      EXPECT_EQ(OpLog::current(), nullptr);
      ops::linear(x, x);
      at::add(x, x);
    }).join();
    EXPECT_TRUE(log.rows().empty());
    EXPECT_THROW(OpLog(), Error);
    ops::linear(x, x);
    EXPECT_EQ(log.rows().size(), 1U);
  }
  EXPECT_EQ(OpLog::current(), nullptr);
  EXPECT_NO_THROW(OpLog());
}

}  // namespace
}  // namespace tessera::ops
