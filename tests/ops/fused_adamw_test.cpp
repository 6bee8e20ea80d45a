// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fused_adamw.h"

#include <limits>

#include "ops/support.h"

#include "tessera/base/dtype.h"

namespace tessera::ops {
namespace {

struct State {
  std::vector<float> master, exp_avg, exp_avg_sq, grad;
  std::vector<std::uint16_t> working;
  DType dtype = DType::BF16;
};

std::uint16_t rounded(float value, DType dtype) {
  return dtype == DType::F16 ? to_fp16(value) : to_bf16(value);
}

std::vector<float> floats(const at::Tensor& x) {
  return {x.data_ptr<float>(), x.data_ptr<float>() + x.numel()};
}

State state(std::int64_t n) {
  return {floats(random({n}, 1)),
          floats(random({n}, 2) * 0.1),
          floats(random({n}, 3).abs() * 0.01),
          floats(random({n}, 4)),
          std::vector<std::uint16_t>(static_cast<std::size_t>(n))};
}

void update(State& s, std::int64_t first, std::int64_t n, const AdamWScalars& scalars) {
  adamw(s.master.data() + first,
        s.exp_avg.data() + first,
        s.exp_avg_sq.data() + first,
        s.grad.data() + first,
        s.working.data() + first,
        s.dtype,
        n,
        scalars);
}

const AdamWScalars kScalars = {.lr = 1e-2,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .step = 3,
                               .grad_scale = 0.5};

TEST(FusedAdamW, AgreesWithFloat64) {
  for (const bool decoupled : {true, false}) {
    for (const bool corrected : {true, false}) {
      const State before = state(1003);
      State after = before;
      after.dtype = corrected ? DType::BF16 : DType::F16;
      AdamWScalars s = kScalars;
      s.decoupled = decoupled;
      s.bias_correction = corrected;

      update(after, 0, 1003, s);

      const double c1 = corrected ? 1.0 - std::pow(s.beta1, 3) : 1.0,
                   c2 = corrected ? 1.0 - std::pow(s.beta2, 3) : 1.0;
      for (std::size_t i = 0; i < before.master.size(); ++i) {
        double p = before.master[i], g = before.grad[i] * s.grad_scale;
        if (!decoupled) g += s.weight_decay * p;
        if (decoupled) p -= s.lr * s.weight_decay * p;
        const double m = s.beta1 * before.exp_avg[i] + (1.0 - s.beta1) * g;
        const double v = s.beta2 * before.exp_avg_sq[i] + (1.0 - s.beta2) * g * g;
        p -= s.lr / c1 * m / (std::sqrt(v) / std::sqrt(c2) + s.eps);
        // A handful of fp32 operations on numbers of at most 1.
        ASSERT_NEAR(after.exp_avg[i], m, 2e-7) << i;
        ASSERT_NEAR(after.exp_avg_sq[i], v, 2e-7) << i;
        ASSERT_NEAR(after.master[i], p, 3e-7) << i;
        ASSERT_EQ(after.working[i], rounded(after.master[i], after.dtype)) << i;
      }
    }
  }
}

TEST(FusedAdamW, AnElementDoesNotDependOnItsPlace) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    State whole = state(100);
    whole.dtype = dtype;
    State pieces = whole;

    update(whole, 0, 100, kScalars);
    for (std::int64_t first = 0, n = 1; first < 100;
         first += n, n = std::min<std::int64_t>(n + 2, 100 - first)) {
      update(pieces, first, std::min<std::int64_t>(n, 100 - first), kScalars);
    }

    EXPECT_EQ(whole.master, pieces.master);
    EXPECT_EQ(whole.exp_avg, pieces.exp_avg);
    EXPECT_EQ(whole.exp_avg_sq, pieces.exp_avg_sq);
    EXPECT_EQ(whole.working, pieces.working);
  }
}

TEST(FusedAdamW, AMasterThatDoesNotFitIntoFp16HasAnInfiniteWorkingCopy) {
  State s = state(40);
  s.dtype = DType::F16;
  s.master.assign(40, 65536.0F);
  s.grad.assign(40, -1.0F);  // away from zero

  update(s, 0, 40, {.lr = 1e-2});

  EXPECT_EQ(s.working, std::vector<std::uint16_t>(40, 0x7c00));
  EXPECT_TRUE(std::isfinite(s.master[0]));
}

TEST(FusedAdamW, HasTheSameBitsForAnyNumberOfThreadsAndWithoutAWorkingCopy) {
  const auto results = with_threads([&] {
    State s = state(70001);
    update(s, 0, 70001, kScalars);
    return s.master;
  });
  State alone = state(70001);
  adamw(alone.master.data(),
        alone.exp_avg.data(),
        alone.exp_avg_sq.data(),
        alone.grad.data(),
        nullptr,
        DType::F32,
        70001,
        kScalars);

  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[0], alone.master);
}

TEST(ChunkSums, AgreeWithFloat64AndKeepTheirLastPiece) {
  const std::vector<float> grad = floats(random({2500}, 1));
  std::vector<double> sums(3);

  chunk_square_sums(grad.data(), 2500, 1024, sums.data());

  for (std::size_t c = 0; c < 3; ++c) {
    double expected = 0.0;
    for (std::size_t i = c * 1024; i < std::min<std::size_t>(2500, (c + 1) * 1024); ++i) {
      expected += static_cast<double>(grad[i]) * grad[i];
    }
    EXPECT_NEAR(sums[c], expected, 1e-12 * expected);  // float64 in another order
  }
}

TEST(ChunkSums, DoNotDependOnThreadsOrOnTheRangeAroundThem) {
  const std::vector<float> grad = floats(random({1024 * 40}, 1));

  const auto results = with_threads([&] {
    std::vector<double> sums(40);
    chunk_square_sums(grad.data(), 1024 * 40, 1024, sums.data());
    return sums;
  });
  std::vector<double> part(3);
  chunk_square_sums(grad.data() + 1024 * 7, 1024 * 3, 1024, part.data());

  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(part, std::vector<double>(results[0].begin() + 7, results[0].begin() + 10));
}

TEST(FirstNonfinite, FindsTheFirst) {
  std::vector<float> values = floats(random({3001}, 1));
  EXPECT_EQ(first_nonfinite(values.data(), 3001), -1);

  for (const std::int64_t at : {3000, 1777, 512, 1, 0}) {
    values[static_cast<std::size_t>(at)] =
        at % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
    EXPECT_EQ(first_nonfinite(values.data(), 3001), at);
  }
}

}  // namespace
}  // namespace tessera::ops
