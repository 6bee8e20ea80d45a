// SPDX-License-Identifier: Apache-2.0
// A log of operations: arithmetic and bytes by their definitions, and every second counted once.
#include "tessera/ops/op_log.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "ops/support.h"

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/memory/meta_count.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/meta_device.h"
#include "tessera/ops/norm.h"
#include "tessera/ops/rotary.h"

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

  ASSERT_EQ(rows.size(), 3U) << "what runs inside of an operation is not an operation of its own";
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

/// The logged operations of `run` on tensors that `on` moves, by name and shape, without times.
using Work = std::map<std::pair<std::string, std::string>, std::array<double, 3>>;
template <class Run>
Work work_of(const Run& run, at::Device device) {
  const OpLog log;
  run([&](const at::Tensor& x) { return x.to(device); });
  Work out;
  for (const OpRow& row : log.rows()) {
    if (!row.name.starts_with("aten::"))
      out[{row.name, row.shape}] = {static_cast<double>(row.calls), row.flops, row.bytes};
  }
  return out;
}

TEST(OpLog, CountsTheSameWorkOnMetaTensors) {
  const at::Tensor x = random({2, 6, 8}, 1, at::kBFloat16), w = random({10, 8}, 2, at::kBFloat16),
                   dy = random({2, 6, 10}, 3, at::kBFloat16), c = at::ones({8}),
                   q = random({2, 4, 6, 8}, 4), k = random({2, 2, 6, 8}, 5),
                   ids = int64s({0, 9, 3}), labels = int64s({1, 2, 3});
  const auto run = [&](const auto& on) {
    ops::linear(on(x), on(w), {}, at::kFloat);
    linear_input_grad(on(dy), on(w));
    linear_weight_grad(on(dy), on(x), on(at::zeros({10, 8})), /*accumulate=*/true);
    linear_bias_grad(on(dy), on(at::zeros({10})), /*accumulate=*/false);
    activate(on(x), Activation::Gelu);
    activate_backward(on(x), on(x), Activation::Gelu);
    gated(on(dy), Activation::Silu);
    gated_backward(on(dy.narrow(2, 0, 5).contiguous()), on(dy), Activation::Silu);
    for (const std::int64_t window : {0, 3}) {
      AttentionArgs args;
      args.window = window;
      const AttentionOut out = attention(on(q), on(k), on(k), args);
      attention_backward(on(q), on(q), on(k), on(k), out, args);
    }
    const LayerNormOut layer = layer_norm(on(x), on(c), on(c), 1e-5, on(x));
    layer_norm_backward(
        on(x), on(x), layer.mean_N, layer.rstd_N, on(c), on(c), false, on(c), false, on(x));
    const RmsNormOut rms = rms_norm(on(x), on(c), 1e-5, {});
    rms_norm_backward(on(x), on(x), rms.rstd_N, {}, on(c), false, {});
    const DropoutKey key = {.p = 0.5, .sample_ids = {7, 8}};
    ops::dropout(on(x), key);
    add_dropout(on(x), on(x), key);
    ops::embedding(on(w), on(ids));
    embedding_grad(on(x.narrow(1, 0, 3).select(0, 0)), on(ids), on(at::zeros({10, 8})), false);
    const RotaryTable table =
        rotary_table(on(at::arange(6).expand({2, 6}).contiguous()), {1, .1, .01, .001});
    rotary(on(q), table);
    rotary_backward(on(q), table);
    cross_entropy_(on(random({3, 10}, 6)), on(labels), 0.0, /*want_grad=*/true);
    exp_rows_(
        on(random({3, 10}, 6)), on(at::zeros({3}, at::kDouble)), on(at::zeros({3}, at::kDouble)));
  };

  const Work cpu = work_of(run, at::kCPU), meta = work_of(run, at::kMeta);

  EXPECT_EQ(cpu.size(), 21U) << "every operation above, with each of its shapes";
  EXPECT_EQ(cpu, meta);
}

TEST(OpLog, MetaTensorsAllocateTheScratchMemoryOfTheirDevice) {
  const at::Tensor q = random({1, 2, 64, 8}, 1).to(at::kMeta);
  const AttentionArgs args;
  const auto peak_on = [&](c10::Device device) {
    const ScopedMetaDevice scoped(device);
    memory::MetaCount count;
    attention(q, q, q, args);
    return count.peak() - count.current();
  };

  const std::int64_t cpu = peak_on(at::kCPU), other = peak_on(at::kCUDA);

  const auto results = static_cast<std::int64_t>(q.nbytes()) + 2 * 64 * 4;
  EXPECT_EQ(cpu, results + backend(at::kCPU).attention_scratch(q, q, args, false));
  EXPECT_EQ(other, results + backends().get("aten")->attention_scratch(q, q, args, false));
  EXPECT_EQ(&meta_backend(), &backend(at::kCPU)) << "the device is forgotten with its scope";
}

}  // namespace
}  // namespace tessera::ops
