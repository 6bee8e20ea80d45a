// SPDX-License-Identifier: Apache-2.0
// The description of an ONNX file: versions, inputs, outputs and stored tensors. Its graph is not
// run. Source: onnx.proto3 of ONNX 1.16.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::interop {

struct OnnxTensor {
  std::string name, type;  ///< type: "FLOAT", "INT64", or its number
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;  ///< in the file; 0 if they are in another one
};

struct OnnxFile {
  std::int64_t ir_version = 0, opset = 0;  ///< opset: of the operators of ONNX itself
  std::string producer, graph;
  std::int64_t nodes = 0;
  std::vector<std::string> inputs, outputs;  ///< names; inputs without those that are tensors
  std::vector<OnnxTensor> tensors;           ///< initializers
};

/// Throws Error{Format} with the file for damage: lengths past the end, or no graph. Memory: names
/// and shapes; the file is mapped.
OnnxFile read_onnx(const std::filesystem::path& path);

}  // namespace tessera::interop
