// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What every tier promises: bytes come back, in the order of the transfers, and snapshots keep
// theirs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/memory/pages.h"
#include "tessera/memory/tiers/measure.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kBlocks = 7;

using Bytes = std::vector<std::byte>;

Bytes read_all(const ByteSource& source) {
  Bytes out(source.size());
  // Parts of a prime size begin and end in the middle of blocks.
  constexpr std::size_t kPart = 1009;
  for (std::size_t at = 0; at < out.size(); at += kPart)
    source.read(at, std::span(out).subspan(at, std::min(kPart, out.size() - at)));
  return out;
}

class Tiers : public ::testing::TestWithParam<std::string> {
 protected:
  void fill(StagingMemory& memory) {
    for (std::byte& byte : memory.bytes())
      byte = static_cast<std::byte>(random_());
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }

  files::TempDir dir_;
  std::unique_ptr<Tier> tier_ =
      tiers().get(GetParam())({.folder = dir_.path().string(), .block_bytes = kBlock});
  std::unique_ptr<TierFile> file_ = tier_->open("states of block 3", kBlocks* kBlock);
  std::mt19937 random_{42};
};

TEST_P(Tiers, BeginWithZeros) {
  EXPECT_EQ(tier_->name(), GetParam());
  EXPECT_EQ(file_->size(), kBlocks * kBlock);
  StagingMemory memory(kBlocks * kBlock);
  fill(memory);

  file_->wait(file_->read(0, memory.bytes()));

  EXPECT_EQ(std::ranges::count(memory.bytes(), std::byte{0}), kBlocks * kBlock);
}

/// Number of pages of open files without a name in `dir` that the page cache holds; nothing if
/// there is no such file.
std::optional<std::size_t> cached_pages(const fs::path& dir) {
  std::optional<std::size_t> out;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = fs::read_symlink(entry.path(), ignored).string();
    if (!target.starts_with(dir.string() + "/")) continue;
    const int fd = std::stoi(entry.path().filename().string());
    struct stat status {};
    if (::fstat(fd, &status) != 0 || status.st_size == 0) continue;
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) continue;
    std::vector<unsigned char> pages(size / kPageBytes);
    EXPECT_EQ(::mincore(map, size, pages.data()), 0);
    ::munmap(map, size);
    out = out.value_or(0) + static_cast<std::size_t>(std::ranges::count_if(
                                pages, [](unsigned char page) { return (page & 1U) != 0; }));
  }
  return out;
}

