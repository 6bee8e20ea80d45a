// SPDX-License-Identifier: Apache-2.0
// Operators on meta tensors give the shape and dtype that they give on the CPU.
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera {
namespace {

using Operator = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

void expect_alike(const Operator& operation, const std::vector<at::Tensor>& arguments) {
  std::vector<at::Tensor> meta;
  for (const at::Tensor& argument : arguments)
    meta.push_back(argument.to(at::kMeta));

  const at::Tensor expected = operation(arguments), out = operation(meta);

  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), expected.sizes());
  EXPECT_EQ(out.scalar_type(), expected.scalar_type());
}

TEST(MetaKernels, WhereBroadcastsAndPromotes) {
  const Operator where = [](const auto& x) { return at::where(x[0], x[1], x[2]); };
  const at::Tensor condition = at::ones({4, 1}, at::kBool);
  expect_alike(where, {condition, at::ones({3}), at::zeros({2, 1, 3})});
  expect_alike(where, {condition, at::ones({4, 3}, at::kBFloat16), at::zeros({4, 3})});
  expect_alike(where, {condition, at::ones({4, 3}, at::kLong), at::zeros({}, at::kFloat)});
}

TEST(MetaKernels, LogicalOperatorsGiveBooleans) {
  for (const auto& operation :
       std::vector<Operator>{[](const auto& x) { return x[0].logical_and(x[1]); },
                             [](const auto& x) { return x[0].logical_or(x[1]); },
                             [](const auto& x) { return x[0].logical_xor(x[1]); },
                             [](const auto& x) { return x[0].logical_not(); }}) {
    expect_alike(operation, {at::ones({4, 1}, at::kBool), at::ones({3}, at::kBool)});
    expect_alike(operation, {at::ones({2, 3}), at::ones({2, 3})});
  }
}

}  // namespace
}  // namespace tessera
