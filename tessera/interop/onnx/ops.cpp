// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/onnx/ops.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

bool same_argument(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isBool()) return a.toBool() == b.toBool();
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isIntList()) return a.toIntVector() == b.toIntVector();
  if (a.isDoubleList()) return a.toDoubleVector() == b.toDoubleVector();
  return true;  // the argument is absent, or no translation reads it
}

const at::Tensor& tensor_of(const OnnxStep& step, std::size_t run, int value) {
  return step.traces[run]->values().at(static_cast<std::size_t>(value)).tensor;
}

/// The sizes of one tensor, whose value in each run `value_in` gives.
template <class Fn>
std::vector<OnnxSize> sizes_of(const OnnxStep& step, const Fn& value_in) {
  std::vector<at::Tensor> tensors;
  for (std::size_t run = 0; run < step.calls.size(); ++run) {
    tensors.push_back(tensor_of(step, run, value_in(*step.calls[run])));
    if (tensors.back().dim() != tensors.front().dim())
      step.refuse(" of tensors whose number of dimensions changes");
  }
  std::vector<OnnxSize> out;
  for (std::int64_t dim = 0; dim < tensors[0].dim(); ++dim) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& tensor : tensors)
      sizes.push_back(tensor.size(dim));
    out.push_back(step.solve(sizes));
  }
  return out;
}

}  // namespace

const at::Tensor& OnnxStep::input(std::size_t i) const {
  return tensor_of(*this, 0, calls[0]->in.at(i));
}

const at::Tensor& OnnxStep::result(std::size_t i) const {
  return tensor_of(*this, 0, calls[0]->out.at(i));
}

std::vector<OnnxSize> OnnxStep::sizes_in(std::size_t i) const {
  return sizes_of(*this, [i](const ops::TracedCall& call) { return call.in.at(i); });
}

std::vector<OnnxSize> OnnxStep::sizes_out(std::size_t i) const {
  return sizes_of(*this, [i](const ops::TracedCall& call) { return call.out.at(i); });
}

const c10::IValue& OnnxStep::arg(std::size_t i) const {
  for (const ops::TracedCall* call : calls) {
    if (!same_argument(calls[0]->args.at(i), call->args.at(i)))
      refuse(" with a number that depends on the size of the input");
  }
  return calls[0]->args.at(i);
}

OnnxSize OnnxStep::size_arg(std::size_t i) const {
  std::vector<std::int64_t> values;
  for (const ops::TracedCall* call : calls) {
    const c10::IValue& value = call->args.at(i);
    if (!value.isScalar()) refuse(" with a size that is not a number");
    values.push_back(value.toScalar().toLong());
  }
  return solve(values);
}

std::int64_t OnnxStep::dim_arg(std::size_t i, std::int64_t dims) const {
  const c10::IValue& value = arg(i);
  if (!value.isInt()) refuse(" of several dimensions");
  return value.toInt() < 0 ? value.toInt() + dims : value.toInt();
}

std::string OnnxStep::input_as(std::size_t i, at::ScalarType type) const {
  return input(i).scalar_type() == type ? in.at(i) : graph.cast(in.at(i), type);
}

void OnnxStep::become(const std::string& value, at::ScalarType from) const {
  const at::ScalarType type = result().scalar_type();
  if (type == from) {
    graph.node_to({out.at(0)}, "Identity", {value});
  } else {
    graph.node_to({out.at(0)}, "Cast", {value}, {{"to", onnx_type(type)}});
  }
}

void OnnxStep::refuse(std::string_view why) const {
  throw Error(
      Error::Kind::Unsupported,
      fmt::format("not built: an ONNX file of a model with the operation {}{}", name(), why),
      "convert to a Hugging Face folder");
}

void onnx_nodes(const OnnxStep& step) {
  for (const OnnxTable* table : {&onnx_aten_ops(), &onnx_layer_ops()}) {
    const auto found = table->find(step.name());
    if (found != table->end()) return found->second(step);
  }
  step.refuse("");
}

}  // namespace tessera::interop
