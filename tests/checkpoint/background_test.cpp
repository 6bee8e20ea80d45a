// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Background saves: which operation waits for which, and the order of disk accesses.
#include "tessera/checkpoint/background.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <new>
#include <span>
#include <stdexcept>
#include <utility>

#include "checkpoint/support.h"
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

/// A disk that blocks at the changes that `chosen` selects, until it is released.
class StuckDisk {
 public:
  using Chosen = std::function<bool(const std::string& operation, const fs::path& path)>;
  explicit StuckDisk(Chosen chosen) : chosen_(std::move(chosen)) {}
  Storage& storage() { return disk_; }
  void release() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }
  void await_stuck() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stuck_; });
  }

 private:
  /// WatchedStorage calls `before` under a lock, which a blocked change must not hold.
  class Sluice final : public Storage {
   public:
    explicit Sluice(StuckDisk& of) : of_(of) {}
    void make_folder(const fs::path& path) override { real_storage().make_folder(path); }
    std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
      of_.pass("create", path);
      return real_storage().create(path, bytes);
    }
    void sync_folder(const fs::path& path) override { real_storage().sync_folder(path); }
    void rename(const fs::path& from, const fs::path& to) override {
      of_.pass("rename", to);
      real_storage().rename(from, to);
    }
    bool exchange(const fs::path& a, const fs::path& b) override {
      return real_storage().exchange(a, b);
    }
    void remove(const fs::path& path) override { real_storage().remove(path); }
    void write_atomic(const fs::path& path, std::string_view content) override {
      real_storage().write_atomic(path, content);
    }

   private:
    StuckDisk& of_;
  };

  void pass(const std::string& operation, const fs::path& path) {
    if (!chosen_(operation, path)) return;
    std::unique_lock lock(mutex_);
    stuck_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return free_; });
  }

  Chosen chosen_;
  Sluice disk_{*this};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stuck_ = false, free_ = false;
};

/// Returns the contents of every file under `root` by relative name.
std::map<std::string, std::string> contents(const fs::path& root) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file())
      out[fs::relative(entry.path(), root).string()] = slurp(entry.path());
  }
  return out;
}

/// A save of the small model by one rank, during which the test makes steps.
struct Alone {
  explicit Alone(Storage& disk, const fs::path& root, std::function<void()> then = {})
      : memory(std::make_shared<Held>(held(small_model(), ranges, 0, 1, true))),
        save(disk, root, meta_at(7), memory->pieces, memory, me, std::move(then)) {}
  void step() { make_step(save, me); }
  void steps_until_settled() {
    while (!save.settled())
      step();
  }
  Ranks me;
  std::shared_ptr<Held> memory;
  BackgroundSave save;
};

TEST(BackgroundSaves, WriteTheBytesThatASaveWrites) {
  for (const int ranks : {1, 3}) {
    const files::TempDir waiting, background;
    WatchedStorage disk;

    save_model(disk, waiting.path(), 7, small_model(), columns, ranks, 0, How::Waiting);
    save_model(disk, background.path(), 7, small_model(), columns, ranks, 0, How::Background);

    EXPECT_EQ(contents(background.path()), contents(waiting.path()));
    EXPECT_EQ(contents(waiting.path()).size(), static_cast<std::size_t>(ranks) + 2);
  }
}

TEST(BackgroundSaves, StepsGoOnWhileTheDiskHangs) {
  const files::TempDir dir;
  save_model(dir.path(), 1);
  StuckDisk disk([](const std::string& operation, const fs::path& path) {
    return operation == "create" && path.filename() == shard_name(0);
  });
  Alone alone(disk.storage(), dir.path());
  disk.await_stuck();

  for (int step = 0; step < 100; ++step)
    alone.step();

  EXPECT_FALSE(alone.save.settled());
  EXPECT_EQ(list(dir.path()).size(), 1U);
  disk.release();
  alone.steps_until_settled();
  EXPECT_EQ(list(dir.path()).size(), 2U);
}

TEST(BackgroundSaves, StepsGoOnWhileThePublicationHangs) {
  const files::TempDir dir;
  StuckDisk disk(
      [](const std::string& operation, const fs::path&) { return operation == "rename"; });
  Alone alone(disk.storage(), dir.path());
  while (alone.save.progress().busy) {
  }
  alone.step();
  disk.await_stuck();

  for (int step = 0; step < 100; ++step)
    alone.step();

  EXPECT_FALSE(alone.save.settled());
  disk.release();
  EXPECT_EQ(alone.save.finish().folder, dir.path() / step_name(7));
  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
}

