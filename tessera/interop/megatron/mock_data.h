// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's --mock-data: tokens that count upwards, for trials without data.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::interop::megatron {

/// Writes about two million tokens into the cache of tessera, unless they are there, and returns
/// the .bin file next to its .idx. As in Megatron-LM, a document has a random length below 4096 and
/// the tokens 1, 2, 3, ..., `end`; lengths are drawn by another generator. Tokens are below
/// `vocabulary` (at least 2), which `end` may equal. Throws Error{Io}.
std::filesystem::path mock_tokens(std::int64_t vocabulary, std::int64_t end);

}  // namespace tessera::interop::megatron
