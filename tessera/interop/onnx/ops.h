// SPDX-License-Identifier: Apache-2.0
// The operators of ONNX for each traced operation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/interop/onnx/graph.h"
#include "tessera/ops/op_trace.h"

namespace tessera::interop {

/// One call in all runs of the model.
struct OnnxStep {
  OnnxGraph& graph;
  std::vector<const ops::TracedCall*> calls;
  std::vector<const ops::OpTrace*> traces;
  /// A size from its values in the runs.
  std::function<OnnxSize(const std::vector<std::int64_t>&)> solve;
  std::vector<std::string> in = {};   ///< of the values in TracedCall::in; empty: undefined
  std::vector<std::string> out = {};  ///< names to give to the results

  [[nodiscard]] const std::string& name() const { return calls[0]->name; }
  /// The tensor of argument `i` of the values, or of result `i`, in the first run.
  [[nodiscard]] const at::Tensor& input(std::size_t i) const;
  [[nodiscard]] const at::Tensor& result(std::size_t i = 0) const;
  [[nodiscard]] std::vector<OnnxSize> sizes_in(std::size_t i) const;
  [[nodiscard]] std::vector<OnnxSize> sizes_out(std::size_t i = 0) const;
  [[nodiscard]] std::size_t num_args() const { return calls[0]->args.size(); }
  [[nodiscard]] bool is_tensor(std::size_t i) const { return calls[0]->args.at(i).isTensor(); }
  /// Argument `i` of the call, which is not a tensor and equal in all runs.
  [[nodiscard]] const c10::IValue& arg(std::size_t i) const;
  /// Argument `i`, an integer that may follow the sizes of the inputs.
  [[nodiscard]] OnnxSize size_arg(std::size_t i) const;
  /// Argument `i`, a dimension of `dims`, counted from 0.
  [[nodiscard]] std::int64_t dim_arg(std::size_t i, std::int64_t dims) const;
  /// The value of input `i` as another type.
  [[nodiscard]] std::string input_as(std::size_t i, at::ScalarType type) const;
  /// Makes the result the value of that name, cast to the result's type if `from` is another.
  void become(const std::string& value, at::ScalarType from) const;
  void become(const std::string& value) const { become(value, result().scalar_type()); }
  /// Throws Error{Unsupported} that names the operation and `why` it has no translation.
  [[noreturn]] void refuse(std::string_view why) const;
};

using OnnxNodes = void (*)(const OnnxStep&);
using OnnxTable = std::map<std::string_view, OnnxNodes>;
/// The translations of libtorch's operations, and of tessera's, by their names.
const OnnxTable& onnx_aten_ops();
const OnnxTable& onnx_layer_ops();

/// Appends the nodes of the call. Throws Error{Unsupported} for an operation, or a form of one,
/// that has no translation.
void onnx_nodes(const OnnxStep& step);

}  // namespace tessera::interop
