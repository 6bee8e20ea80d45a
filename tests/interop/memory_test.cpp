// SPDX-License-Identifier: Apache-2.0
// labels: slow
// What loading and reading cost beyond the bytes that are asked for.
#include "interop/support.h"
#include "support/peak_memory.h"
#include <gtest/gtest.h>

#include "tessera/interop/export.h"
#include "tessera/interop/weights.h"

namespace tessera::interop::test {
namespace {

using tessera::test::peak_growth;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
/// Memory that a rank may use in addition to its share.
constexpr std::int64_t kBeside = 64 * kMiB;

/// 288 MiB in three tensors.
const std::vector<Spec> kLarge = {{"a", DType::F32, {16384, 1024}},
                                  {"b", DType::F32, {48, 1024, 1024}},
                                  {"c", DType::F32, {8 * kMiB}}};

/// Pieces whose memory was never touched.
struct Share {
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<checkpoint::PieceBytes> pieces;
  std::int64_t bytes = 0;
};
Share share_of(Layout layout, int rank, int ranks) {
  Share out;
  for (const Spec& spec : kLarge) {
    for (const auto& piece : layout(spec.shape, rank, ranks)) {
      const std::int64_t size = (piece.end - piece.begin) * 4;
      out.memory.push_back(
          std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(size)));
      out.pieces.push_back({spec.name,
                            spec.dtype,
                            spec.shape,
                            piece,
                            {out.memory.back().get(), static_cast<std::size_t>(size)}});
      out.bytes += size;
    }
  }
  return out;
}

fs::path save_large(const fs::path& root) {
  fs::path folder;
  on_ranks(2, [&](const checkpoint::Ranks& me) {
    const Share mine = share_of(columns, me.rank, 2);
    for (const checkpoint::PieceBytes& piece : mine.pieces)
      std::memset(piece.bytes.data(), 1, piece.bytes.size());
    const fs::path made = save(root, meta_at(1), mine.pieces, me);
    if (me.rank == 0) folder = made;
  });
  return folder;
}

TEST(MemoryOfALoad, IsTheShareAndLittleMoreWhateverTheLayouts) {
  const files::TempDir dir;
  const fs::path folder = save_large(dir.path());

  for (const Layout layout : {ranges, columns, rows_then_ranges}) {
    for (const int ranks : {1, 4}) {
      const std::int64_t share = share_of(layout, 0, ranks).bytes;
      const std::int64_t grown = peak_growth([&] {
        const Share mine = share_of(layout, 0, ranks);
        checkpoint::Checkpoint(folder).load(mine.pieces);
        return mine.pieces[0].bytes[0] == std::byte{1};
      });
      EXPECT_GE(grown, share) << ranks;
      EXPECT_LE(grown, share + kBeside) << ranks;
    }
  }
}

TEST(MemoryOfALoad, OfAVerificationIsLittle) {
  const files::TempDir dir;
  const fs::path folder = save_large(dir.path());

  const std::int64_t grown = peak_growth([&] {
    checkpoint::Checkpoint(folder).verify();
    return checkpoint::Checkpoint(folder).digest().size() == kLarge.size();
  });

  EXPECT_GE(grown, 0);
  EXPECT_LE(grown, kBeside);
}

TEST(MemoryOfALoad, OfOthersWeightsReadFrontToBackIsLittle) {
  const files::TempDir dir;
  std::vector<checkpoint::StreamedTensor> tensors;
  for (const Spec& spec : kLarge) {
    const auto ones = [](std::int64_t begin, std::int64_t end, std::byte* out) {
      std::memset(out, 1, static_cast<std::size_t>(end - begin) * 4);
    };
    tensors.push_back({spec.name, spec.dtype, spec.shape, ones, {}});
  }
  write_hf_weights(dir.path(), tensors, UINT64_MAX);
  write_torch_weights(dir.path() / "x.bin", tensors);

  for (const char* name : {"model.safetensors", "x.bin"}) {
    const std::int64_t grown = peak_growth([&] {
      std::vector<std::byte> block(4 * kMiB);
      for (const Weight& weight : open_weight_file(dir.path() / name)) {
        for (std::int64_t at = 0; at < weight.numel(); at += kMiB)
          weight.copy(at, at + kMiB, block.data());
      }
      return block[0] == std::byte{1};
    });
    EXPECT_GE(grown, 0) << name;
    EXPECT_LE(grown, kBeside) << name;
  }
}

}  // namespace
}  // namespace tessera::interop::test
