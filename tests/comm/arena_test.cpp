// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/arena.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Runs the tests on both kinds of memory behind an arena.
class ArenaOver : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "file") {
      file_ = memfd_create("arena", 0);
      ASSERT_EQ(ftruncate(file_, 64 * kMiB), 0);
    }
    mapping_ = GetParam() == "file" ? map_file(file_, 64 * kMiB) : map_anonymous(64 * kMiB);
    arena_ = std::make_shared<Arena>(mapping_, 100);
  }
  void TearDown() override {
    arena_.reset();
    mapping_.reset();
    if (file_ >= 0) close(file_);
  }
  static bool zeroed(const RegionPtr& region) {
    const auto* bytes = static_cast<const unsigned char*>(region->data());
    return std::all_of(bytes, bytes + region->bytes(), [](unsigned char b) { return b == 0; });
  }

  int file_ = -1;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Arena> arena_;
};
INSTANTIATE_TEST_SUITE_P(Memory,
                         ArenaOver,
                         ::testing::Values("file", "private"),
                         [](const auto& info) { return info.param; });

TEST_P(ArenaOver, GivesZeroedAlignedMemoryAgainAndAgain) {
  void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    const RegionPtr region = arena_->allocate(kMiB + 1, memory::Tag::Other);

    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->data()) % 4096, 0U);
    EXPECT_EQ(region->bytes(), kMiB + 1);
    EXPECT_TRUE(zeroed(region));
    if (first != nullptr) {
      EXPECT_EQ(region->data(), first) << "a freed range is used again";
    }
    first = region->data();
    std::memset(region->data(), 7, region->bytes());
  }
}

TEST_P(ArenaOver, JoinsFreedNeighbours) {
  RegionPtr a = arena_->allocate(20 * kMiB, memory::Tag::Other);
  RegionPtr b = arena_->allocate(20 * kMiB, memory::Tag::Other);
  RegionPtr c = arena_->allocate(20 * kMiB, memory::Tag::Other);
  EXPECT_THROW(arena_->allocate(30 * kMiB, memory::Tag::Other), Error);

  a.reset();
  c.reset();
  b.reset();

  EXPECT_NO_THROW(arena_->allocate(60 * kMiB, memory::Tag::Other));
}

TEST_P(ArenaOver, ShortageIsAnErrorAndNothingIsLost) {
  for (const std::size_t bytes : {65 * kMiB, std::size_t{1} << 50, SIZE_MAX}) {
    try {
      arena_->allocate(bytes, memory::Tag::Parameters);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Memory);
      EXPECT_NE(std::string(error.what()).find("parameters"), std::string::npos) << error.what();
    }
  }

  EXPECT_NO_THROW(arena_->allocate(60 * kMiB, memory::Tag::Other));
}

TEST_P(ArenaOver, FindsTheRegionOfAnAddress) {
  const RegionPtr region = arena_->allocate(10000, memory::Tag::Other);
  auto* const bytes = static_cast<std::byte*>(region->data());
  int elsewhere = 0;

  EXPECT_EQ(arena_->find(bytes, 10000), region);
  EXPECT_EQ(arena_->find(bytes + 9999, 1), region);
  EXPECT_EQ(arena_->find(bytes + 1, 10000), nullptr) << "it does not hold the whole";
  EXPECT_EQ(arena_->find(&elsewhere, 4), nullptr);
}

TEST_P(ArenaOver, ChargesTheLedgerUnderItsTag) {
  memory::Ledger ledger;
  const memory::ScopedLedger scope(ledger);
  const auto gradients = [&] {
    return ledger.usage().current[static_cast<std::size_t>(memory::Tag::Gradients)];
  };

  RegionPtr region = arena_->allocate(kMiB, memory::Tag::Gradients);
  EXPECT_EQ(gradients(), static_cast<std::int64_t>(kMiB));

  region.reset();
  EXPECT_EQ(gradients(), 0);
}

TEST_P(ArenaOver, ARegionOutlivesTheArena) {
  const RegionPtr region = arena_->allocate(4096, memory::Tag::Other);

  arena_.reset();
  mapping_.reset();
  std::memset(region->data(), 1, 4096);

  EXPECT_EQ(static_cast<const char*>(region->data())[4095], 1);
}

TEST_P(ArenaOver, AClosedArenaKeepsWhatPeersMayStillRead) {
  RegionPtr region = arena_->allocate(4096, memory::Tag::Other);
  auto* const bytes = static_cast<char*>(region->data());
  bytes[5] = 42;

  arena_->close();
  region.reset();

  EXPECT_EQ(bytes[5], 42);
}

TEST(ArenaFile, FreedPagesGoBackToTheKernel) {
  const int file = memfd_create("arena", 0);
  ASSERT_EQ(ftruncate(file, 64 * kMiB), 0);
  const auto arena = std::make_shared<Arena>(map_file(file, 64 * kMiB), 100);
  const auto held = [&] {
    struct stat status {};
    fstat(file, &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  RegionPtr region = arena->allocate(8 * kMiB, memory::Tag::Other);
  EXPECT_GE(held(), 8 * kMiB);

  region.reset();

  EXPECT_LT(held(), kMiB);
  close(file);
}

}  // namespace
}  // namespace tessera::comm
