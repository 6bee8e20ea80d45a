// SPDX-License-Identifier: Apache-2.0
// Every instruction set's kernels give the bits of the portable ones.
#include "tessera/ops/cpu/kernels.h"

#include "ops/support.h"
#include "ops/variants.h"

#include "tessera/base/dtype.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kRows = 5, kColumns = 83, kAll = kRows * kColumns;

/// fn(kernels) returns a tensor; all of them must be the same.
template <class Fn>
void expect_same_bits(Fn fn) {
  const std::vector<Variant> all = variants();
  const at::Tensor portable = fn(*all[0].kernels);
  for (const Variant& other : all)
    EXPECT_TRUE(same_bits(portable, fn(*other.kernels))) << other.name;
}

class KernelDtypes : public testing::TestWithParam<at::ScalarType> {
 protected:
  cpu::Float index() const { return cpu::float_of(at::empty({0}, GetParam())); }
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

TEST_P(KernelDtypes, NormsByTheMeanSquare) {
  const at::Tensor x = this->x(), dy = this->dy(), weight = random({kColumns}, 3);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty_like(x), dx = at::empty_like(x), rstd = at::empty({kRows});
    const at::Tensor sums = at::zeros({kColumns});
    k.rms_norm[index()]({.x = x.data_ptr(),
                         .weight = weight.data_ptr<float>(),
                         .bias = nullptr,
                         .y = y.data_ptr(),
                         .mean = nullptr,
                         .rstd = rstd.data_ptr<float>(),
                         .channels = kColumns,
                         .eps = 1e-5},
                        0,
                        kRows);
    k.rms_norm_grad[index()]({.dy = dy.data_ptr(),
                              .x = x.data_ptr(),
                              .mean = nullptr,
                              .rstd = rstd.data_ptr<float>(),
                              .weight = weight.data_ptr<float>(),
                              .dx = dx.data_ptr(),
                              .channels = kColumns},
                             sums.data_ptr<float>(),
                             nullptr,
                             0,
                             kRows);
    return at::cat({y.to(at::kFloat).view({-1}), dx.to(at::kFloat).view({-1}), sums, rstd});
  });
}

TEST_P(KernelDtypes, Gates) {
  constexpr std::int64_t kFeatures = 41, kGates = 4;
  const at::Tensor x = (random({kGates, 2 * kFeatures}, 1) * 4).to(GetParam()),
                   dy = random({kGates, kFeatures}, 2, GetParam());
  for (int activation = 0; activation < 4; ++activation) {
    expect_same_bits([&](const cpu::Kernels& k) {
      const at::Tensor y = at::empty_like(dy), dx = at::empty_like(x);
      k.gated[index()](x.data_ptr(), y.data_ptr(), kFeatures, activation, 0, kGates);
      k.gated_grad[index()](
          dy.data_ptr(), x.data_ptr(), dx.data_ptr(), kFeatures, activation, 0, kGates);
      return at::cat({y, dx}, 1);
    });
  }
}

TEST_P(KernelDtypes, Rotations) {
  // 18 pairs of 39 channels turn, the last three stay.
  constexpr std::int64_t B = 2, T = 3, H = 2, K = 39, P = 18;
  const at::Tensor x = random({B, T, H, K}, 1, GetParam()), table = random({2, B * T, P}, 2);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty_like(x);
    k.rotary[index()]({.x = x.data_ptr(),
                       .y = y.data_ptr(),
                       .from = {T * H * K, H * K, K},
                       .to = {T * H * K, H * K, K},
                       .tokens = T,
                       .heads = H,
                       .channels = K,
                       .pairs = P,
                       .cosine = table.data_ptr<float>(),
                       .sine = table.data_ptr<float>() + B * T * P,
                       .table_tokens = T,
                       .direction = -1.0F},
                      0,
                      B * T);
    return y;
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
  const at::Tensor x = this->x(), plus = this->dy();
  // The second of these begins three counters before their lower half overflows.
  for (const std::uint64_t first : {(1ULL << 35) + 3, (1ULL << 34) - 11}) {
    expect_same_bits([&](const cpu::Kernels& k) {
      const at::Tensor y = at::empty_like(x), sum = at::empty_like(x);
      const auto draw = [&](const void* onto, const at::Tensor& to) {
        k.dropout[index()](
            x.data_ptr(), onto, to.data_ptr(), kAll, 77, 1ULL << 40, first, 1U << 22, 1.25F);
      };
      draw(nullptr, y);
      draw(plus.data_ptr(), sum);
      return at::cat({y, sum});
    });
  }
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

TEST_P(KernelDtypes, ProductsOfFewRows) {
  const at::Tensor weight = this->x(), vectors = random({7, kColumns}, 6),
                   scales = random({kRows}, 7);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty({7, kRows});
    k.row_products[index()]({vectors.data_ptr<float>(),
                             7,
                             kColumns,
                             kRows,
                             weight.data_ptr(),
                             scales.data_ptr<float>(),
                             scales.data_ptr<float>(),
                             y.data_ptr<float>()},
                            0,
                            kRows);
    return y;
  });
}

