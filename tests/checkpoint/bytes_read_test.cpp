// SPDX-License-Identifier: Apache-2.0
// labels: slow
// How much of a checkpoint a rank reads: the blocks of 16 MiB that contain some of its elements.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

namespace tessera::checkpoint::test {
namespace {

constexpr std::int64_t kRows = 10000, kColumns = 1024, kWidth = 4, kAll = kRows * kColumns * kWidth;
constexpr std::int64_t kBlock = std::int64_t{16} << 20;
const Shape kShape = {kRows, kColumns};
constexpr int kWriters = 2;
/// Bytes that the counting itself and the start of threads may read.
constexpr std::int64_t kSlack = std::int64_t{64} << 10;

/// Returns the bytes that this process has read from files so far, except mapped ones; -1 if the
/// kernel does not count them.
std::int64_t bytes_read() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  std::int64_t count = -1;
  counts >> name >> count;
  return name == "rchar:" ? count : -1;
}

/// Tensor parallelism along the first dim.
std::vector<mesh::Piece> rows(const Shape& shape, int rank, int ranks) {
  mesh::Box box = mesh::whole(shape);
  std::tie(box.begin[0], box.end[0]) = part(shape[0], rank, ranks);
  return {{box, 0, box.numel()}};
}

/// The pieces of a rank, with zeroed memory.
struct Share {
  std::vector<std::vector<std::byte>> memory;
  std::vector<PieceBytes> pieces;
  std::int64_t bytes = 0;
};
Share share_of(Layout layout, int rank, int ranks) {
  Share out;
  for (const mesh::Piece& piece : layout(kShape, rank, ranks)) {
    auto& memory =
        out.memory.emplace_back(static_cast<std::size_t>((piece.end - piece.begin) * kWidth));
    out.pieces.push_back({"w", DType::F32, kShape, piece, memory});
    out.bytes += std::ssize(memory);
  }
  return out;
}

fs::path saved_by(Layout layout, const fs::path& root) {
  on_ranks(kWriters, [&](const Ranks& me) {
    save(root, meta_at(1), share_of(layout, me.rank, kWriters).pieces, me);
  });
  return *newest(root);
}

std::int64_t read_by_load(const Checkpoint& checkpoint, Share& share) {
  const std::int64_t before = bytes_read();
  checkpoint.load(share.pieces);
  return bytes_read() - before;
}

/// Returns the bytes of those blocks of the two files, each half of the tensor, that overlap bytes
/// [from, to) of the tensor.
std::int64_t touched(std::int64_t from, std::int64_t to) {
  std::int64_t sum = 0;
  for (int writer = 0; writer < kWriters; ++writer) {
    const std::int64_t begin = kAll * writer / kWriters, end = kAll * (writer + 1) / kWriters;
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t stop = std::min(at + kBlock, end);
      if (at < to && from < stop) sum += stop - at;
    }
  }
  return sum;
}

class BytesRead : public ::testing::Test {
 protected:
  void SetUp() override {
    if (bytes_read() < 0) GTEST_SKIP() << "this kernel does not count (/proc/self/io)";
  }
  files::TempDir dir;
};

TEST_F(BytesRead, OfRowsAndRangesAreTheBlocksThatTheyTouch) {
  const fs::path folder = saved_by(ranges, dir.path());

  for (const auto& [layout, ranks] : {std::pair<Layout, int>{rows, 4}, {ranges, 5}, {rows, 1}}) {
    for (int rank = 0; rank < ranks; ++rank) {
      Share mine = share_of(layout, rank, ranks);
      const std::int64_t from = kAll * rank / ranks, to = kAll * (rank + 1) / ranks;
      ASSERT_EQ(mine.bytes, to - from);

      const Checkpoint checkpoint(folder);
      const std::int64_t first = read_by_load(checkpoint, mine);
      const std::int64_t again = read_by_load(checkpoint, mine);

      EXPECT_GE(first, touched(from, to)) << rank << " of " << ranks;
      EXPECT_LE(first, touched(from, to) + kSlack) << rank << " of " << ranks;
      EXPECT_LT(first, mine.bytes + kWriters * 2 * kBlock + kSlack);
      // Of blocks that are already verified only the needed bytes are read.
      EXPECT_GE(again, mine.bytes);
      EXPECT_LE(again, mine.bytes + kSlack);
    }
  }
}

/// Every block holds a part of some row, and its checksum covers all its bytes.
TEST_F(BytesRead, OfColumnsOutOfRowsAreAllBlocksOnce) {
  const fs::path folder = saved_by(ranges, dir.path());

  for (int rank = 0; rank < 4; ++rank) {
    Share mine = share_of(columns, rank, 4);
    ASSERT_EQ(mine.bytes, kAll / 4);

    const std::int64_t read = read_by_load(Checkpoint(folder), mine);

    EXPECT_GE(read, kAll) << rank;
    EXPECT_LE(read, kAll + kSlack) << rank;
  }
}

TEST_F(BytesRead, OfTheCutThatWroteAreItsOwnAlone) {
  for (const Layout layout : {rows, columns, ranges}) {
    const files::TempDir own;
    const fs::path folder = saved_by(layout, own.path());
    for (int rank = 0; rank < kWriters; ++rank) {
      Share mine = share_of(layout, rank, kWriters);

      const std::int64_t read = read_by_load(Checkpoint(folder), mine);

      EXPECT_GE(read, mine.bytes) << rank;
      EXPECT_LE(read, mine.bytes + kSlack) << rank;
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint::test
