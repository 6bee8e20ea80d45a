// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/two_threads.h"

namespace tessera::checkpoint::test {
namespace {

constexpr int kCounts[] = {1, 2, 3, 4, 8};
constexpr Layout kLayouts[] = {ranges, columns, rows_then_ranges};

TEST(Layouts, AnyLayoutLoadsWhatAnyLayoutSaved) {
  for (const Layout saving : kLayouts) {
    for (const int n : kCounts) {
      const files::TempDir dir;
      const fs::path folder = save_model(dir.path(), 1, small_model(), saving, n);
      for (const Layout loading : kLayouts) {
        for (const int m : kCounts)
          EXPECT_TRUE(loads_exactly(folder, small_model(), loading, m)) << n << " -> " << m;
      }
    }
  }
}

TEST(Layouts, TheDigestDoesNotKnowThem) {
  const files::TempDir dir;
  const auto wanted = Checkpoint(save_model(dir.path() / "plain", 1)).digest();

  for (const Layout layout : kLayouts) {
    for (const int n : kCounts) {
      const fs::path folder = save_model(dir.path() / "cut", 1, small_model(), layout, n);
      EXPECT_EQ(Checkpoint(folder).digest(), wanted) << n;
    }
  }
}

TEST(Layouts, PiecesOfTensorsLargerThanABlockAreExact) {
  // More than one block of 16 MiB, split so that pieces begin and end inside blocks.
  const std::vector<Spec> model = {{"large", DType::F64, {2111, 1499}}};
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 1, model);
  const Spec& spec = model[0];
  auto whole = values(spec);
  const mesh::Piece wanted{{{17, 900}, {2011, 1301}}, 77, (2011 - 17) * (1301 - 900) - 5};
  std::vector<std::byte> expected(static_cast<std::size_t>(wanted.end - wanted.begin) * 8),
      got(expected.size());
  copy_piece(spec, wanted, whole.data(), expected.data(), true);

  const PieceBytes piece{spec.name, spec.dtype, spec.shape, wanted, got};
  Checkpoint(folder).load({&piece, 1});

  EXPECT_EQ(got, expected);
}

TEST(Layouts, DigestIsTheHashOfTheRowMajorBytesInTheOrderOfNames) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 1, small_model(), columns, 3);
  const auto hash = [](const Spec& spec) {
    return "xxh3:" + files::hex64(files::xxh3(values(spec)));
  };
  const auto model = small_model();

  const auto lines = Checkpoint(folder).digest();

  ASSERT_EQ(lines.size(), model.size());
  EXPECT_EQ(lines[0], "h.0.bias F32 [7] " + hash(model[2]));
  EXPECT_EQ(lines[1], "h.0.half BF16 [9,6] " + hash(model[3]));
  EXPECT_EQ(lines[2], "h.0.qkv F32 [3,4,5,8] " + hash(model[1]));
  EXPECT_EQ(lines[3], "ids I64 [5] " + hash(model[6]));
  EXPECT_EQ(lines[4], "nothing F32 [0,4] " + hash(model[5]));
  EXPECT_EQ(lines[5], "scale F32 [] " + hash(model[4]));
  EXPECT_EQ(lines[6], "wte F32 [53,8] " + hash(model[0]));
  EXPECT_EQ(lines[7], "optimizer.exp_avg.h.0.bias F32 [7] " + hash(model[8]));
  EXPECT_EQ(lines[8], "optimizer.exp_avg.wte F32 [53,8] " + hash(model[7]));
}

TEST(Layouts, MetaComesBackAsItWas) {
  const files::TempDir dir;
  const Meta wanted = meta_at(120);

  const Checkpoint checkpoint(save_model(dir.path(), 120, small_model(), ranges, 2));

  EXPECT_EQ(checkpoint.folder(), dir.path() / "step-00000120");
  EXPECT_EQ(checkpoint.meta().step, wanted.step);
  EXPECT_EQ(checkpoint.meta().samples, wanted.samples);
  EXPECT_EQ(checkpoint.meta().tokens, wanted.tokens);
  EXPECT_TRUE(checkpoint.meta().config == wanted.config);
  EXPECT_TRUE(checkpoint.meta().extra == wanted.extra);
  EXPECT_TRUE(checkpoint.has("wte"));
  EXPECT_FALSE(checkpoint.has("wpe"));
}

TEST(Layouts, NeighbouringRangesBecomeOneEntry) {
  const files::TempDir dir;
  const Spec spec{"w", DType::F32, {10, 10}};
  auto bytes = values(spec);
  const std::span<std::byte> all = bytes;
  const std::vector<PieceBytes> pieces = {
      {spec.name, spec.dtype, spec.shape, {mesh::whole(spec.shape), 40, 100}, all.subspan(160)},
      {spec.name, spec.dtype, spec.shape, {mesh::whole(spec.shape), 0, 40}, all.first(160)}};

  const fs::path folder = save(dir.path(), meta_at(1), pieces, {});

  EXPECT_EQ(SafetensorsFile(folder / "rank-00000.safetensors").entries().size(), 1U);
  EXPECT_TRUE(loads_exactly(folder, {spec}));
}