TEST_P(KernelDtypes, AttentionOfOneQuery) {
  const at::Tensor keys = this->x(), values = dy(), query = random({kColumns}, 6);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor out = at::empty({kColumns + 1}), scores = at::empty({kRows});
    k.attend_one[index()]({query.data_ptr<float>(),
                           {keys.data_ptr(), kColumns},
                           {values.data_ptr(), kColumns},
                           kRows,
                           kColumns,
                           {.scale = 0.3F, .cap = 2.0F, .slope = 0.5F, .distance = -4},
                           scores.data_ptr<float>(),
                           out.data_ptr<float>(),
                           out.data_ptr<float>() + kColumns});
    return out;
  });
}

TEST_P(KernelDtypes, AttentionOfOneQueryInPages) {
  constexpr std::int64_t kPage = 3, kPages = kRows / kPage;
  const at::Tensor keys = this->x(), values = dy(), query = random({kColumns}, 6);
  std::vector<const void*> key_pages, value_pages;
  for (std::int64_t page = 0; page < kPages; ++page) {
    key_pages.push_back(keys[page * kPage].const_data_ptr());
    value_pages.push_back(values[page * kPage].const_data_ptr());
  }
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor out = at::empty({kColumns}), scores = at::empty({kRows});
    k.attend_pages[index()]({.query = query.data_ptr<float>(),
                             .keys = key_pages.data(),
                             .values = value_pages.data(),
                             .key_scales = nullptr,
                             .value_scales = nullptr,
                             .page = kPage,
                             .first = 1,
                             .count = kPages * kPage - 2,
                             .channels = kColumns,
                             .form = {.scale = 0.3F, .cap = 2.0F, .slope = 0.5F, .distance = -4},
                             .scores = scores.data_ptr<float>(),
                             .y = out.data_ptr<float>()});
    return out;
  });
}

TEST_P(KernelDtypes, RowsOfEightBitsWidened) {
  const at::Tensor rows = (random({kRows, kColumns}, 1) * 127).to(at::kChar),
                   scales = random({kRows}, 2);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor to = at::empty_like(this->x());
    k.widen_int8[index()]({rows.const_data_ptr<std::int8_t>(),
                           scales.const_data_ptr<float>(),
                           kColumns,
                           to.data_ptr()},
                          0,
                          kRows);
    return to;
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         KernelDtypes,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(Kernels, AttentionToEightBitsAgreesAcrossInstructionSets) {
  const at::Tensor rows = (random({2, kRows, kColumns}, 1) * 127).to(at::kChar),
                   scales = random({2, kRows}, 2), query = random({kColumns}, 6);
  const void *const keys = rows[0].const_data_ptr(), *const values = rows[1].const_data_ptr();
  const float *const key_scales = scales[0].const_data_ptr<float>(),
                     *const value_scales = scales[1].const_data_ptr<float>();
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor out = at::empty({kColumns}), scores = at::empty({kRows});
    k.attend_pages_int8({.query = query.data_ptr<float>(),
                         .keys = &keys,
                         .values = &values,
                         .key_scales = &key_scales,
                         .value_scales = &value_scales,
                         .page = kRows,
                         .first = 2,
                         .count = kRows - 2,
                         .channels = kColumns,
                         .form = {.scale = 0.3F},
                         .scores = scores.data_ptr<float>(),
                         .y = out.data_ptr<float>()});
    return out;
  });
}

TEST(Kernels, ProductsOfEightBitsAgreeAcrossInstructionSets) {
  const at::Tensor weight = (random({kRows, kColumns}, 1) * 127).to(at::kChar),
                   vectors = random({3, kColumns}, 2);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor y = at::empty({3, kRows});
    k.row_products_int8({vectors.data_ptr<float>(),
                         3,
                         kColumns,
                         kRows,
                         weight.data_ptr(),
                         nullptr,
                         nullptr,
                         y.data_ptr<float>()},
                        0,
                        kRows);
    return y;
  });
}

