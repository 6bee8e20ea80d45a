// SPDX-License-Identifier: Apache-2.0
// ONNX operators of libtorch's operations.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/interop/onnx/ops.h"

namespace tessera::interop {
namespace {

using Values = std::vector<std::string>;
using Attributes = std::vector<OnnxAttribute>;

Attributes along(std::int64_t axis) {
  return {{"axis", axis}};
}

/// Argument `arg`, a tensor or a number, as `type`. `value` counts the tensors.
std::string operand(const OnnxStep& step,
                    std::size_t arg,
                    std::size_t& value,
                    at::ScalarType type) {
  if (step.is_tensor(arg)) return step.input_as(value++, type);
  const c10::Scalar number = step.arg(arg).toScalar();
  return number.isIntegral(/*includeBool=*/true) && type == at::kLong
             ? step.graph.integer(number.toLong())
             : step.graph.number(number.toDouble(), type);
}

/// Elementwise operations of two operands, which have the type of the result.
void binary(const OnnxStep& step, const char* op, bool reversed = false) {
  std::size_t value = 0;
  const at::ScalarType type = step.result().scalar_type();
  if (type == at::kBool) step.refuse(" of truth values");
  const std::string a = operand(step, 0, value, type);
  std::string b = operand(step, 1, value, type);
  if (step.num_args() > 2 && step.arg(2).isScalar()) {  // add, sub and rsub: times the second
    const c10::Scalar factor = step.arg(2).toScalar();
    if (factor.toDouble() != 1.0) {
      if (reversed) step.refuse(" with a factor");
      b = step.graph.node("Mul", {b, step.graph.number(factor.toDouble(), type)});
    }
  }
  step.become(step.graph.node(op, reversed ? Values{b, a} : Values{a, b}));
}
void add(const OnnxStep& step) {
  binary(step, "Add");
}
void sub(const OnnxStep& step) {
  binary(step, "Sub");
}
void rsub(const OnnxStep& step) {
  binary(step, "Sub", /*reversed=*/true);
}
void mul(const OnnxStep& step) {
  binary(step, "Mul");
}
void div(const OnnxStep& step) {
  if (!at::isFloatingType(step.result().scalar_type()) || step.num_args() > 2)
    step.refuse(" of integers");
  binary(step, "Div");
}
void power(const OnnxStep& step) {
  binary(step, "Pow");
}
void clamp_min(const OnnxStep& step) {
  binary(step, "Max");
}
void clamp_max(const OnnxStep& step) {
  binary(step, "Min");
}

void compare(const OnnxStep& step, const char* op, bool negated = false) {
  std::size_t value = 0;
  at::ScalarType type = step.input(0).scalar_type();
  if (step.calls[0]->in.size() > 1) type = at::result_type(step.input(0), step.input(1));
  if (type == at::kBool) type = at::kInt;
  const std::string a = operand(step, 0, value, type), b = operand(step, 1, value, type);
  std::string out = step.graph.node(op, {a, b});
  if (negated) out = step.graph.node("Not", {out});
  step.become(out, at::kBool);
}
void eq(const OnnxStep& step) {
  compare(step, "Equal");
}
void ne(const OnnxStep& step) {
  compare(step, "Equal", /*negated=*/true);
}
void gt(const OnnxStep& step) {
  compare(step, "Greater");
}
void lt(const OnnxStep& step) {
  compare(step, "Less");
}
void ge(const OnnxStep& step) {
  compare(step, "Less", /*negated=*/true);
}
void le(const OnnxStep& step) {
  compare(step, "Greater", /*negated=*/true);
}

void unary(const OnnxStep& step, const char* op) {
  step.become(step.graph.node(op, {step.input_as(0, step.result().scalar_type())}));
}
void absolute(const OnnxStep& step) {
  unary(step, "Abs");
}
void exponential(const OnnxStep& step) {
  unary(step, "Exp");
}
void negative(const OnnxStep& step) {
  unary(step, "Neg");
}
void relu(const OnnxStep& step) {
  unary(step, "Relu");
}
void sigmoid(const OnnxStep& step) {
  unary(step, "Sigmoid");
}
void root(const OnnxStep& step) {
  unary(step, "Sqrt");
}
void tanh(const OnnxStep& step) {
  unary(step, "Tanh");
}
void reciprocal_root(const OnnxStep& step) {
  step.become(step.graph.node("Reciprocal", {step.graph.node("Sqrt", {step.in.at(0)})}));
}
void logical_not(const OnnxStep& step) {
  step.become(step.graph.node("Not", {step.input_as(0, at::kBool)}), at::kBool);
}
void logical_and(const OnnxStep& step) {
  if (step.result().scalar_type() != at::kBool) step.refuse(" of integers");
  step.become(step.graph.node("And", {step.input_as(0, at::kBool), step.input_as(1, at::kBool)}));
}

// Views and copies.

void same_order(const OnnxStep& step) {
  step.become(step.graph.reshape(step.in.at(0), step.sizes_out()), step.input(0).scalar_type());
}
void identity(const OnnxStep& step) {
  step.become(step.in.at(0), step.input(0).scalar_type());
}
void expand(const OnnxStep& step) {
  step.become(step.graph.expand(step.in.at(0), step.sizes_out()), step.input(0).scalar_type());
}
/// The source in the shape of the destination.
void copy(const OnnxStep& step) {
  step.become(step.graph.expand(step.in.at(1), step.sizes_out()), step.input(1).scalar_type());
}
void transpose(const OnnxStep& step) {
  const std::int64_t dims = step.input(0).dim();
  std::vector<std::int64_t> order(static_cast<std::size_t>(dims));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const bool plain = step.num_args() < 3;  // t()
  if (dims > 1) {
    std::swap(order[static_cast<std::size_t>(plain ? 0 : step.dim_arg(1, dims))],
              order[static_cast<std::size_t>(plain ? 1 : step.dim_arg(2, dims))]);
  }
  step.become(step.graph.transpose(step.in.at(0), order));
}
void permute(const OnnxStep& step) {
  std::vector<std::int64_t> order = step.arg(1).toIntVector();
  for (std::int64_t& dim : order)
    dim = dim < 0 ? dim + step.input(0).dim() : dim;
  step.become(step.graph.transpose(step.in.at(0), order));
}
void slice(const OnnxStep& step) {
  const std::int64_t dim = step.dim_arg(1, step.input(0).dim());
  const OnnxSize begin = step.calls[0]->args.at(2).isNone() ? OnnxSize::fixed(0) : step.size_arg(2);
  if (step.arg(4).toInt() != 1) step.refuse(" of every second element");
  const OnnxSize length = step.sizes_out()[static_cast<std::size_t>(dim)];
  if (begin.is_fixed() && begin.value() < 0) step.refuse(" from a place counted from the end");
  step.become(step.graph.slice(step.in.at(0), dim, begin, begin + length));
}
void select(const OnnxStep& step) {
  const std::int64_t dim = step.dim_arg(1, step.input(0).dim());
  step.become(
      step.graph.node("Gather", {step.in.at(0), step.graph.scalar(step.size_arg(2))}, along(dim)));
}
/// split, split_with_sizes and unbind: slices one after the other.
void parts(const OnnxStep& step) {
  const bool unbound = step.name() == "aten::unbind";
  const std::int64_t dim = step.dim_arg(step.num_args() - 1, step.input(0).dim());
  OnnxSize begin = OnnxSize::fixed(0);
  for (std::size_t i = 0; i < step.out.size(); ++i) {
    const std::vector<OnnxSize> sizes = step.sizes_out(i);
    const OnnxSize end =
        begin + (unbound ? OnnxSize::fixed(1) : sizes[static_cast<std::size_t>(dim)]);
    const std::string part = step.graph.slice(step.in.at(0), dim, begin, end);
    step.graph.node_to({step.out[i]}, "Reshape", {part, step.graph.sizes(sizes)});
    begin = end;
  }
}
void concat(const OnnxStep& step) {
  Values all;
  for (std::size_t i = 0; i < step.in.size(); ++i)
    all.push_back(step.input_as(i, step.result().scalar_type()));
  step.become(step.graph.node("Concat", all, along(step.dim_arg(1, step.result().dim()))));
}
void stack(const OnnxStep& step) {
  const std::int64_t dim = step.dim_arg(1, step.result().dim());
  Values all;
  for (const std::string& one : step.in)
    all.push_back(step.graph.unsqueeze(one, {dim}));
  step.become(step.graph.node("Concat", all, along(dim)));
}
void flip(const OnnxStep& step) {
  const std::vector<std::int64_t> dims = step.arg(1).toIntVector();
  std::string out = step.in.at(0);
  for (const std::int64_t dim : dims)
    out = step.graph.slice(out,
                           dim < 0 ? dim + step.input(0).dim() : dim,
                           OnnxSize::fixed(-1),
                           OnnxSize::fixed(std::numeric_limits<std::int64_t>::min() + 1),
                           -1);
  step.become(out);
}
/// All windows of a size along the last dimension: window w has the elements w, w + 1, ...
void unfold(const OnnxStep& step) {
  OnnxGraph& graph = step.graph;
  const std::int64_t dims = step.input(0).dim(), dim = step.dim_arg(1, dims);
  if (dim != dims - 1 || step.arg(3).toInt() != 1)
    step.refuse(" of another dimension than the last, or in steps");
  const std::vector<OnnxSize> sizes = step.sizes_out();
  const std::string index =
      graph.node("Add",
                 {graph.unsqueeze(graph.range(sizes[static_cast<std::size_t>(dim)]), {1}),
                  graph.unsqueeze(graph.range(sizes.back()), {0})});
  step.become(graph.node("Gather", {step.in.at(0), index}, along(dim)));
}

// Sums and the like over dimensions.

std::vector<std::int64_t> dims_arg(const OnnxStep& step, std::size_t i) {
  std::vector<std::int64_t> dims;
  if (step.arg(i).isIntList()) dims = step.arg(i).toIntVector();
  if (step.arg(i).isInt()) dims = {step.arg(i).toInt()};
  if (dims.empty()) step.refuse(" over all elements");
  return dims;
}
/// `dims`: the argument with the dimensions, before that which says whether they are kept.
void reduce(const OnnxStep& step, const char* op, std::size_t dims) {
  const std::int64_t keep = step.arg(dims + 1).toBool() ? 1 : 0;
  step.become(step.graph.node(op,
                              {step.input_as(0, step.result().scalar_type())},
                              {{"axes", dims_arg(step, dims)}, {"keepdims", keep}}));
}
void mean(const OnnxStep& step) {
  reduce(step, "ReduceMean", 1);
}
void amax(const OnnxStep& step) {
  reduce(step, "ReduceMax", 1);
}
void vector_norm(const OnnxStep& step) {
  if (step.arg(1).toScalar().toDouble() != 2.0) step.refuse(" that is not Euclidean");
  reduce(step, "ReduceL2", 2);
}
void sum(const OnnxStep& step) {
  const std::int64_t keep = step.arg(2).toBool() ? 1 : 0;
  step.become(step.graph.node(
      "ReduceSum",
      {step.input_as(0, step.result().scalar_type()), step.graph.integers(dims_arg(step, 1))},
      {{"keepdims", keep}}));
}
void cumsum(const OnnxStep& step) {
  const std::int64_t dim = step.dim_arg(1, step.input(0).dim());
  step.become(step.graph.node(
      "CumSum", {step.input_as(0, step.result().scalar_type()), step.graph.integer(dim)}));
}
void softmax(const OnnxStep& step) {
  step.become(
      step.graph.node("Softmax", {step.in.at(0)}, along(step.dim_arg(1, step.input(0).dim()))));
}

// Look-ups and choices.

void index_select(const OnnxStep& step) {
  step.become(step.graph.node(
      "Gather", {step.in.at(0), step.in.at(1)}, along(step.dim_arg(1, step.input(0).dim()))));
}
void gather(const OnnxStep& step) {
  step.become(step.graph.node("GatherElements",
                              {step.in.at(0), step.in.at(1)},
                              along(step.dim_arg(1, step.input(0).dim()))));
}
void where(const OnnxStep& step) {
  if (step.in.size() != 3) step.refuse(" of numbers");
  const at::ScalarType type = step.result().scalar_type();
  step.become(
      step.graph.node("Where", {step.in[0], step.input_as(1, type), step.input_as(2, type)}));
}
void masked_fill(const OnnxStep& step) {
  std::size_t value = 2;
  const std::string filling = operand(step, 2, value, step.result().scalar_type());
  step.become(step.graph.node("Where", {step.in.at(1), filling, step.in.at(0)}));
}

// Products.

void matmul(const OnnxStep& step) {
  step.become(step.graph.node("MatMul", {step.in.at(0), step.in.at(1)}));
}
void addmm(const OnnxStep& step) {
  const auto factor = [&](std::size_t i) {
    return static_cast<float>(step.arg(i).toScalar().toDouble());
  };
  step.become(step.graph.node("Gemm",
                              {step.in.at(1), step.in.at(2), step.in.at(0)},
                              {{"beta", factor(3)}, {"alpha", factor(4)}}));
}

// Tensors that are made.

void arange(const OnnxStep& step) {
  if (step.result().scalar_type() != at::kLong) step.refuse(" of numbers that are not integers");
  // (end), (start, end) or (start, end, step), each followed by type, layout, device and memory.
  const std::size_t numbers = step.num_args() - 4;
  if (numbers == 3 && step.arg(2).toScalar().toLong() != 1) step.refuse(" with a step");
  const OnnxSize begin = numbers == 1 ? OnnxSize::fixed(0) : step.size_arg(0);
  const OnnxSize end = step.size_arg(numbers == 1 ? 0 : 1);
  step.become(step.graph.node(
      "Range", {step.graph.scalar(begin), step.graph.scalar(end), step.graph.integer(1)}));
}
void filled(const OnnxStep& step, double value) {
  const std::string one = step.graph.number(value, step.result().scalar_type());
  step.become(step.graph.expand(one, step.sizes_out()));
}
void zeros(const OnnxStep& step) {
  filled(step, 0);
}
void ones(const OnnxStep& step) {
  filled(step, 1);
}
void full(const OnnxStep& step) {
  filled(step, step.arg(1).toScalar().toDouble());
}

}  // namespace

const OnnxTable& onnx_aten_ops() {
  static const OnnxTable all = {
      {"aten::_reshape_alias", same_order},
      {"aten::_softmax", softmax},
      {"aten::_to_copy", identity},
      {"aten::_unsafe_view", same_order},
      {"aten::abs", absolute},
      {"aten::add", add},
      {"aten::add_", add},
      {"aten::addmm", addmm},
      {"aten::alias", identity},
      {"aten::amax", amax},
      {"aten::arange", arange},
      {"aten::bitwise_and", logical_and},
      {"aten::bmm", matmul},
      {"aten::cat", concat},
      {"aten::clamp_max", clamp_max},
      {"aten::clamp_min", clamp_min},
      {"aten::clone", identity},
      {"aten::copy_", copy},
      {"aten::cumsum", cumsum},
      {"aten::detach", identity},
      {"aten::div", div},
      {"aten::div_", div},
      {"aten::eq", eq},
      {"aten::exp", exponential},
      {"aten::expand", expand},
      {"aten::fill_", full},
      {"aten::flip", flip},
      {"aten::full", full},
      {"aten::full_like", full},
      {"aten::gather", gather},
      {"aten::ge", ge},
      {"aten::gt", gt},
      {"aten::index_select", index_select},
      {"aten::le", le},
      {"aten::linalg_vector_norm", vector_norm},
      {"aten::logical_and", logical_and},
      {"aten::logical_not", logical_not},
      {"aten::lt", lt},
      {"aten::masked_fill", masked_fill},
      {"aten::masked_fill_", masked_fill},
      {"aten::mean", mean},
      {"aten::mm", matmul},
      {"aten::mul", mul},
      {"aten::mul_", mul},
      {"aten::ne", ne},
      {"aten::neg", negative},
      {"aten::ones", ones},
      {"aten::ones_like", ones},
      {"aten::permute", permute},
      {"aten::pow", power},
      {"aten::relu", relu},
      {"aten::rsqrt", reciprocal_root},
      {"aten::rsub", rsub},
      {"aten::select", select},
      {"aten::sigmoid", sigmoid},
      {"aten::slice", slice},
      {"aten::split", parts},
      {"aten::split_with_sizes", parts},
      {"aten::sqrt", root},
      {"aten::squeeze", same_order},
      {"aten::stack", stack},
      {"aten::sub", sub},
      {"aten::sub_", sub},
      {"aten::sum", sum},
      {"aten::t", transpose},
      {"aten::tanh", tanh},
      {"aten::tanh_", tanh},
      {"aten::transpose", transpose},
      {"aten::unbind", parts},
      {"aten::unfold", unfold},
      {"aten::unsqueeze", same_order},
      {"aten::view", same_order},
      {"aten::where", where},
      {"aten::zero_", zeros},
      {"aten::zeros", zeros},
      {"aten::zeros_like", zeros},
  };
  return all;
}

}  // namespace tessera::interop
