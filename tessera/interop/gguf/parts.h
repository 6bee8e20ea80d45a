// SPDX-License-Identifier: Apache-2.0
// Tensors with a matrix of each expert or head, of which Hugging Face's files have one where GGUF
// files have several, or transposed matrices. Declared by models::GgufNames::Parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/models/gguf_names.h"

namespace tessera::interop {

/// Takes the tensor of Hugging Face apart. `count`: matrices in it. Throws Error{Format} with its
/// name if its shape does not fit. Memory: a matrix for each tensor of the result, while it is
/// read.
std::vector<checkpoint::StreamedTensor> parts_of(const checkpoint::StreamedTensor& whole,
                                                 const models::GgufNames::Parts& parts,
                                                 const std::vector<std::string>& names,
                                                 std::int64_t count,
                                                 const json::Value& config);

/// The reverse: the tensor `name` of Hugging Face. Tensors of several dtypes become fp32. Throws
/// Error{Format} with the name of a tensor whose shape does not fit.
checkpoint::StreamedTensor whole_of(std::vector<checkpoint::StreamedTensor> tensors,
                                    const models::GgufNames::Parts& parts,
                                    const std::string& name,
                                    std::int64_t count);

}  // namespace tessera::interop
