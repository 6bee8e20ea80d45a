// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels for heads of attention, packed numbers and tokens in their emulation, and the
// calls of cuBLAS, flash attention and cuDNN with stand-ins for these.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/cuda/emulated_backend.h"
#include "ops/cuda/emulation.h"
#include "ops/support.h"
#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/gpu/attention_kernel.h"
#include "tessera/ops/nf4.h"

namespace tessera::ops {
namespace {

using emulation::Order;

constexpr std::array kKinds = {at::kFloat, at::kBFloat16, at::kHalf};

const Backend& reference() {
  return *backends().get("aten");
}

/// Runs the kernels of a test in each order of warps and lanes.
class CudaHeads : public testing::TestWithParam<Order> {
 protected:
  CudaHeads() { emulation::set_order(GetParam(), 11); }
  ~CudaHeads() override { emulation::set_order(Order::Forward); }
};

TEST_P(CudaHeads, RotatePairsToTheBitsOfTheReference) {
  for (const at::ScalarType dtype : kKinds) {
    for (const bool interleaved : {false, true}) {
      for (const std::int64_t samples : {1, 2}) {
        RotaryTable table = {random({samples, 5, 3}, 1), random({samples, 5, 3}, 2), interleaved};
        // Heads beside each other, as a fused projection leaves them, and channels that are copied.
        const at::Tensor x = random({2, 5, 4, 10}, 3, dtype).transpose(1, 2);
        for (const int direction : {1, -1}) {
          const at::Tensor ours = fused_heads(x, 1)[0], wanted = fused_heads(x, 1)[0];
          emulated_backend().rotary(x, table, direction, ours);
          reference().rotary(x, table, direction, wanted);
          EXPECT_TRUE(same_bits(ours, wanted)) << c10::toString(dtype) << interleaved << direction;
        }
      }
    }
  }
}

TEST_P(CudaHeads, WidenAndNarrowNumbersToTheBitsOfTheReference) {
  for (const std::int64_t numel : {1, 63, 64, 65, 700}) {
    const std::int64_t blocks = (numel + kNf4Block - 1) / kNf4Block;
    const at::Tensor values = random({numel}, 1) * 3;
    if (numel > 200) values.narrow(0, 64, 64).zero_();
    const auto encoded = [&](const Backend& on) {
      const at::Tensor codes = at::empty({blocks * kNf4Block / 2}, at::kByte),
                       scales = at::empty({blocks});
      on.narrow_nf4(values, codes, scales);
      return std::pair(codes, scales);
    };
    const auto [codes, scales] = encoded(emulated_backend());
    const auto [wanted_codes, wanted_scales] = encoded(reference());
    EXPECT_TRUE(same_bits(codes, wanted_codes)) << numel;
    EXPECT_TRUE(same_bits(scales, wanted_scales)) << numel;
    for (const at::ScalarType dtype : kKinds) {
      const at::Tensor ours = at::empty({numel}, dtype), wanted = at::empty({numel}, dtype);
      emulated_backend().widen_nf4(codes, scales, ours);
      reference().widen_nf4(codes, scales, wanted);
      EXPECT_TRUE(same_bits(ours, wanted)) << numel;
    }
  }
  const at::Tensor rows = (random({5, 33}, 4) * 127).to(at::kChar), scales = random({5}, 5);
  for (const at::ScalarType dtype : kKinds) {
    const at::Tensor ours = at::empty({5, 33}, dtype), wanted = at::empty({5, 33}, dtype);
    emulated_backend().widen_int8(rows, scales, ours);
    reference().widen_int8(rows, scales, wanted);
    EXPECT_TRUE(same_bits(ours, wanted));
  }
}

TEST_P(CudaHeads, SumTheColumnsOfABiasInAFixedOrder) {
  for (const std::int64_t rows : {1, 31, 200}) {
    for (const at::ScalarType dtype : kKinds) {
      const at::Tensor dy = random({rows, 40}, 1, dtype);
      for (const bool accumulate : {false, true}) {
        const at::Tensor ours = at::ones({40});
        emulated_backend().linear_bias_grad(dy, accumulate, ours);
        const at::Tensor wanted = dy.to(at::kDouble).sum(0) + (accumulate ? 1.0 : 0.0);
        expect_close(ours, doubles(wanted), static_cast<double>(rows + 2) * 0x1p-23);
      }
    }
  }
}

struct PagedCase {
  std::int64_t heads, groups, channels, window;
  double softcap;
  bool alibi, bias, int8;
  std::int64_t chunk;
};

TEST_P(CudaHeads, AttendToPagesAsTheReferenceDoes) {
  for (const PagedCase& c : {PagedCase{4, 4, 8, 0, 0.0, false, false, false, 0},
                             PagedCase{4, 2, 40, 0, 0.0, true, false, false, 0},
                             PagedCase{2, 1, 64, 3, 5.0, false, true, false, 0},
                             PagedCase{4, 2, 16, 0, 0.0, false, false, false, 7},
                             PagedCase{2, 2, 96, 0, 0.0, false, false, true, 0}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      constexpr std::int64_t kPages = 6, kTokens = 4;
      const std::vector<std::int64_t> sizes = {kPages, c.groups, kTokens, c.channels};
      KvPages pages = {random(sizes, 1, dtype), random(sizes, 2, dtype), {}, {}};
      if (c.int8) {
        pages = {(random(sizes, 1) * 127).to(at::kChar),
                 (random(sizes, 2) * 127).to(at::kChar),
                 random({kPages, c.groups, kTokens}, 3) / 127,
                 random({kPages, c.groups, kTokens}, 4) / 127};
      }
      AttentionArgs args;
      args.window = c.window;
      args.chunk = c.chunk;
      args.softcap = c.softcap;
      if (c.alibi) args.alibi = alibi_slopes(c.heads);
      if (c.bias) args.bias_HTS = random({c.heads, 1, 11}, 5);
      const at::Tensor q = random({3, c.heads, 1, c.channels}, 6, dtype);
      const at::Tensor table = int64s({5, 0, 3, 1, 0, 0, 2, 4, 0}).view({3, 3}),
                       lengths = int64s({11, 1, 6});
      expect_close(emulated_backend().paged_attention(q, pages, table, lengths, args),
                   doubles(reference().paged_attention(q, pages, table, lengths, args)),
                   2 * epsilon(dtype) + static_cast<double>(c.channels) * 0x1p-21);
    }
  }
}

TEST_P(CudaHeads, DrawTheTokensOfTheReference) {
  for (const std::int64_t vocab : {3, 300, 1500}) {
    const at::Tensor logits = random({vocab + 4}, 1) * 4;
    logits[vocab - 1] = logits[0];
    for (const SamplerOptions& how : {SamplerOptions{.temperature = 0.0},
                                      SamplerOptions{},
                                      SamplerOptions{.temperature = 0.7, .top_k = 2},
                                      SamplerOptions{.temperature = 1.3, .top_p = 0.8},
                                      SamplerOptions{.top_k = 40, .top_p = 0.5},
                                      SamplerOptions{.top_p = 1e-9}}) {
      for (const std::int64_t position : {0, 1, 2, 3}) {
        EXPECT_EQ(emulated_backend().sample_token(logits, vocab, how, 5, position),
                  reference().sample_token(logits, vocab, how, 5, position))
            << vocab << " " << how.top_k << " " << how.top_p;
      }
    }
  }
}

TEST_P(CudaHeads, RefuseALogitThatIsNotANumberAndTakeInfiniteOnes) {
  const at::Tensor logits = random({700}, 1);
  logits[650] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(emulated_backend().sample_token(logits, 700, {}, 1, 0), 650);
  logits[600] = NAN;
  logits[20] = NAN;
  try {
    static_cast<void>(emulated_backend().sample_token(logits, 700, {}, 1, 0));
    FAIL() << "it drew a token";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), testing::HasSubstr("logit 20 is not a number"));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders,
                         CudaHeads,
                         testing::ValuesIn(emulation::kOrders),
                         [](const auto& info) { return emulation::name(info.param); });

// ---- libraries

TEST(GpuProducts, AddGradientsOfWeightsInFp32) {
  for (const at::ScalarType dtype : kKinds) {
    const at::Tensor x = random({7, 5}, 1, dtype), dy = random({7, 3}, 2, dtype),
                     weight = random({3, 5}, 3, dtype), bias = random({3}, 4, dtype);
    const auto results = [&](const Backend& on) {
      const at::Tensor fresh = at::full({3, 5}, NAN), added = at::ones({3, 5});
      on.linear_weight_grad(dy, x, /*accumulate=*/false, 0.5F, fresh);
      on.linear_weight_grad(dy, x, /*accumulate=*/true, 1.0F, added);
      return std::vector{fresh,
                         added,
                         on.linear(x, weight, bias, dtype),
                         on.linear(x, weight, bias, at::kFloat),
                         on.linear(x.view({7, 1, 5}), weight, {}, at::kFloat),
                         on.linear_input_grad(dy, weight)};
    };
    const auto ours = results(emulated_backend()), wanted = results(reference());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), wanted[i].scalar_type()) << i;
      EXPECT_EQ(ours[i].sizes(), wanted[i].sizes()) << i;
      expect_close(ours[i], doubles(wanted[i]), 2 * epsilon(wanted[i].scalar_type()) + 1e-6);
    }
  }
}

