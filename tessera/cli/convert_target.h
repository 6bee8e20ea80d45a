// SPDX-License-Identifier: Apache-2.0
// Checks what tessera convert --overwrite may replace.
#pragma once

#include <filesystem>

namespace tessera::cli {

/// Returns if a conversion of `source` may replace what is at `target`: an empty folder, or a file
/// or folder in which a conversion is known to write every name and mark, and from which the source
/// is not read. Throws Error{Config} that names the obstacle.
void require_replaceable(const std::filesystem::path& target, const std::filesystem::path& source);

/// The file next to an ONNX file that has its large weights: my.onnx.data.
std::filesystem::path onnx_data_of(const std::filesystem::path& model);

/// True if a conversion wrote `data` next to an ONNX file that names it as the place of its
/// weights. Reads that file once.
bool is_converted_onnx_data(const std::filesystem::path& data);

}  // namespace tessera::cli