TEST(Kernels, CrossEntropyAndSoftmaxAgreeAcrossInstructionSets) {
  const at::Tensor logits = random({kRows, kColumns}, 1) * 20,
                   labels = int64s({3, 82, -100, 0, 40});
  const at::Tensor mask = random({kColumns}, 5), kept = random({kRows, kColumns}, 6).abs();
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor x = logits.clone(), p = logits.clone(), d = logits.clone(),
                     s = at::empty_like(logits), losses = at::empty({kRows}, at::kDouble);
    k.cross_entropy[cpu::kF32]({x.data_ptr<float>(),
                                labels.data_ptr<std::int64_t>(),
                                losses.data_ptr<double>(),
                                kColumns,
                                -100,
                                0.1,
                                x.data_ptr()},
                               0,
                               kRows);
    const at::Tensor y = logits.clone(), narrow = at::empty(logits.sizes(), at::kBFloat16);
    k.cross_entropy[cpu::kBF16]({y.data_ptr<float>(),
                                 labels.data_ptr<std::int64_t>(),
                                 losses.data_ptr<double>(),
                                 kColumns,
                                 -100,
                                 0.1,
                                 narrow.data_ptr()},
                                0,
                                kRows);
    EXPECT_TRUE(same_bits(x.to(at::kBFloat16), narrow));
    const at::Tensor max = at::full({kRows}, -std::numeric_limits<float>::infinity()),
                     sum = at::zeros({kRows}), shrink = at::empty({kRows});
    k.attend[cpu::kF32]({.scores = p.data_ptr<float>(),
                         .probabilities = p.data_ptr(),
                         .max = max.data_ptr<float>(),
                         .sum = sum.data_ptr<float>(),
                         .shrink = shrink.data_ptr<float>(),
                         .keys = kColumns,
                         .first_visible = 60,
                         .form = {.scale = 0.3F, .of_keys = mask.const_data_ptr<float>()},
                         .kept = kept.const_data_ptr<float>()},
                        0,
                        kRows);
    k.attend_grad[cpu::kF32]({.scores = d.data_ptr<float>(),
                              .dprobabilities = kept.const_data_ptr<float>(),
                              .probabilities = s.data_ptr(),
                              .dscores = d.data_ptr(),
                              .log_sum = max.const_data_ptr<float>(),
                              .mean = sum.const_data_ptr<float>(),
                              .keys = kColumns,
                              .first_visible = 60,
                              .form = {.scale = 0.3F, .of_keys = mask.const_data_ptr<float>()},
                              .kept = kept.const_data_ptr<float>()},
                             0,
                             kRows);
    return at::cat(
        {x.view({-1}).to(at::kDouble), p.view({-1}), d.view({-1}), s.view({-1}), sum, losses});
  });
}

TEST(Kernels, ScoresOfAttentionAgreeAcrossInstructionSets) {
  const at::Tensor scores = random({kRows, kColumns}, 1) * 20, dp = random({kRows, kColumns}, 2),
                   pairs = random({kRows, kColumns + 3}, 3);
  expect_same_bits([&](const cpu::Kernels& k) {
    const at::Tensor p = scores.clone(), s = scores.clone(), ds = dp.clone(),
                     dpairs = pairs.clone(), slopes = at::empty({kColumns});
    const at::Tensor max = at::full({kRows}, -std::numeric_limits<float>::infinity()),
                     sum = at::zeros({kRows}), shrink = at::empty({kRows});
    const cpu::ScoreForm form{.scale = 0.3F,
                              .cap = 4.0F,
                              .of_pairs = pairs.const_data_ptr<float>(),
                              .pair_stride = kColumns + 3,
                              .slope = 0.7F,
                              .distance = -9};
    k.attend[cpu::kF32]({.scores = p.data_ptr<float>(),
                         .probabilities = p.data_ptr(),
                         .max = max.data_ptr<float>(),
                         .sum = sum.data_ptr<float>(),
                         .shrink = shrink.data_ptr<float>(),
                         .keys = kColumns,
                         .first_visible = 60,
                         .first_begin = 7,
                         .form = form},
                        0,
                        kRows);
    k.attend_grad[cpu::kF32]({.scores = s.data_ptr<float>(),
                              .dprobabilities = ds.const_data_ptr<float>(),
                              .probabilities = s.data_ptr(),
                              .dscores = ds.data_ptr(),
                              .log_sum = max.const_data_ptr<float>(),
                              .mean = sum.const_data_ptr<float>(),
                              .keys = kColumns,
                              .first_visible = 60,
                              .first_begin = 7,
                              .form = form,
                              .cap_slopes = slopes.data_ptr<float>(),
                              .dpairs = dpairs.data_ptr<float>(),
                              .dpair_stride = kColumns + 3},
                             0,
                             kRows);
    return at::cat(
        {p.view({-1}), s.view({-1}), ds.view({-1}), dpairs.view({-1}), max, sum, shrink});
  });
}

