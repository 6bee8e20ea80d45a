// SPDX-License-Identifier: Apache-2.0
// GGUF files as models: what llama.cpp and its kin read.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/formats/gguf_file.h"

namespace tessera::interop {

/// Whether `path` is a file whose name ends in ".gguf".
bool is_gguf(const std::filesystem::path& path);

/// A tensor of the file as it is stored there: floats in their type, blocks of integers decoded to
/// fp32, any range on its own. Keeps the file mapped. Threads: any.
checkpoint::StreamedTensor stream_gguf(const GgufFile& file, const GgufTensor& tensor);

/// The types of the file's tensors, the most frequent first: "Q4_1, F32, Q8_0".
std::string gguf_types(const GgufFile& file);

/// The rotary scaling "llama3" that makes `factors`, by which frequency i of `theta` and `channels`
/// is divided: a value for "rope_scaling" of config.json. Null where all factors are 1. Error{
/// Unsupported} naming `what` for factors of another rule.
json::Value rotary_scaling_of(const std::vector<float>& factors,
                              double theta,
                              const std::string& what);
/// The reverse: the factors of a "rope_scaling" of rope_type "llama3".  Source: the rule published
/// with Llama 3.1.
std::vector<float> rotary_factors(const json::Value& scaling, double theta, std::int64_t channels);

}  // namespace tessera::interop