/// A CopyOut that counts the bytes it was given.
struct Copies {
  std::size_t bytes = 0;
  std::shared_ptr<const void> operator()(std::vector<std::span<const std::byte>>& spans) {
    auto memory = std::make_shared<std::vector<std::vector<std::byte>>>();
    for (auto& span : spans) {
      bytes += span.size();
      memory->emplace_back(span.begin(), span.end());
      span = memory->back();
    }
    return memory;
  }
};
void scribble(Held& held) {
  for (auto& bytes : held.memory)
    std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
}
std::size_t size_of_all(const Held& held) {
  std::size_t bytes = 0;
  for (const auto& piece : held.pieces)
    bytes += piece.bytes.size();
  return bytes;
}

TEST(BackgroundSaves, WriteWhatWasThereWhenTheyBeganHoweverMuchItChanges) {
  const files::TempDir dir;
  StuckDisk disk([](const std::string& operation, const fs::path& path) {
    return operation == "create" && path.filename() == shard_name(0);
  });
  Alone alone(disk.storage(), dir.path());
  disk.await_stuck();

  Copies copies;
  alone.save.before_change(std::ref(copies));
  scribble(*alone.memory);
  // Changes after the first one copy nothing more.
  alone.save.before_change(
      [](auto&) -> std::shared_ptr<const void> { throw std::logic_error("copied twice"); });
  disk.release();
  alone.steps_until_settled();

  EXPECT_EQ(copies.bytes, size_of_all(*alone.memory));
  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
}

TEST(BackgroundSaves, CopyNothingThatIsWritten) {
  const files::TempDir dir;
  WatchedStorage disk;
  Alone alone(disk, dir.path());
  while (alone.save.progress().busy) {
  }

  Copies copies;
  alone.save.before_change(std::ref(copies));
  scribble(*alone.memory);
  alone.steps_until_settled();

  EXPECT_EQ(copies.bytes, 0U);
  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
}

TEST(BackgroundSaves, WaitForTheDiskWhereThereIsNoMemoryForACopy) {
  const files::TempDir dir;
  StuckDisk disk([](const std::string& operation, const fs::path& path) {
    return operation == "create" && path.filename() == shard_name(0);
  });
  Alone alone(disk.storage(), dir.path());
  disk.await_stuck();

  alone.save.before_change([&](auto&) -> std::shared_ptr<const void> {
    disk.release();
    throw std::bad_alloc();
  });
  scribble(*alone.memory);
  alone.steps_until_settled();

  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
}

TEST(LiveBytes, CopyTheRestOfWhatIsHalfRead) {
  Held mine = held(small_model(), ranges, 0, 1, true);
  LiveBytes live(mine.pieces);
  const std::vector<PieceBytes>& pieces = mine.pieces;
  const std::vector<std::byte> before(pieces[0].bytes.begin(), pieces[0].bytes.end());
  const std::size_t half = before.size() / 2;
  std::vector<std::byte> read(before.size());
  live.read(pieces[0].bytes.first(half), read.data());

  Copies copies;
  live.move_out(std::ref(copies));
  scribble(mine);
  live.read(pieces[0].bytes.subspan(half), read.data() + half);

  EXPECT_EQ(read, before);
  EXPECT_EQ(copies.bytes, size_of_all(mine) - half);
}

/// A piece's bytes as if they were outside of memory; counts what is read of them.
class Elsewhere final : public ByteSource {
 public:
  Elsewhere(std::vector<std::byte> bytes, std::size_t& read)
      : bytes_(std::move(bytes)), read_(read) {}
  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    read_ += out.size();
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t& read_;
};

TEST(BackgroundSaves, ReadPiecesThatAreNotInMemoryFromTheirSource) {
  const files::TempDir dir;
  const auto memory = std::make_shared<Held>(held(small_model(), ranges, 0, 1, true));
  std::size_t read = 0, elsewhere = 0;
  // Every second piece, so that sources and memory follow each other in one file.
  for (std::size_t i = 0; i < memory->pieces.size(); ++i) {
    PieceBytes& piece = memory->pieces[i];
    if (i % 2 == 1) continue;
    elsewhere += piece.bytes.size();
    std::vector<std::byte> bytes(piece.bytes.begin(), piece.bytes.end());
    piece.bytes = {};
    piece.source = std::make_shared<Elsewhere>(std::move(bytes), read);
  }
  BackgroundSave save(real_storage(), dir.path(), meta_at(7), memory->pieces, memory, Ranks());

  Copies copies;
  save.before_change(std::ref(copies));
  scribble(*memory);
  while (!save.settled())
    make_step(save, Ranks());
  save.finish();

  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
  EXPECT_EQ(read, elsewhere) << "each byte once";
  EXPECT_LE(copies.bytes, size_of_all(*memory)) << "a source needs no copy";
}

