// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/block_sums.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::data {
namespace {

constexpr std::size_t kBlocksPerPoll = 64;

std::span<const std::byte> block_of(std::span<const std::byte> bytes, std::size_t block) {
  const std::size_t begin = block * BlockSums::kBlockBytes;
  return bytes.subspan(begin, std::min(BlockSums::kBlockBytes, bytes.size() - begin));
}

std::size_t blocks_in(std::size_t bytes) {
  return (bytes + BlockSums::kBlockBytes - 1) / BlockSums::kBlockBytes;
}

}  // namespace

BlockSums block_sums(std::span<const std::byte> bytes, const std::function<void()>& poll) {
  BlockSums sums;
  const std::size_t count = blocks_in(bytes.size());
  sums.blocks.reserve(count);
  for (std::size_t block = 0; block < count; ++block) {
    if (poll && block % kBlocksPerPoll == 0) poll();
    sums.blocks.push_back(files::xxh3(block_of(bytes, block)));
  }
  return sums;
}

VerifiedBytes::VerifiedBytes(std::span<const std::byte> bytes,
                             BlockSums sums,
                             std::filesystem::path path,
                             std::string fix)
    : bytes_(bytes),
      sums_(std::move(sums)),
      path_(std::move(path)),
      fix_(std::move(fix)),
      good_(sums_.blocks.size()) {
  const std::size_t expected = blocks_in(bytes_.size());
  TESSERA_REQUIRE(sums_.blocks.size() == expected,
                  Data,
                  fmt::format("{} has {} blocks, but there are checksums for {}",
                              path_.string(),
                              expected,
                              sums_.blocks.size()),
                  fix_);
}

void VerifiedBytes::verify(std::size_t begin, std::size_t count) const {
  if (count == 0) return;
  const std::size_t last = (begin + count - 1) / BlockSums::kBlockBytes;
  for (std::size_t block = begin / BlockSums::kBlockBytes; block <= last; ++block) {
    if (!good_[block].load(std::memory_order_relaxed)) verify_block(block);
  }
}

void VerifiedBytes::verify_block(std::size_t block) const {
  const std::span<const std::byte> bytes = block_of(bytes_, block);
  const std::size_t begin = block * BlockSums::kBlockBytes;
  TESSERA_REQUIRE(files::xxh3(bytes) == sums_.blocks[block],
                  Data,
                  fmt::format("{} is damaged or was replaced: bytes [{}, {}) do not match the "
                              "checksum that was stored when the file was made",
                              path_.string(),
                              begin,
                              begin + bytes.size()),
                  fix_);
  good_[block].store(true, std::memory_order_relaxed);
}

}  // namespace tessera::data
