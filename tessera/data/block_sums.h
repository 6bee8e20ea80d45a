// SPDX-License-Identifier: Apache-2.0
// Checksums of a file by block, verified as the blocks are read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// The xxh3 hashes of the consecutive blocks of a file; the last block may be shorter.
struct BlockSums {
  static constexpr std::size_t kBlockBytes = std::size_t{256} << 10;
  std::vector<std::uint64_t> blocks;
};

/// Returns the hashes of `bytes`. `poll` is called about every 16 MB.
BlockSums block_sums(std::span<const std::byte> bytes, const std::function<void()>& poll = {});

/// Bytes whose blocks are verified on first use. Const methods can be called from any thread.
/// The bytes must outlive this.
class VerifiedBytes {
 public:
  /// `path` is named in errors, `fix` says how the file is made anew.
  VerifiedBytes(std::span<const std::byte> bytes,
                BlockSums sums,
                std::filesystem::path path,
                std::string fix);
  /// Throws Error{Data} with path and block unless the blocks of [begin, begin + count) are the
  /// ones that were hashed. Cost: a block is hashed once, then its flag is read.
  void verify(std::size_t begin, std::size_t count) const;

 private:
  void verify_block(std::size_t block) const;
  std::span<const std::byte> bytes_;
  BlockSums sums_;
  std::filesystem::path path_;
  std::string fix_;
  mutable std::vector<std::atomic<bool>> good_;
};

}  // namespace tessera::data