TEST(GpuProducts, WidenInt8MatricesToTheDtypeOfTheirArguments) {
  const Int8Rows matrix = to_int8(random({9, 16}, 1));
  const at::Tensor bias = random({9}, 2);
  for (const at::ScalarType dtype : kKinds) {
    const at::Tensor x = random({3, 16}, 3, dtype);
    const at::Tensor ours = emulated_backend().linear_int8(x, matrix, bias, dtype);
    EXPECT_EQ(ours.scalar_type(), dtype);
    expect_close(ours,
                 doubles(reference().linear_int8(x, matrix, bias, at::kFloat)),
                 2 * epsilon(dtype) + 1e-5);
  }
}

/// The choice of this test's attention; the default returns at its end.
class ScopedKernel {
 public:
  explicit ScopedKernel(AttentionKernel kernel) { set_attention_kernel(kernel); }
  ~ScopedKernel() { set_attention_kernel(AttentionKernel::Deterministic); }
  ScopedKernel(const ScopedKernel&) = delete;
  ScopedKernel& operator=(const ScopedKernel&) = delete;
};

TEST(GpuAttention, IsThatOfTheReferenceWithEachLibrary) {
  struct Case {
    const char* name;
    std::int64_t heads, groups, queries, keys, channels;
    AttentionArgs args;
  };
  AttentionArgs window, both, later, none;
  window.window = 3;
  none.causal = false;
  both.causal = false;
  both.window = 2;
  later.query_offset = 4;
  for (const AttentionKernel kernel : {AttentionKernel::Deterministic, AttentionKernel::Fastest}) {
    const ScopedKernel use(kernel);
    for (const Case& c : {Case{"causal", 4, 4, 9, 9, 8, {}},
                          Case{"grouped", 4, 2, 9, 9, 16, {}},
                          Case{"window", 2, 2, 9, 9, 8, window},
                          Case{"both sides", 2, 1, 9, 9, 8, both},
                          Case{"after a cache", 2, 2, 5, 9, 8, later},
                          Case{"all keys", 2, 2, 5, 9, 24, none},
                          Case{"odd channels", 2, 2, 9, 9, 6, {}}}) {
      for (const at::ScalarType dtype : kKinds) {
        SCOPED_TRACE(std::string(c.name) + " in " + c10::toString(dtype));
        const at::Tensor q = random({2, c.queries, c.heads, c.channels}, 1, dtype).transpose(1, 2),
                         k = random({2, c.keys, c.groups, c.channels}, 2, dtype).transpose(1, 2),
                         v = random({2, c.keys, c.groups, c.channels}, 3, dtype).transpose(1, 2),
                         dy = random({2, c.queries, c.heads, c.channels}, 4, dtype).transpose(1, 2);
        const auto results = [&](const Backend& on) {
          const AttentionOut out = on.attention(q, k, v, c.args);
          const AttentionGrads d = on.attention_backward(dy, q, k, v, out, c.args);
          return std::vector{out.y_BHTK, out.saved, d.dq_BHTK, d.dk_BGSK, d.dv_BGSK};
        };
        const auto ours = results(emulated_backend()), wanted = results(reference());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          SCOPED_TRACE(i);
          EXPECT_EQ(ours[i].scalar_type(), wanted[i].scalar_type());
          EXPECT_EQ(ours[i].strides(), wanted[i].strides());
          expect_close(ours[i], doubles(wanted[i]), 6 * epsilon(dtype) + 1e-5);
        }
      }
    }
  }
}

