// SPDX-License-Identifier: Apache-2.0
// llm.c's token files: 256 numbers, then the tokens. Bytes: docs/formats/tokens.md.
#pragma once

#include <filesystem>
#include <memory>

#include "tessera/data/token_file.h"

namespace tessera::data {

/// Whether the file begins as llm.c's do; never throws.
bool is_llmc_tokens(const std::filesystem::path& path);
/// The file as one sequence: llm.c keeps no borders of documents. Error{Data} for what contradicts
/// its header.
std::shared_ptr<const TokenFile> open_llmc_tokens(const std::filesystem::path& path);

}  // namespace tessera::data
