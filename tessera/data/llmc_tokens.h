// SPDX-License-Identifier: Apache-2.0
// Token files without an index: llm.c's (256 numbers, then the tokens) and nanoGPT's (only tokens).
// Byte layout: docs/formats/tokens.md.
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

/// True if the file seems to be tokens alone, as nanoGPT writes them: a .bin without an index
/// next to it that is neither llm.c's, nor text, nor a file of torch. Reads at most 64 KiB; never
/// throws.
bool is_bare_tokens(const std::filesystem::path& path);
/// Opens the file as one sequence of 16-bit ids, or of 32-bit or 64-bit ids if the halves of its
/// first 64 KiB of numbers show that they are that wide. Throws Error{Data} if its length is odd.
std::shared_ptr<const TokenFile> open_bare_tokens(const std::filesystem::path& path);

}  // namespace tessera::data