TEST(GpuAttention, TakesDocumentsOfAnyLengthsInOneCall) {
  const at::Tensor starts = int64s({0, 0, 0, 3, 4, 4, 4, 0, 1, 1, 3, 3, 3, 6}).view({2, 7});
  for (const std::int64_t window : {0, 2}) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t groups : {4, 2}) {
        SCOPED_TRACE(testing::Message() << window << causal << groups);
        const auto heads = [](std::int64_t count, unsigned seed) {
          return random({2, 7, count, 8}, seed, at::kBFloat16).transpose(1, 2);
        };
        const at::Tensor q = heads(4, 1), k = heads(groups, 2), v = heads(groups, 3),
                         dy = heads(4, 4);
        AttentionArgs args;
        args.window = window;
        args.causal = causal;
        const auto one_document = args;
        args.starts_BT = starts;
        ASSERT_TRUE(emulated_backend().takes_documents(q, k, args));
        const AttentionOut out = emulated_backend().attention(q, k, v, args);
        const AttentionGrads d = emulated_backend().attention_backward(dy, q, k, v, out, args);
        EXPECT_EQ(out.saved.sizes(), at::IntArrayRef({2, 4, 7}));
        for (const auto& [sample, begin, end] : std::vector<std::array<std::int64_t, 3>>{
                 {0, 0, 3}, {0, 3, 4}, {0, 4, 7}, {1, 0, 1}, {1, 1, 3}, {1, 3, 6}, {1, 6, 7}}) {
          const auto of = [&, s = sample, b = begin, e = end](const at::Tensor& x) {
            return x.narrow(0, s, 1).narrow(2, b, e - b);
          };
          const AttentionOut wanted = reference().attention(of(q), of(k), of(v), one_document);
          const AttentionGrads of_wanted =
              reference().attention_backward(of(dy), of(q), of(k), of(v), wanted, one_document);
          const double within = 6 * epsilon(at::kBFloat16) + 1e-5;
          expect_close(of(out.y_BHTK), doubles(wanted.y_BHTK), within);
          expect_close(of(out.saved), doubles(wanted.saved), within);
          expect_close(of(d.dq_BHTK), doubles(of_wanted.dq_BHTK), within);
          expect_close(of(d.dk_BGSK), doubles(of_wanted.dk_BGSK), within);
          expect_close(of(d.dv_BGSK), doubles(of_wanted.dv_BGSK), within);
        }
      }
    }
  }
  AttentionArgs masked;
  masked.starts_BT = starts;
  masked.softcap = 5.0;
  const at::Tensor q = random({2, 7, 4, 8}, 1, at::kBFloat16).transpose(1, 2);
  EXPECT_FALSE(emulated_backend().takes_documents(q, q, masked));
}

