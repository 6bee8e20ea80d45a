// SPDX-License-Identifier: Apache-2.0
// Token files of llm.c: 256 numbers, then the tokens. Byte layout: docs/formats/tokens.md.
#pragma once

#include <filesystem>
#include <memory>

#include "tessera/data/token_file.h"

namespace tessera::data {

/// True if the file begins as llm.c's files do; never throws.
bool is_llmc_tokens(const std::filesystem::path& path);
/// Opens the file as one sequence, because llm.c keeps no document boundaries. Throws Error{Data}
/// if the file contradicts its header.
std::shared_ptr<const TokenFile> open_llmc_tokens(const std::filesystem::path& path);

}  // namespace tessera::data