// Where the file system has direct access, as ext4, xfs and btrfs do; tmpfs is the page cache.
TEST(DiskTiers, LeaveNothingInThePageCache) {
  const files::TempDir dir;
  const int direct = ::open(dir.path().c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (direct < 0) GTEST_SKIP() << "this file system has no direct access";
  ::close(direct);
  const auto tier = tiers().get("disk")({.folder = dir.path().string(), .block_bytes = kBlock});
  const auto file = tier->open("states", 64 * kBlock);
  StagingMemory memory(64 * kBlock);
  std::ranges::fill(memory.bytes(), std::byte{7});

  file->wait(file->write(0, memory.bytes()));
  file->wait(file->read(0, memory.bytes()));

  const std::optional<std::size_t> pages = cached_pages(dir.path());
  ASSERT_TRUE(pages.has_value()) << "the file of the tier was not found";
  EXPECT_EQ(*pages, 0U);
}

// The suite above uses io_uring where the build and the kernel have it.
TEST(DiskTiers, ReadWithThreadsWhatTheyWrote) {
  const files::TempDir dir;
  ::setenv("TESSERA_DISK_IO", "threads", 1);
  const auto tier =
      tiers().get("disk")({.folder = dir.path().string(), .block_bytes = kBlock, .transfers = 3});
  ::unsetenv("TESSERA_DISK_IO");
  const auto file = tier->open("states", kBlocks * kBlock);
  StagingMemory written(kBlocks * kBlock), read(kBlocks * kBlock);
  std::mt19937 random(3);
  for (std::byte& byte : written.bytes())
    byte = static_cast<std::byte>(random());

  file->write(0, written.bytes());
  file->wait(file->read(0, read.bytes()));

  EXPECT_TRUE(std::ranges::equal(written.bytes(), read.bytes()));
}

TEST(DiskSpeeds, AreRememberedForTheFoldersOfADisk) {
  const files::TempDir dir, cache;
  const char* const before = std::getenv("TESSERA_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TESSERA_CACHE", cache.path().c_str(), 1);
  const std::string folder = dir.path().string();

  EXPECT_FALSE(remembered_speed(folder).has_value());
  remember_speed({.options = {.folder = folder, .block_bytes = 8192, .transfers = 3},
                  .write = 2e9,
                  .read = 1.5e9,
                  .read_beside_write = 1e9});
  const auto speed = remembered_speed(folder + "/not/yet/there");
  ASSERT_TRUE(speed.has_value());
  EXPECT_EQ(speed->options.block_bytes, 8192);
  EXPECT_EQ(speed->options.transfers, 3);
  EXPECT_EQ(speed->update_s(3'000'000'000), 3.0);
  for (const auto& entry : fs::recursive_directory_iterator(cache.path())) {
    if (entry.is_regular_file()) files::write_atomic(entry.path(), "8192 3 what");
  }
  EXPECT_FALSE(remembered_speed(folder).has_value()) << "a damaged entry";

  if (before == nullptr) {
    ::unsetenv("TESSERA_CACHE");
  } else {
    ::setenv("TESSERA_CACHE", kept.c_str(), 1);
  }
}

TEST_P(Tiers, ReadWhatWasWrittenLastWhileTransfersAreUnderWay) {
  Bytes wanted(kBlocks * kBlock);
  struct Reading {
    StagingMemory memory;
    Ticket ticket;
    Bytes wanted;
  };
  std::vector<Reading> readings;
  std::vector<std::pair<StagingMemory, Ticket>> writings;
  for (int i = 0; i < 200; ++i) {
    const std::size_t first = below(kBlocks), count = 1 + below(kBlocks - first);
    const std::size_t at = first * kBlock, size = count * kBlock;
    StagingMemory memory(static_cast<std::int64_t>(size));
    if (below(2) == 0) {
      fill(memory);
      std::ranges::copy(memory.bytes(), wanted.begin() + static_cast<std::ptrdiff_t>(at));
      const Ticket ticket = file_->write(static_cast<std::int64_t>(at), memory.bytes());
      writings.emplace_back(std::move(memory), ticket);
    } else {
      const Ticket ticket = file_->read(static_cast<std::int64_t>(at), memory.bytes());
      const auto from = wanted.begin() + static_cast<std::ptrdiff_t>(at);
      readings.push_back(
          {std::move(memory), ticket, Bytes(from, from + static_cast<std::ptrdiff_t>(size))});
    }
    if (below(5) > 0 && i < 199) continue;  // memory belongs to the tier until it is waited for
    for (const Reading& reading : readings) {
      file_->wait(reading.ticket);
      ASSERT_TRUE(std::ranges::equal(reading.memory.bytes(), reading.wanted)) << "transfer " << i;
    }
    for (const auto& [memory, ticket] : writings)
      file_->wait(ticket);
    readings.clear();
    writings.clear();
  }
}

TEST_P(Tiers, KeepTheBytesOfASnapshot) {
  std::vector<std::pair<std::shared_ptr<const ByteSource>, Bytes>> snapshots;
  Bytes now(kBlocks * kBlock);
  for (int i = 0; i < 20; ++i) {
    const std::size_t at = below(kBlocks) * kBlock;
    StagingMemory memory(kBlock);
    fill(memory);
    std::ranges::copy(memory.bytes(), now.begin() + static_cast<std::ptrdiff_t>(at));
    const Ticket ticket = file_->write(static_cast<std::int64_t>(at), memory.bytes());
    // A write that was started counts.
    if (i % 3 == 0) snapshots.emplace_back(file_->snapshot(), now);
    file_->wait(ticket);
    if (snapshots.size() > 3) snapshots.erase(snapshots.begin());
  }
  StagingMemory memory(kBlocks * kBlock);
  file_->wait(file_->read(0, memory.bytes()));
  EXPECT_TRUE(std::ranges::equal(memory.bytes(), now));
  file_.reset();
  tier_.reset();

  for (const auto& [snapshot, wanted] : snapshots)
    EXPECT_TRUE(read_all(*snapshot) == wanted);
}

TEST_P(Tiers, CountWhatTravels) {
  StagingMemory memory(2 * kBlock);
  file_->wait(file_->write(kBlock, memory.bytes()));
  file_->wait(file_->read(0, memory.bytes().first(kBlock)));

  EXPECT_EQ(tier_->use().written_bytes, 2 * kBlock);
  EXPECT_EQ(tier_->use().read_bytes, kBlock);
}

INSTANTIATE_TEST_SUITE_P(All, Tiers, ::testing::ValuesIn(tiers().names()), [](const auto& param) {
  return param.param;
});

TEST(TierRegistry, HasTheMemoryOfTheHostAndDisks) {
  const std::vector<std::string> wanted = {"disk", "host"};
  EXPECT_EQ(tiers().names(), wanted);
}

/// A tier on a disk, whose files the tests reach only through the process's descriptors.
class DiskTier : public ::testing::Test {
 protected:
  /// The descriptor of the file without a name that was opened last in the folder.
  int descriptor() {
    int found = -1;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code failed;
      const std::string target = fs::read_symlink(entry.path(), failed).string();
      if (target.starts_with(dir_.path().string() + "/"))
        found = std::max(found, std::stoi(entry.path().filename().string()));
    }
    return found;
  }
  std::unique_ptr<TierFile> open() { return tier_->open("states of block 3", kBlocks * kBlock); }
  /// The error of an action.
  template <class Action>
  Error error_of(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      return error;
    }
    return Error(Error::Kind::Bug, "there was no error");
  }

  files::TempDir dir_;
  std::unique_ptr<Tier> tier_ =
      tiers().get("disk")({.folder = dir_.path().string(), .block_bytes = kBlock});
};

TEST_F(DiskTier, ReservesAFileThatNoCrashLeavesBehind) {
  const auto file = open();

  EXPECT_TRUE(fs::is_empty(dir_.path()));
  struct stat info {};
  ASSERT_EQ(::fstat(descriptor(), &info), 0);
  EXPECT_EQ(info.st_size, kBlocks * kBlock);
  EXPECT_GE(info.st_blocks * 512, kBlocks * kBlock);
}

TEST_F(DiskTier, ReusesTheRoomOfASnapshotThatEnded) {
  const auto file = open();
  const int fd = descriptor();
  StagingMemory memory(kBlocks * kBlock);
  for (int i = 0; i < 5; ++i) {
    const auto snapshot = file->snapshot();
    file->wait(file->write(0, memory.bytes()));
  }

  struct stat info {};
  ASSERT_EQ(::fstat(fd, &info), 0);
  EXPECT_EQ(info.st_size, 2 * kBlocks * kBlock);
}

TEST_F(DiskTier, NamesTheDamageOfBytesThatItReads) {
  const auto file = open();
  StagingMemory memory(kBlocks * kBlock);
  std::ranges::fill(memory.bytes(), std::byte{7});
  file->wait(file->write(0, memory.bytes()));
  const auto snapshot = file->snapshot();
  // As a torn write or a failing disk leaves it.
  StagingMemory torn(kBlock);
  std::ranges::fill(torn.bytes().first(512), std::byte{7});
  ASSERT_EQ(::pwrite(descriptor(), torn.bytes().data(), kBlock, 2 * kBlock), kBlock);

  file->wait(file->read(0, memory.bytes().first(2 * kBlock)));
  const Error error =
      error_of([&] { file->wait(file->read(kBlock, memory.bytes().first(2 * kBlock))); });
  std::vector<std::byte> out(100);
  const Error of_save = error_of([&] { snapshot->read(2 * kBlock + 1000, out); });

  for (const Error& found : {error, of_save}) {
    EXPECT_EQ(found.kind(), Error::Kind::Io);
    EXPECT_THAT(found.what(), ::testing::HasSubstr(dir_.path().string()));
    EXPECT_THAT(found.what(), ::testing::HasSubstr("states of block 3"));
    EXPECT_THAT(found.what(), ::testing::HasSubstr(std::to_string(2 * kBlock)));
  }
}

TEST_F(DiskTier, ReportsAFailedWriteAtItsWaitAndFromThenOn) {
  const auto file = open();
  StagingMemory memory(2 * kBlock);
  const Ticket first = file->write(0, memory.bytes());
  file->wait(first);
  // Writes fail as on a disk that became read-only.
  const int fd = descriptor(), read_only = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int kept = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(::dup2(read_only, fd), 0);

  const Error error = error_of([&] { file->wait(file->write(kBlock, memory.bytes())); });

  ASSERT_GE(::dup2(kept, fd), 0);
  ::close(kept);
  ::close(read_only);
  EXPECT_EQ(error.kind(), Error::Kind::Io);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("write"));
  EXPECT_THAT(error.what(), ::testing::HasSubstr(dir_.path().string()));
  EXPECT_EQ(error_of([&] { file->wait(first); }).kind(), Error::Kind::Io);
}

