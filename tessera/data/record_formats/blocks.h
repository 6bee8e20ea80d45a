// SPDX-License-Identifier: Apache-2.0
// Blocks of bytes that columnar files compress one by one. Inputs are not trusted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

/// Decompresses `bytes` to exactly `size` bytes. Throws Error{Data} naming `place` for damaged data
/// and for any other size; allocates at most `size` bytes.
std::string lz4_frame(std::string_view bytes, std::size_t size, const std::string& place);
std::string snappy_block(std::string_view bytes, std::size_t size, const std::string& place);
std::string zstd_block(std::string_view bytes, std::size_t size, const std::string& place);
std::string gzip_block(std::string_view bytes, std::size_t size, const std::string& place);
/// Blocks of the LZ4 format without a frame.
std::string lz4_block(std::string_view bytes, std::size_t size, const std::string& place);

}  // namespace tessera::data