TEST(Save, RefusesAPieceWithBytesInTwoPlaces) {
  const files::TempDir dir;
  Held memory = held(small_model(), ranges, 0, 1, true);
  std::size_t read = 0;
  PieceBytes& piece = memory.pieces.front();
  piece.source = std::make_shared<Elsewhere>(
      std::vector<std::byte>(piece.bytes.begin(), piece.bytes.end()), read);
  const auto refused = [&] {
    try {
      save(dir.path(), meta_at(7), memory.pieces, Ranks());
    } catch (const Error& error) {
      return error.kind();
    }
    return Error::Kind::Config;
  };

  EXPECT_EQ(refused(), Error::Kind::Bug);
  piece.bytes = piece.bytes.first(0);
  EXPECT_NO_THROW(save(dir.path(), meta_at(7), memory.pieces, Ranks()));
  piece.source = std::make_shared<Elsewhere>(std::vector<std::byte>(3), read);
  EXPECT_EQ(refused(), Error::Kind::Bug) << "too few bytes";
}

TEST(BackgroundSaves, PublishNothingBeforeEveryRankHasWritten) {
  const files::TempDir dir;
  StuckDisk disk([](const std::string& operation, const fs::path& path) {
    return operation == "create" && path.filename() == part_name(1);
  });
  std::atomic<int> settled_early{0};

  on_ranks(2, [&](const Ranks& me) {
    const auto memory = std::make_shared<Held>(held(small_model(), ranges, me.rank, 2, true));
    BackgroundSave save(disk.storage(), dir.path(), meta_at(7), memory->pieces, memory, me);
    if (me.rank == 0) {
      while (save.progress().busy) {
      }
    } else {
      disk.await_stuck();
    }
    for (int step = 0; step < 100; ++step)
      make_step(save, me);
    if (save.settled() || !list(dir.path()).empty()) ++settled_early;
    me.barrier();
    disk.release();
    while (!save.settled())
      make_step(save, me);
    save.finish();
  });

  EXPECT_EQ(settled_early, 0);
  EXPECT_TRUE(loads_exactly(dir.path() / step_name(7)));
}

TEST(BackgroundSaves, PublishNothingWithoutTheConsentOfAStep) {
  const files::TempDir dir;
  Alone alone(real_storage(), dir.path());

  while (alone.save.progress().busy) {
  }

  EXPECT_TRUE(fs::exists(dir.path() / temp_name(7, ::getpid()) / part_name(0)));
  EXPECT_TRUE(list(dir.path()).empty());
}

TEST(BackgroundSaves, LetGoOfTheCopyOnceItIsWritten) {
  const files::TempDir dir;
  StuckDisk disk([](const std::string& operation, const fs::path& path) {
    return operation == "create" && path.filename() == shard_name(0);
  });
  Alone alone(disk.storage(), dir.path());
  const std::weak_ptr<Held> copy = std::exchange(alone.memory, nullptr);
  disk.await_stuck();
  alone.step();
  EXPECT_FALSE(copy.expired());

  disk.release();
  while (alone.save.progress().busy) {
  }

  EXPECT_TRUE(copy.expired());
}

TEST(BackgroundSaves, ThatAreAbandonedLeaveWhatTheNextSaveCleans) {
  const files::TempDir dir;
  save_model(dir.path(), 1);
  { const Alone alone(real_storage(), dir.path()); }
  ASSERT_EQ(*step_of(*newest(dir.path())), 1);

  save_model(dir.path(), 8);

  EXPECT_FALSE(fs::exists(dir.path() / temp_name(7, ::getpid())));
  for (const auto& folder : list(dir.path()))
    EXPECT_TRUE(loads_exactly(folder));
}

TEST(BackgroundSaves, SayApartWhatFailsBehindThePublication) {
  const files::TempDir dir;
  Alone alone(real_storage(), dir.path(), [] { throw Error(Error::Kind::Io, "cannot prune"); });

  alone.steps_until_settled();
  const BackgroundSave::Outcome outcome = alone.save.finish();

  ASSERT_TRUE(outcome.then.has_value());
  EXPECT_STREQ(outcome.then->what(), "cannot prune");
  EXPECT_TRUE(loads_exactly(outcome.folder));
}

}  // namespace
}  // namespace tessera::checkpoint::test
