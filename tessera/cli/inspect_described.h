// SPDX-License-Identifier: Apache-2.0
// The facts that tessera inspect shows about files without a model of tessera's: ONNX, tokenizers.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/onnx/file.h"

namespace tessera::cli {

/// Facts in the order in which they are shown.
using DescribedFacts = std::vector<std::pair<std::string, json::Value>>;

DescribedFacts facts_of(const interop::OnnxFile& onnx);
/// The facts of a tokenizer.json, whatever its name; nothing for any other file. Throws the errors
/// of a .json file that cannot be read.
std::optional<DescribedFacts> facts_of_tokenizer(const std::filesystem::path& path);

}  // namespace tessera::cli
