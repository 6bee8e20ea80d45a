// SPDX-License-Identifier: Apache-2.0
// The products of several experts at once against those of each alone.
#include "tessera/ops/experts_linear.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "ops/support.h"

#include "tessera/ops/batch_invariance.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kExperts = 7;

/// Units of some experts, in an order that is not theirs, with 1 to 8 rows.
std::vector<RowsOfExpert> units_of(const std::vector<std::int64_t>& rows) {
  std::vector<RowsOfExpert> out;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out.push_back({static_cast<std::int64_t>(5 * i + 2) % kExperts, begin, rows[i]});
    begin += rows[i];
  }
  return out;
}
std::int64_t all_rows(const std::vector<RowsOfExpert>& units) {
  return units.back().begin + units.back().rows;
}

at::Tensor one_after_the_other(const at::Tensor& x_QI,
                               const ExpertMatrices& of,
                               const std::vector<RowsOfExpert>& units) {
  std::vector<at::Tensor> out;
  for (const RowsOfExpert& unit : units) {
    const at::Tensor x = x_QI.narrow(0, unit.begin, unit.rows), w = of.weight_EOI[unit.expert],
                     b = of.bias_EO.defined() ? of.bias_EO[unit.expert] : at::Tensor();
    out.push_back(of.scales_EO.defined() ? linear_int8(x, {w, of.scales_EO[unit.expert]}, b)
                                         : linear(x, w, b));
  }
  return at::cat(out);
}

/// Whether the kernels of this run have products of several experts.
bool has_kernels() {
  const char* const kernels = std::getenv("TESSERA_KERNELS");
  return isa() != Isa::Portable && (kernels == nullptr || std::string_view(kernels) == "cpu");
}

TEST(LinearOfExperts, HasTheBitsOfEachExpertAloneForAnyNumberOfThreads) {
  if (!has_kernels()) GTEST_SKIP() << "these kernels multiply expert by expert";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& rows : std::vector<std::vector<std::int64_t>>{
             {1}, {1, 1, 1, 1}, {8, 1, 3, 8, 2, 7}, {4, 4, 4, 4, 4, 4, 4}}) {
      for (const std::int64_t I : {1, 15, 96}) {
        for (const std::int64_t O : {1, 77}) {
          const auto units = units_of(rows);
          const at::Tensor x = random({all_rows(units), I}, 1, dtype),
                           weight = random({kExperts, O, I}, 2, dtype),
                           bias = random({kExperts, O}, 3, dtype);
          for (const at::Tensor& b : {bias, at::Tensor()}) {
            const ExpertMatrices plain = {weight, {}, b};
            const at::Tensor expected = one_after_the_other(x, plain, units);
            for (const at::Tensor& y :
                 with_threads([&] { return linear_of_experts(x, plain, units); })) {
              ASSERT_TRUE(y.defined());
              EXPECT_TRUE(same_bits(y, expected)) << dtype << ' ' << I << ' ' << O;
            }
            const BatchInvariance invariant;
            EXPECT_TRUE(same_bits(linear_of_experts(x, plain, units),
                                  one_after_the_other(x, plain, units)));
          }
          const Int8Rows whole = to_int8(weight.view({kExperts * O, I}));
          const ExpertMatrices narrow = {
              whole.rows_OI.view({kExperts, O, I}), whole.scales_O.view({kExperts, O}), bias};
          EXPECT_TRUE(same_bits(linear_of_experts(x, narrow, units),
                                one_after_the_other(x, narrow, units)));
        }
      }
    }
  }
}

// Matrices that several threads divide: more elements than a thread's least part.
TEST(LinearOfExperts, HasTheSameBitsWhereThreadsDivideTheOutputs) {
  if (!has_kernels()) GTEST_SKIP() << "these kernels multiply expert by expert";
  const auto units = units_of({1, 2, 1, 5});
  const at::Tensor x = random({all_rows(units), 256}, 1, at::kBFloat16),
                   weight = random({kExperts, 515, 256}, 2, at::kBFloat16);

  const auto results = with_threads([&] { return linear_of_experts(x, {weight, {}, {}}, units); });

  const at::Tensor expected = one_after_the_other(x, {weight, {}, {}}, units);
  for (const at::Tensor& y : results)
    EXPECT_TRUE(same_bits(y, expected));
}

TEST(LinearOfExperts, LeavesOtherProductsToTheOperationsOfOneExpert) {
  const at::Tensor weight = random({kExperts, 4, 16}, 1);
  const auto one = units_of({1}), nine = units_of({1, 9});
  const auto defined = [&](const at::Tensor& x, const ExpertMatrices& of, const auto& units) {
    return linear_of_experts(x, of, units).defined();
  };

  EXPECT_EQ(defined(random({1, 16}, 2), {weight, {}, {}}, one), has_kernels());
  EXPECT_FALSE(defined(random({10, 16}, 2), {weight, {}, {}}, nine)) << "nine rows are not few";
  EXPECT_FALSE(
      defined(random({1, 16}, 2), {random({kExperts, 16, 4}, 1).transpose(1, 2), {}, {}}, one));
  EXPECT_FALSE(defined(random({1, 16}, 2, at::kHalf), {weight, {}, {}}, one)) << "two dtypes";
  EXPECT_FALSE(defined(random({1, 16}, 2).to(at::kMeta), {weight.to(at::kMeta), {}, {}}, one));
  const OpTrace trace;
  EXPECT_FALSE(defined(random({1, 16}, 2), {weight, {}, {}}, one))
      << "a graph has one product each";
}

}  // namespace
}  // namespace tessera::ops
