// SPDX-License-Identifier: Apache-2.0
// The updates of the optimizer rules: an element's result depends on nothing but itself, neither on
// its place nor on threads nor on the CPU. Their formulas are tested with the rules.
#include "tessera/ops/fused_rules.h"

#include <functional>
#include <string>

#include "ops/support.h"
#include "ops/variants.h"

#include "tessera/base/dtype.h"
#include "tessera/ops/newton_schulz.h"

namespace tessera::ops {
namespace {

struct Data {
  std::vector<float> master, grad, first, second, third;
  std::vector<std::uint16_t> working;
};

std::vector<float> floats(const at::Tensor& x) {
  return {x.data_ptr<float>(), x.data_ptr<float>() + x.numel()};
}

Data data(std::int64_t n) {
  return {floats(random({n}, 1)),
          floats(random({n}, 2)),
          floats(random({n}, 3) * 0.1),
          floats(random({n}, 4).abs() * 0.01 + 0.02),
          floats(random({n}, 5) * 0.1),
          std::vector<std::uint16_t>(static_cast<std::size_t>(n))};
}

/// The elements [first, first + n) of the data.
struct Part {
  RuleRange range;
  float *first, *second, *third;
};
Part part(Data& d, std::int64_t first, std::int64_t n, bool working = true) {
  return {{.master = d.master.data() + first,
           .grad = d.grad.data() + first,
           .working = working ? d.working.data() + first : nullptr,
           .numel = n,
           .grad_scale = 0.5},
          d.first.data() + first,
          d.second.data() + first,
          d.third.data() + first};
}

const SgdStep kSgd = {
    .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .add = 0.8, .nesterov = true};
const AdagradStep kAdagrad = {.lr = 1e-2, .eps = 1e-8, .weight_decay = 0.1, .initial = 0.1};
const LionStep kLion = {.lr = 1e-2, .weight_decay = 0.1};
const RmspropStep kRmsprop = {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1};
const NAdamStep kNAdam = {
    .grad_rate = 1e-3, .avg_rate = 1e-2, .correction2 = 0.1, .l2 = 0.1, .decay = 1e-3};
const AdamaxStep kAdamax = {.rate = 1e-2, .weight_decay = 0.1};
const LambStep kLamb = {.correction1 = 0.2, .correction2 = 0.1, .l2 = 0.05, .weight_decay = 0.1};
const DirectionStep kDirection = {.rate = 1e-2, .decay = 1e-3, .beta1 = 0.9};

struct Update {
  std::string name;
  std::function<void(const Part&)> run;
  /// The same by one instruction set's kernel.
  std::function<void(const cpu::Kernels&, const Part&)> kernel;
};

std::vector<Update> updates() {
  return {
      {"Sgd",
       [](const Part& p) { sgd(p.range, p.first, kSgd); },
       [](const cpu::Kernels& k, const Part& p) {
         k.sgd(p.range, p.first, kSgd, 0, p.range.numel);
       }},
      {"SgdWithoutBuffer",
       [](const Part& p) { sgd(p.range, nullptr, kSgd); },
       [](const cpu::Kernels& k, const Part& p) {
         k.sgd(p.range, nullptr, kSgd, 0, p.range.numel);
       }},
      {"Adagrad",
       [](const Part& p) { adagrad(p.range, p.second, kAdagrad); },
       [](const cpu::Kernels& k, const Part& p) {
         k.adagrad(p.range, p.second, kAdagrad, 0, p.range.numel);
       }},
      {"Lion",
       [](const Part& p) { lion(p.range, p.first, kLion); },
       [](const cpu::Kernels& k, const Part& p) {
         k.lion(p.range, p.first, kLion, 0, p.range.numel);
       }},
      {"Rmsprop",
       [](const Part& p) { rmsprop(p.range, p.second, p.first, p.third, kRmsprop); },
       [](const cpu::Kernels& k, const Part& p) {
         k.rmsprop(p.range, p.second, p.first, p.third, kRmsprop, 0, p.range.numel);
       }},
      {"NAdam",
       [](const Part& p) { nadam(p.range, p.first, p.second, kNAdam); },
       [](const cpu::Kernels& k, const Part& p) {
         k.nadam(p.range, p.first, p.second, kNAdam, 0, p.range.numel);
       }},
      {"Adamax",
       [](const Part& p) { adamax(p.range, p.first, p.second, kAdamax); },
       [](const cpu::Kernels& k, const Part& p) {
         k.adamax(p.range, p.first, p.second, kAdamax, 0, p.range.numel);
       }},
      {"LambUpdate",
       [](const Part& p) { lamb_update(p.range, p.first, p.second, kLamb, 1e-2); },
       [](const cpu::Kernels& k, const Part& p) {
         k.lamb_update(p.range, p.first, p.second, kLamb, 1e-2, 0, p.range.numel);
       }},
      {"MakeDirection",
       [](const Part& p) { make_direction(p.range, p.first, p.third, 0.9, true); },
       [](const cpu::Kernels& k, const Part& p) {
         k.make_direction(p.range, p.first, p.third, 0.9, true, 0, p.range.numel);
       }},
      {"ApplyDirection",
       [](const Part& p) { apply_direction(p.range, p.third, p.first, kDirection); },
       [](const cpu::Kernels& k, const Part& p) {
         k.apply_direction(p.range, p.third, p.first, kDirection, 0, p.range.numel);
       }},
  };
}

void expect_same(const Data& a, const Data& b) {
  EXPECT_EQ(a.master, b.master);
  EXPECT_EQ(a.first, b.first);
  EXPECT_EQ(a.second, b.second);
  EXPECT_EQ(a.third, b.third);
  EXPECT_EQ(a.working, b.working);
}

class FusedRule : public testing::TestWithParam<Update> {};

TEST_P(FusedRule, AnElementDoesNotDependOnItsPlace) {
  Data whole = data(100);
  Data pieces = whole;

  GetParam().run(part(whole, 0, 100));
  for (std::int64_t first = 0, n = 1; first < 100; first += n, n += 2)
    GetParam().run(part(pieces, first, std::min<std::int64_t>(n, 100 - first)));

  expect_same(whole, pieces);
}

TEST_P(FusedRule, HasTheSameBitsForAnyNumberOfThreads) {
  const auto results = with_threads([&] {
    Data d = data(70001);
    GetParam().run(part(d, 0, 70001));
    return d;
  });

  expect_same(results[0], results[1]);
  expect_same(results[0], results[2]);
}

TEST_P(FusedRule, HasTheSameBitsOnEveryInstructionSet) {
  Data portable = data(1003);
  GetParam().kernel(cpu::portable_kernels(), part(portable, 0, 1003));

  for (const auto& [name, kernels] : variants()) {
    SCOPED_TRACE(name);
    Data other = data(1003);
    GetParam().kernel(*kernels, part(other, 0, 1003));
    expect_same(portable, other);
  }
}

TEST_P(FusedRule, RoundsTheMasterIntoTheWorkingCopy) {
  for (const DType type : {DType::BF16, DType::F16}) {
    SCOPED_TRACE(name(type));
    Data with = data(1003), without = with;
    with.working.assign(1003, 0x7fff);  // a NaN in both types, which no update leaves

    Part rounding = part(with, 0, 1003);
    rounding.range.working_dtype = type;
    GetParam().run(rounding);
    GetParam().run(part(without, 0, 1003, false));

    EXPECT_EQ(with.master, without.master);
    for (std::size_t i = 0; i < with.working.size() && GetParam().name != "MakeDirection"; ++i) {
      const float master = with.master[i];
      ASSERT_EQ(with.working[i], type == DType::F16 ? to_fp16(master) : to_bf16(master)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FusedRule, testing::ValuesIn(updates()), [](const auto& info) {
  return info.param.name;
});

struct LambSums {
  Data d;
  std::vector<double> weights, updates;
  bool operator==(const LambSums& other) const {
    return d.first == other.d.first && d.second == other.d.second && weights == other.weights &&
           updates == other.updates;
  }
};

TEST(LambPrepare, ReportsTheSumsOfChunksWhateverTheThreadsAndTheCpu) {
  constexpr std::int64_t kElements = 40 * 1024 + 83;
  const LambSums start = {data(kElements), std::vector<double>(41), std::vector<double>(41)};

  const auto results = with_threads([&] {
    LambSums s = start;
    const Part p = part(s.d, 0, kElements);
    lamb_prepare(p.range, p.first, p.second, kLamb, s.weights.data(), s.updates.data());
    return s;
  });
  LambSums last = start;
  const Part end = part(last.d, 39 * 1024, 1024 + 83);
  lamb_prepare(end.range, end.first, end.second, kLamb, last.weights.data(), last.updates.data());

  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
  EXPECT_EQ(results[0].d.master, start.d.master);
  for (std::size_t c : {0U, 1U}) {
    EXPECT_EQ(last.weights[c], results[0].weights[39 + c]);
    EXPECT_EQ(last.updates[c], results[0].updates[39 + c]);
  }
  for (const auto& [name, kernels] : variants()) {
    SCOPED_TRACE(name);
    LambSums other = start;
    const Part p = part(other.d, 0, kElements);
    kernels->lamb_prepare(
        p.range, p.first, p.second, kLamb, other.weights.data(), other.updates.data(), 0, 41);
    EXPECT_TRUE(results[0] == other);
  }
}

TEST(ColumnSums, OfSquaresAgreeWithFloat64WhateverTheThreadsAndTheCpu) {
  constexpr std::int64_t kRows = 301, kColumns = 203;
  const std::vector<float> x = floats(random({kRows, kColumns}, 1));

  const auto results = with_threads([&] {
    std::vector<double> sums(kColumns);
    column_square_sums(x.data(), kRows, kColumns, sums.data());
    return sums;
  });

  for (std::size_t c = 0; c < kColumns; ++c) {
    double expected = 0.0;
    for (std::size_t r = 0; r < kRows; ++r)
      expected += static_cast<double>(x[r * kColumns + c]) * x[r * kColumns + c];
    ASSERT_EQ(results[0][c], expected) << c;  // the same order
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  for (const auto& [name, kernels] : variants()) {
    SCOPED_TRACE(name);
    std::vector<double> sums(kColumns, 1.0);
    kernels->column_square_sums(x.data(), kRows, kColumns, sums.data(), 0, kColumns);
    EXPECT_EQ(results[0], sums);
  }
}

TEST(RowAndColumnScales, MultiplyInThatOrderOnEveryCpu) {
  constexpr std::int64_t kRows = 31, kColumns = 83;
  const std::vector<float> x = floats(random({kRows, kColumns}, 1)),
                           of_rows = floats(random({kRows}, 2)),
                           of_columns = floats(random({kColumns}, 3));
  std::vector<float> scaled = x;

  scale_rows_columns(scaled.data(), kRows, kColumns, of_rows.data(), of_columns.data());

  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(scaled[i], (x[i] * of_rows[i / kColumns]) * of_columns[i % kColumns]) << i;
  }
  for (const auto& [name, kernels] : variants()) {
    SCOPED_TRACE(name);
    std::vector<float> other = x;
    kernels->scale_rows_columns(
        other.data(), kColumns, of_rows.data(), of_columns.data(), 0, kRows);
    EXPECT_EQ(scaled, other);
  }
}

TEST(Orthogonalize, LeavesSingularVectorsAndBringsSingularValuesNearOne) {
  for (const auto& [rows, columns] : {std::pair{40, 90}, std::pair{90, 40}, std::pair{40, 40}}) {
    // Singular values from 0.1 to 1, in random bases.
    const auto [left, r1] = at::linalg_qr(random({rows, rows}, 1, at::kDouble));
    const auto [right, r2] = at::linalg_qr(random({columns, columns}, 2, at::kDouble));
    const std::int64_t n = std::min(rows, columns);
    const at::Tensor values = at::linspace(0.1, 1.0, n, at::kDouble);
    const at::Tensor u = left.narrow(1, 0, n), v = right.narrow(1, 0, n);
    at::Tensor x = u.mul(values).mm(v.t()).to(at::kFloat).contiguous();

    orthogonalize(x.data_ptr<float>(), rows, columns, {});

    const at::Tensor between = u.t().mm(x.to(at::kDouble)).mm(v);
    const at::Tensor left_over = between - at::diag(between.diagonal());
    EXPECT_LT(left_over.abs().max().item<double>(), 1e-5);  // fp32 products of 40 terms
    EXPECT_GT(between.diagonal().min().item<double>(), 0.6);
    EXPECT_LT(between.diagonal().max().item<double>(), 1.3);
  }
}

TEST(Orthogonalize, GivesTheTransposeOfTheTranspose) {
  at::Tensor x = random({30, 70}, 1);
  at::Tensor y = x.t().contiguous();

  orthogonalize(x.data_ptr<float>(), 30, 70, {});
  orthogonalize(y.data_ptr<float>(), 70, 30, {});

  expect_close(y, doubles(x.t()), 1e-6);  // one norm, summed in another order
}

}  // namespace
}  // namespace tessera::ops