TEST_F(DiskTier, RefusesWhatDoesNotFitOrHasNoFolderWithTheBytesAndTheFolder) {
  const Error large = error_of([&] { (void)tier_->open("moments", std::int64_t{1} << 52); });
  EXPECT_EQ(large.kind(), Error::Kind::Io);
  EXPECT_THAT(large.what(), ::testing::HasSubstr("4.0 PiB"));
  EXPECT_THAT(large.what(), ::testing::HasSubstr("moments"));
  EXPECT_FALSE(large.fix().empty());

  const auto nowhere =
      tiers().get("disk")({.folder = (dir_.path() / "none").string(), .block_bytes = kBlock});
  const Error missing = error_of([&] { (void)nowhere->open("moments", kBlock); });
  EXPECT_EQ(missing.kind(), Error::Kind::Io);
  EXPECT_THAT(missing.what(), ::testing::HasSubstr((dir_.path() / "none").string()));
}

TEST(StagingMemory, IsAlignedZeroAndCountedUntilItEnds) {
  Ledger ledger;
  const ScopedLedger counts(ledger);
  const ScopedTag tag(Tag::Optimizer);
  const auto used = [&] {
    return ledger.usage().current[static_cast<std::size_t>(Tag::Optimizer)];
  };
  {
    StagingMemory memory(5000);
    EXPECT_EQ(memory.bytes().size(), 5000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % 4096, 0U);
    EXPECT_EQ(std::ranges::count(memory.bytes(), std::byte{0}), 5000);
    EXPECT_EQ(used(), 8192);
    StagingMemory moved(std::move(memory));
    EXPECT_EQ(used(), 8192);
    moved = StagingMemory(100);
    EXPECT_EQ(used(), 4096);
  }
  EXPECT_EQ(used(), 0);
}

}  // namespace
}  // namespace tessera::memory
