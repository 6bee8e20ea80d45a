// SPDX-License-Identifier: Apache-2.0
// Reads GGUF files, the format of llama.cpp and related programs, as models.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/interop/gguf/file.h"

namespace tessera::interop {

/// True if `path` is a file whose name ends in ".gguf".
bool is_gguf(const std::filesystem::path& path);

/// A tensor as stored in the file: floats in their dtype, blocks of integers decoded to fp32; any
/// range can be read separately. Keeps the file mapped. Can be used from any thread.
checkpoint::StreamedTensor stream_gguf(const GgufFile& file, const GgufTensor& tensor);

/// The types of the file's tensors, the most frequent first: "Q4_1, F32, Q8_0".
std::string gguf_types(const GgufFile& file);

/// The key under which tessera's files have "rope_scaling" of config.json as JSON, in addition to
/// the factors that llama.cpp reads.
inline constexpr const char* kGgufRotaryRule = "tessera.rope_scaling";

/// True if the factors are equal but for the roundings of fp32.
bool same_factors(const std::vector<float>& a, const std::vector<float>& b);

/// The rotary scaling "llama3" that produces `factors`, which divide the frequencies i of `theta`
/// and `channels`: a value for "rope_scaling" of config.json. Null if all factors are 1. Throws
/// Error{Unsupported} with `what` for factors of another rule.
json::Value rotary_scaling_of(const std::vector<float>& factors,
                              double theta,
                              const std::string& what);
/// The inverse: the factors of a "rope_scaling" of rope_type "llama3". Source: the rule published
/// with Llama 3.1.
std::vector<float> rotary_factors(const json::Value& scaling, double theta, std::int64_t channels);

}  // namespace tessera::interop
