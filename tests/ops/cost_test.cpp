// SPDX-License-Identifier: Apache-2.0
// The time of logged operations on a described machine.
#include "tessera/ops/cost.h"

#include <set>
#include <string>
#include <vector>

#include "ops/support.h"

#include "tessera/ops/attention.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"

namespace tessera::ops {
namespace {

Machine machine() {
  Machine out;
  out.memory = {.latency_s = 0, .bytes_per_s = 10e9};
  out.flops_per_s = {{{ShapeClass::LargeProduct, DType::BF16}, 4e12},
                     {{ShapeClass::LargeProduct, DType::F32}, 1e12}};
  out.op_overhead_s = 5e-6;
  return out;
}

TEST(OpCost, IsTheLongerOfArithmeticAndMemory) {
  OpRow row{.calls = 2, .flops = 8e9, .bytes = 1e6, .shape_class = ShapeClass::LargeProduct};
  row.dtype = DType::F32;
  EXPECT_DOUBLE_EQ(seconds(row, machine()), 8e9 / 1e12 + 2 * 5e-6);
  row.dtype = DType::BF16;
  EXPECT_DOUBLE_EQ(seconds(row, machine()), 8e9 / 4e12 + 2 * 5e-6);
  row.bytes = 1e9;
  EXPECT_DOUBLE_EQ(seconds(row, machine()), 0.1 + 2 * 5e-6);
  row.shape_class = ShapeClass::Rows;  // no rate: memory alone
  row.flops = 1e18;
  EXPECT_DOUBLE_EQ(seconds(row, machine()), 0.1 + 2 * 5e-6);
  EXPECT_DOUBLE_EQ(seconds(std::vector{row, row}, machine()), 2 * seconds(row, machine()));
}

TEST(OpCost, KnowsTheClassOfAProductByItsSizes) {
  EXPECT_EQ(class_of_product(4096, 1024, 4096), ShapeClass::LargeProduct);
  EXPECT_EQ(class_of_product(1, 1024, 4096), ShapeClass::FewRows);
  EXPECT_EQ(class_of_product(4096, 16, 4096), ShapeClass::TallProduct);
  EXPECT_EQ(class_of_product(4096, 1024, 8), ShapeClass::TallProduct);
}

TEST(OpCost, OfLoggedOperationsHasTheirClassAndDtype) {
  const at::Tensor x = random({32, 300}, 1, at::kBFloat16),
                   w = random({320, 300}, 2, at::kBFloat16), q = random({1, 2, 4, 8}, 3),
                   c = at::ones({300});
  std::set<std::pair<ShapeClass, DType>> seen;
  {
    const OpLog log;
    ops::linear(x, w);
    attention(q, q, q, {});
    rms_norm(x, c, 1e-5, {});
    at::mm(random({20, 300}, 4), random({300, 400}, 5));
    for (const OpRow& row : log.rows()) {
      if (row.bytes > 0 && row.shape_class != ShapeClass::Elementwise)
        seen.emplace(row.shape_class, row.dtype);
    }
  }
  EXPECT_EQ(seen,
            (std::set<std::pair<ShapeClass, DType>>{{ShapeClass::LargeProduct, DType::BF16},
                                                    {ShapeClass::LargeProduct, DType::F32},
                                                    {ShapeClass::Attention, DType::F32},
                                                    {ShapeClass::Rows, DType::F32}}));
  std::set<std::string_view> names;
  for (int i = 0; i < kNumShapeClasses; ++i)
    names.insert(name(static_cast<ShapeClass>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumShapeClasses));
}

}  // namespace
}  // namespace tessera::ops