TEST(Layouts, FloatsConvertOnTheWay) {
  const files::TempDir dir;
  const float numbers[] = {1.0F, -2.5F, 3.14159274F, 1e-3F, 65504.0F};
  std::vector<std::byte> bytes(sizeof(numbers));
  std::memcpy(bytes.data(), numbers, sizeof(numbers));
  const mesh::Piece whole{mesh::whole({5}), 0, 5};
  const PieceBytes saved{"w", DType::F32, {5}, whole, bytes};
  const Checkpoint checkpoint(save(dir.path(), meta_at(1), {&saved, 1}, {}));

  std::uint16_t bf16[5], fp16[5];
  double wide[5];
  const PieceBytes wanted[] = {
      {"w", DType::BF16, {5}, whole, std::as_writable_bytes(std::span(bf16))},
      {"w", DType::F16, {5}, whole, std::as_writable_bytes(std::span(fp16))},
      {"w", DType::F64, {5}, whole, std::as_writable_bytes(std::span(wide))}};
  checkpoint.load(wanted);

  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(bf16[i], to_bf16(numbers[i]));
    EXPECT_EQ(fp16[i], to_fp16(numbers[i]));
    EXPECT_EQ(wide[i], static_cast<double>(numbers[i]));
  }
}

TEST(Layouts, NarrowingADoubleRoundsOnce) {
  const files::TempDir dir;
  // Just above the midpoint of two bf16 neighbours: rounding to float first would give a tie and
  // round down.
  const double number = 1.0 + 0x1p-8 + 0x1p-40;
  double source[] = {number};
  const mesh::Piece whole{mesh::whole({1}), 0, 1};
  const PieceBytes saved{"w", DType::F64, {1}, whole, std::as_writable_bytes(std::span(source))};
  const Checkpoint checkpoint(save(dir.path(), meta_at(1), {&saved, 1}, {}));

  std::uint16_t bf16[1];
  const PieceBytes wanted{"w", DType::BF16, {1}, whole, std::as_writable_bytes(std::span(bf16))};
  checkpoint.load({&wanted, 1});

  EXPECT_EQ(from_bf16(bf16[0]), 1.0F + 0x1p-7F);
}

TEST(TwoThreads, DoEachItemOnceAndReportTheFirstFailure) {
  std::vector<std::atomic<int>> done(1000);
  on_two_threads(done.size(), [&](std::size_t i) { ++done[i]; });
  EXPECT_TRUE(std::ranges::all_of(done, [](const auto& count) { return count == 1; }));

  for (int again = 0; again < 50; ++again) {
    const Error error = error_of([] {
      on_two_threads(1000, [](std::size_t i) {
        if (i == 7 || i == 8) throw Error(Error::Kind::Format, std::to_string(i));
      });
    });
    EXPECT_STREQ(error.what(), "7");
  }
}

TEST(Layouts, AMissingTensorIsNamedWithTheNearest) {
  const files::TempDir dir;
  const Checkpoint checkpoint(save_model(dir.path(), 1));
  std::vector<std::byte> bytes(4);
  const PieceBytes wanted{"scales", DType::F32, {}, {mesh::whole({}), 0, 1}, bytes};

  const Error error = error_of([&] { checkpoint.load({&wanted, 1}); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(error.what()).find("\"scales\""), std::string::npos) << error.text();
  EXPECT_NE(error.fix().find("scale"), std::string::npos) << error.text();
}

TEST(Layouts, AnotherShapeOrDtypeIsRefusedByName) {
  const files::TempDir dir;
  const Checkpoint checkpoint(save_model(dir.path(), 1));
  std::vector<std::byte> bytes(64 * 8 * 4);
  const PieceBytes larger{"wte", DType::F32, {64, 8}, {mesh::whole({64, 8}), 0, 512}, bytes};
  const PieceBytes other{
      "ids", DType::F32, {5}, {mesh::whole({5}), 0, 5}, std::span(bytes).first(20)};

  const Error shape = error_of([&] { checkpoint.load({&larger, 1}); });
  const Error dtype = error_of([&] { checkpoint.load({&other, 1}); });

  EXPECT_EQ(shape.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(shape.what()).find("\"wte\" is [53, 8], but [64, 8] is expected"),
            std::string::npos)
      << shape.text();
  EXPECT_EQ(dtype.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(dtype.what()).find("I64"), std::string::npos) << dtype.text();
}

TEST(Layouts, PiecesThatDoNotTileATensorAreOurBugOnEveryRank) {
  const files::TempDir dir;
  std::vector<Error> errors(2, Error(Error::Kind::Io, ""));

  on_ranks(2, [&](const Ranks& ranks) {
    Held mine = held(small_model(), ranges, ranks.rank, 2, true);
    if (ranks.rank == 1) mine.pieces.erase(mine.pieces.begin());
    errors[static_cast<std::size_t>(ranks.rank)] =
        error_of([&] { save(dir.path(), meta_at(1), mine.pieces, ranks); });
  });

  for (const auto& error : errors) {
    EXPECT_EQ(error.kind(), Error::Kind::Bug);
    EXPECT_NE(std::string(error.what()).find("wte"), std::string::npos) << error.text();
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Layouts, TwoRanksWithTheSamePieceAreOurBug) {
  const files::TempDir dir;

  const Error error = error_of([&] {
    on_ranks(2, [&](const Ranks& ranks) {
      const Held mine = held(small_model(), ranges, 0, 1, true);
      save(dir.path(), meta_at(1), mine.pieces, ranks);
    });
  });

  EXPECT_EQ(error.kind(), Error::Kind::Bug);
  EXPECT_NE(std::string(error.what()).find("twice"), std::string::npos) << error.text();
}

}  // namespace
}  // namespace tessera::checkpoint::test