/// Counts the scores that a call would need as a whole.
TEST(GpuAttention, NeedsNoMemoryForScoresWhereAFusedKernelRuns) {
  const at::Tensor q = at::empty({1, 2, 4096, 64}, at::device(at::kMeta).dtype(at::kBFloat16));
  const std::int64_t scores = 2LL * 4096 * 4096 * 4;
  EXPECT_EQ(emulated_backend().attention_scratch(q, q, {}, /*backward=*/false), 0);
  EXPECT_LT(emulated_backend().attention_scratch(q, q, {}, /*backward=*/true), scores / 10);
  AttentionArgs dropped;
  dropped.softcap = 20.0;
  EXPECT_GT(emulated_backend().attention_scratch(q, q, dropped, /*backward=*/false), scores);
}

TEST(GpuAttention, LeavesTheDeterminismOfTheProcessAsItWas) {
  const at::Tensor q = random({1, 4, 2, 8}, 1, at::kBFloat16).transpose(1, 2);
  const AttentionOut out = emulated_backend().attention(q, q, q, {});
  static_cast<void>(emulated_backend().attention_backward(q, q, q, q, out, {}));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  static_cast<void>(emulated_backend().attention_backward(q, q, q, q, out, {}));
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

}  // namespace
}  // namespace tessera::ops
