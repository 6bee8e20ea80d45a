// SPDX-License-Identifier: Apache-2.0
// Every instruction set's kernels give the bits of the portable ones.
#include "tessera/ops/cpu/kernels.h"

#include "ops/support.h"

#include "tessera/ops/cpu/isa.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kRows = 5, kColumns = 83, kAll = kRows * kColumns;

std::vector<const cpu::Kernels*> runnable() {
  std::vector<const cpu::Kernels*> out = {&cpu::portable_kernels()};
  if (runs_here(Isa::Avx2)) out.push_back(&cpu::avx2_kernels());
  if (runs_here(Isa::Avx512)) out.push_back(&cpu::avx512_kernels());
  return out;
}

/// fn(kernels) returns a tensor; all of them must be the same.
template <class Fn>
void expect_same_bits(Fn fn) {
  const auto all = runnable();
  const at::Tensor portable = fn(*all[0]);
  for (const cpu::Kernels* other : all)
    EXPECT_TRUE(same_bits(portable, fn(*other)));
}

class KernelDtypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  cpu::Float index() const { return GetParam() == at::kFloat ? cpu::kF32 : cpu::kBF16; }
  at::Tensor x() const { return (random({kRows, kColumns}, 1) * 4).to(GetParam()); }
  at::Tensor dy() const { return random({kRows, kColumns}, 2, GetParam()); }
};

TEST_P(KernelDtypes, Norms) {
  const at::Tensor x = this->x(), dy = this->dy(), weight = random({kColumns}, 3);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty_like(x), dx = at::empty_like(x), mean = at::empty({kRows}),
                     rstd = at::empty({kRows});
    const at::Tensor sums = at::zeros({2, kColumns});
    const cpu::NormRows rows{x.data_ptr(),
                             weight.data_ptr<float>(),
                             weight.data_ptr<float>(),
                             y.data_ptr(),
                             mean.data_ptr<float>(),
                             rstd.data_ptr<float>(),
                             kColumns,
                             1e-5};
    const cpu::NormGradRows grads{dy.data_ptr(),
                                  x.data_ptr(),
                                  mean.data_ptr<float>(),
                                  rstd.data_ptr<float>(),
                                  weight.data_ptr<float>(),
                                  dx.data_ptr(),
                                  kColumns};
    k.layer_norm[index()](rows, 0, kRows);
    k.layer_norm_grad[index()](
        grads, sums.data_ptr<float>(), sums.data_ptr<float>() + kColumns, 0, kRows);
    k.column_sums[index()](dy.data_ptr(), kColumns, sums.data_ptr<float>(), 0, kRows);
    return at::cat({y.to(at::kFloat), dx.to(at::kFloat), sums});
  });
}

TEST_P(KernelDtypes, Activations) {
  const at::Tensor x = this->x(), dy = this->dy();
  for (int activation = 0; activation < 4; ++activation) {
    expect_same_bits([&](const cpu::Kernels& k) {
      const at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
      k.activate[index()](x.data_ptr(), y.data_ptr(), activation, 0, kAll);
      k.activate_grad[index()](dy.data_ptr(), x.data_ptr(), dx.data_ptr(), activation, 0, kAll);
      return at::cat({y, dx});
    });
  }
}

TEST_P(KernelDtypes, Dropout) {
  const at::Tensor x = this->x();
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty_like(x);
    k.dropout[index()](
        x.data_ptr(), y.data_ptr(), kAll, 77, 1ULL << 40, (1ULL << 35) + 3, 1U << 22, 1.25F);
    return y;
  });
}

TEST_P(KernelDtypes, EmbeddingGradients) {
  const at::Tensor dy = this->dy(), ids = int64s({1, 0, 1, 2, 1});
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor dw = at::zeros({3, kColumns});
    k.embedding_grad[index()](dy.data_ptr(),
                              ids.data_ptr<std::int64_t>(),
                              dw.data_ptr<float>(),
                              kRows,
                              kColumns,
                              0,
                              kColumns);
    return dw;
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, KernelDtypes, testing::Values(at::kFloat, at::kBFloat16));

TEST(Kernels, CrossEntropyAndSoftmaxAgreeAcrossInstructionSets) {
  const at::Tensor logits = random({kRows, kColumns}, 1) * 20,
                   labels = int64s({3, 82, -100, 0, 40});
  const at::Tensor mask = random({1, kColumns}, 5).abs();
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor x = logits.clone(), p = logits.clone(), d = logits.clone(),
                     losses = at::empty({kRows}, at::kDouble);
    k.cross_entropy({x.data_ptr<float>(),
                     labels.data_ptr<std::int64_t>(),
                     losses.data_ptr<double>(),
                     kColumns,
                     -100,
                     0.1,
                     true},
                    0,
                    kRows);
    k.softmax({p.data_ptr<float>(), mask.data_ptr<float>(), 1, kRows, kColumns, 60, true, 0.3F},
              0,
              kRows);
    k.softmax_grad(p.data_ptr<float>(), d.data_ptr<float>(), kColumns, 0.3F, 0, kRows);
    return at::cat({x.view({-1}).to(at::kDouble), p.view({-1}), d.view({-1}), losses});
  });
}

TEST(Kernels, UpdatesAndSumsAgreeAcrossInstructionSets) {
  const at::Tensor state = random({4, kAll}, 1).abs();
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor s = state.clone(), working = at::empty({kAll}, at::kBFloat16),
                     sums = at::empty({5}, at::kDouble);
    float* at = s.data_ptr<float>();
    k.adamw({at,
             at + kAll,
             at + 2 * kAll,
             at + 3 * kAll,
             static_cast<std::uint16_t*>(working.data_ptr()),
             0.5F,
             0.9F,
             0.1F,
             0.95F,
             0.05F,
             0.999F,
             0.01F,
             1e-2F,
             1.1F,
             1e-8F},
            0,
            kAll);
    k.square_sums(at, kAll, 100, sums.data_ptr<double>(), 0, 5);
    return at::cat({s.view({-1}).to(at::kDouble), working.to(at::kDouble), sums});
  });
}

}  // namespace
}  // namespace tessera::ops
