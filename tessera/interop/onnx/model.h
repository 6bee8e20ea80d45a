// SPDX-License-Identifier: Apache-2.0
// A model as an ONNX graph: the operations that computed its output in traced runs, whose sizes
// follow the sizes of the inputs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/interop/onnx/graph.h"
#include "tessera/ops/op_trace.h"

namespace tessera::interop {

/// A size of the inputs that a user of the file chooses, and its values in the traced runs.
struct OnnxAxis {
  std::string name;  ///< "batch_size"
  std::int64_t low = 0, high = 0, check = 0;
};

/// A run of the model, without gradients.
struct OnnxRun {
  const ops::OpTrace* trace = nullptr;
  std::vector<at::Tensor> inputs;  ///< in the order of OnnxTraced::inputs
  int output = -1;                 ///< a value of the trace
};

/// Runs of one model on inputs with different numbers. Run m has the high value of the axes whose
/// bits m has and the low value of the others; one more run at the end has the check values. What
/// is equal in all runs is a constant of the graph.
struct OnnxTraced {
  std::vector<OnnxAxis> axes;  ///< at most kOnnxAxes
  std::vector<OnnxRun> runs;
  std::vector<std::string> inputs;
  std::string output;
  std::vector<std::pair<std::string, at::Tensor>> parameters;  ///< whose names the file keeps
};

/// Every size is found as the polynomial of the axes that the runs up to the last determine, and is
/// checked in the last. Inputs that the output does not depend on are left out. Throws
/// Error{Unsupported} that names the operation or the value that cannot be written.
OnnxGraph onnx_graph(const OnnxTraced& model);

}  // namespace tessera::interop