TEST(Kernels, UpdatesAndSumsAgreeAcrossInstructionSets) {
  const at::Tensor state = random({4, kAll}, 1).abs();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_same_bits([&](const cpu::Kernels& k) {
      const at::Tensor s = state.clone(), working = at::empty({kAll}, dtype),
                       sums = at::empty({5}, at::kDouble);
      float* at = s.data_ptr<float>();
      k.adamw({.master = at,
               .grad = at + 3 * kAll,
               .working = static_cast<std::uint16_t*>(working.data_ptr()),
               .working_dtype = dtype == at::kHalf ? DType::F16 : DType::BF16,
               .numel = kAll},
              at + kAll,
              at + 2 * kAll,
              {.lr = 1e-2,
               .beta1 = 0.9,
               .beta2 = 0.95,
               .weight_decay = 0.1,
               .step = 7,
               .grad_scale = 0.5},
              0,
              kAll);
      k.square_sums(at, kAll, 100, sums.data_ptr<double>(), 0, 5);
      return at::cat({s.view({-1}).to(at::kDouble), working.to(at::kDouble), sums});
    });
  }
}

/// Returns the values, those at odd places negated, as a norm stores them: for the input +1, -1,
/// +1, ... its output is the weights with these signs, because the mean is 0 and the variance 1.
std::vector<std::uint16_t> stored(const cpu::Kernels& k, const std::vector<float>& values) {
  const std::int64_t n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint16_t> x(values.size(), to_fp16(1.0F)), y(values.size());
  for (std::size_t i = 1; i < x.size(); i += 2)
    x[i] = to_fp16(-1.0F);
  float mean = 9.0F, rstd = 9.0F;
  k.layer_norm[cpu::kF16]({x.data(), values.data(), nullptr, y.data(), &mean, &rstd, n, 0.0}, 0, 1);
  EXPECT_EQ(mean, 0.0F);
  EXPECT_EQ(rstd, 1.0F);
  return y;
}

TEST(Kernels, RoundToFp16AsTheDefinitionDoes) {
  // All numbers of fp16, the midpoints between them, their neighbours, and a walk over all of fp32.
  std::vector<float> values;
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const float here = from_fp16(static_cast<std::uint16_t>(half)),
                next = from_fp16(static_cast<std::uint16_t>(half + 1));
    const float middle = std::isinf(next) ? std::copysign(65520.0F, here) : (here + next) / 2;
    values.insert(values.end(),
                  {here, middle, std::nextafter(middle, here), std::nextafter(middle, next)});
  }
  for (std::uint64_t pattern = 0; pattern < (1ULL << 32); pattern += 40013) {
    const auto bits = static_cast<std::uint32_t>(pattern);
    values.emplace_back();
    std::memcpy(&values.back(), &bits, 4);
  }
  values.resize(values.size() / 2 * 2);
  std::vector<std::uint16_t> expected;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool negated = i % 2 == 1 && !std::isnan(values[i]);
    expected.push_back(to_fp16(negated ? -values[i] : values[i]));
  }

  for (const Variant& variant : variants()) {
    EXPECT_TRUE(stored(*variant.kernels, values) == expected) << variant.name;
  }
}

TEST(Kernels, WidenFp16AsTheDefinitionDoes) {
  constexpr std::int64_t kHalves = 0x10000;
  std::vector<std::uint16_t> halves(kHalves), back(kHalves), expected_back;
  std::vector<float> expected;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
    expected.push_back(0.0F + from_fp16(halves[i]));
    expected_back.push_back(to_fp16(from_fp16(halves[i])));
  }

  for (const auto& [name, k] : variants()) {
    std::vector<float> sums(kHalves);
    k->column_sums[cpu::kF16](halves.data(), kHalves, sums.data(), 0, 1);
    // Drops nothing.
    k->dropout[cpu::kF16](halves.data(), nullptr, back.data(), kHalves, 1, 2, 0, 0, 1.0F);

    EXPECT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(float)), 0) << name;
    EXPECT_TRUE(back == expected_back) << name;
  }
}

}  // namespace
}  // namespace tessera::ops
