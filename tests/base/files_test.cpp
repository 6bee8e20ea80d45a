// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/files.h"

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::files {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Io);
    return error.text();
  }
  return "";
}

TEST(Files, ReadBackWhatWasWritten) {
  const TempDir folder;
  const std::string content("a\0b\n\xFF", 5);

  write_atomic(folder.path() / "f", "old");
  write_atomic(folder.path() / "f", content);

  EXPECT_EQ(read(folder.path() / "f"), content);
}

TEST(Files, AFailedWriteLeavesNothingBehind) {
  const TempDir folder;
  fs::create_directory(folder.path() / "f");  // a file cannot replace a folder

  EXPECT_THAT(refusal([&] { write_atomic(folder.path() / "f", "x"); }),
              HasSubstr((folder.path() / "f").string()));

  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

/// Something else than a file at the path of a file that tessera writes or reads.
struct Other {
  std::string name;  ///< as messages name it
  std::function<void(const fs::path& path, const fs::path& target)> make;
  bool is_link = false;
};
std::vector<Other> other_things() {
  return {
      {"a symbolic link",
       [](const fs::path& path, const fs::path& target) { fs::create_symlink(target, path); },
       true},
      {"a FIFO",
       [](const fs::path& path, const fs::path&) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }},
      {"Is a directory",
       [](const fs::path& path, const fs::path&) { fs::create_directory(path); }}};
}

TEST(OwnFiles, AreNeverOpenedThroughALinkOrWaitedFor) {
  struct Opening {
    std::string name;
    std::function<void(const fs::path&)> open;
    bool of_a_user = false;  ///< links are followed
  };
  const auto with_flags = [](int flags) {
    return [flags](const fs::path& path) { ::close(open_own(path, flags)); };
  };
  const std::vector<Opening> openings = {
      {"append", with_flags(O_WRONLY | O_APPEND | O_CREAT)},
      {"truncate", with_flags(O_WRONLY | O_TRUNC | O_CREAT)},
      {"read", with_flags(O_RDONLY)},
      {"lock", [](const fs::path& path) { static_cast<void>(Lock::try_acquire(path)); }},
      {"holder", [](const fs::path& path) { static_cast<void>(Lock::holder(path)); }},
      {"check", [](const fs::path& path) { require_own_file(path); }},
      {"read what a user named", [](const fs::path& path) { static_cast<void>(read(path)); }, true},
      {"map what a user named", [](const fs::path& path) { const Mapped mapped(path); }, true}};
  for (const Opening& opening : openings) {
    for (const Other& other : other_things()) {
      SCOPED_TRACE(opening.name + ", " + other.name);
      const TempDir folder;
      const fs::path path = folder.path() / "f", target = folder.path() / "target";
      write_atomic(target, "precious");
      other.make(path, target);

      const std::string refused = refusal([&] { opening.open(path); });

      if (opening.of_a_user && other.is_link) {
        EXPECT_EQ(refused, "");
      } else {
        EXPECT_THAT(refused, AllOf(HasSubstr(path.string()), HasSubstr(other.name)));
      }
      EXPECT_EQ(read(target), "precious");
    }
  }
}

TEST(OwnFiles, ReplaceALinkAndNotItsTarget) {
  const std::vector<std::function<void(const fs::path&)>> writers = {
      [](const fs::path& path) { ::close(create_own(path)); },
      [](const fs::path& path) { write_atomic(path, "new"); },
      // The draft of a writer is a name that others can guess.
      [](const fs::path& path) {
        fs::create_symlink("target", path.string() + ".tmp-" + std::to_string(::getpid()));
        write_atomic(path, "new");
      }};
  for (const auto& write : writers) {
    const TempDir folder;
    const fs::path path = folder.path() / "f", target = folder.path() / "target";
    write_atomic(target, "precious");
    fs::create_symlink(target, path);

    write(path);

    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path)));
    EXPECT_EQ(read(target), "precious");
  }
}

TEST(OwnFiles, AFolderWithALinkOrAFifoIsRefused) {
  const TempDir folder;
  const fs::path inside = folder.path() / "f", target = folder.path() / "target";
  write_atomic(target, "precious");
  fs::create_directory(folder.path() / "sub");
  EXPECT_EQ(refusal([&] { require_own_folder(folder.path()); }), "");

  for (const Other& other : other_things()) {
    if (other.name == "Is a directory") continue;
    other.make(inside, target);
    EXPECT_THAT(refusal([&] { require_own_folder(folder.path()); }),
                AllOf(HasSubstr(inside.string()), HasSubstr(other.name)));
    EXPECT_THAT(refusal([&] { require_own_folder(inside); }),
                AllOf(HasSubstr(inside.string()), HasSubstr("a folder is expected")));
    fs::remove(inside);
  }
}

/// Returns the number of a process that has ended.
pid_t dead_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

std::size_t entries_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(Files, AWriteRemovesWhatKilledWritersOfItLeft) {
  const TempDir folder;
  const auto beside = [&](const std::string& name) { return folder.path() / name; };
  const std::string dead = std::to_string(dead_process()), parent = std::to_string(getppid());
  const std::vector<std::string> others = {"f.tmp-" + parent,  // a running process is writing it
                                           "f.tmp-" + dead + "x",  // these are not drafts of f
                                           "f.tmp-",
                                           "g.tmp-" + dead};
  for (const std::string& name : others)
    write_atomic(beside(name), "x");
  write_atomic(beside("f.tmp-" + dead), "x");

  write_atomic(beside("f"), "y");

  EXPECT_FALSE(fs::exists(beside("f.tmp-" + dead)));
  EXPECT_EQ(entries_in(folder.path()), others.size() + 1);
}

TEST(Files, ADraftInUseStaysThoughItsProcessIsNotFromHere) {
  const TempDir folder;
  const fs::path draft = folder.path() / ("f.tmp-" + std::to_string(dead_process()));
  write_atomic(draft, "x");
  const auto writer = Lock::try_acquire(draft);  // as on another host: only the lock is visible

  remove_stale_drafts(folder.path() / "f");

  EXPECT_TRUE(fs::exists(draft));
}

TEST(Files, ErrorsNamePathOperationAndReason) {
  EXPECT_THAT(refusal([] { read("/no/such/file"); }),
              AllOf(HasSubstr("open"), HasSubstr("/no/such/file"), HasSubstr("No such file")));
  EXPECT_THAT(refusal([] { read("/tmp"); }), HasSubstr("directory"));
  EXPECT_THAT(refusal([] { Mapped mapped("/no/such/file"); }), HasSubstr("/no/such/file"));
}

TEST(Files, AreMappedWhole) {
  const TempDir folder;
  write_atomic(folder.path() / "f", "tokens");
  write_atomic(folder.path() / "empty", "");

  const Mapped full(folder.path() / "f"), empty(folder.path() / "empty");

  EXPECT_EQ(full.text(), "tokens");
  EXPECT_TRUE(empty.bytes().empty());
}

TEST(Files, FreeBytesWorkForPathsThatDoNotExistYet) {
  const TempDir folder;

  EXPECT_GT(free_bytes(folder.path() / "not" / "yet"), 0U);
  EXPECT_GT(free_bytes("not/yet"), 0U);
}

TEST(TempDirs, AreRemovedWithWhatIsInThem) {
  fs::path path;
  {
    const TempDir folder;
    path = folder.path();
    write_atomic(path / "f", "x");
  }

  EXPECT_FALSE(fs::exists(path));
}

/// Uses a separate temporary folder, which no other test cleans up.
class OrphanedTempDir : public testing::Test {
 protected:
  OrphanedTempDir() {
    const char* const before = std::getenv("TMPDIR");
    before_ = before == nullptr ? "" : before;
    setenv("TMPDIR", base_.path().c_str(), 1);
    const pid_t child = fork();
    if (child == 0) {
      const TempDir folder;
      write_atomic(folder.path() / "f", "x");
      kill(getpid(), SIGKILL);
    }
    waitpid(child, nullptr, 0);
    orphan_ = fs::directory_iterator(base_.path())->path();
  }
  ~OrphanedTempDir() override {
    before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before_.c_str(), 1);
  }
  TempDir base_;
  std::string before_;
  fs::path orphan_;
};

TEST_F(OrphanedTempDir, IsRemovedWhenTheNextOneIsMade) {
  const fs::path foreign = base_.path() / "tessera-notes";
  fs::create_directory(foreign);
  ASSERT_TRUE(fs::exists(orphan_ / "f"));

  const TempDir next, last;

  EXPECT_FALSE(fs::exists(orphan_));
  EXPECT_TRUE(fs::exists(next.path()));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(OrphanedTempDir, StaysInUseThoughItsProcessIsNotFromHere) {
  const int user = open(orphan_.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(user, LOCK_EX | LOCK_NB), 0);

  const TempDir next;

  EXPECT_TRUE(fs::exists(orphan_));
  close(user);
}

TEST(Locks, AreExclusiveAndNameTheirOwner) {
  const TempDir folder;
  const auto mine = Lock::try_acquire(folder.path() / "lock");
  std::string owner;

  const auto second = Lock::try_acquire(folder.path() / "lock", &owner);

  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(second, nullptr);
  EXPECT_THAT(owner, AllOf(HasSubstr("host "), HasSubstr("process " + std::to_string(getpid()))));
}

TEST(Locks, AreFreeAgainAfterTheirDestructor) {
  const TempDir folder;

  Lock::try_acquire(folder.path() / "lock").reset();

  EXPECT_NE(Lock::try_acquire(folder.path() / "lock"), nullptr);
}

TEST(Locks, AreFreeAgainWhenTheProcessIsKilled) {
  const TempDir folder;
  const fs::path path = folder.path() / "lock";
  const pid_t child = fork();
  if (child == 0) {
    const auto held = Lock::try_acquire(path);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);

  EXPECT_NE(Lock::try_acquire(path), nullptr);
}

TEST(Locks, CanBeLookedAtWithoutTakingThemOrMakingAFile) {
  const TempDir folder;
  const fs::path path = folder.path() / "lock";

  EXPECT_FALSE(Lock::holder(path));
  EXPECT_FALSE(fs::exists(path));
  auto mine = Lock::try_acquire(path);
  EXPECT_THAT(Lock::holder(path).value_or(""), HasSubstr(std::to_string(getpid())));
  mine.reset();
  EXPECT_FALSE(Lock::holder(path));
}

TEST(Locks, SayWhichProcessTheyWaitForAndThatItIsStopped) {
  const TempDir folder;
  const fs::path path = folder.path() / "lock";
  const pid_t child = fork();
  if (child == 0) {
    const auto held = Lock::try_acquire(path);
    raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  std::string told;

  const auto lock = Lock::acquire(
      path,
      [&](const std::string& owner) {
        told = owner;
        kill(child, SIGCONT);
      },
      {},
      0.0);

  EXPECT_THAT(told,
              AllOf(HasSubstr("process " + std::to_string(child)),
                    HasSubstr("a signal has stopped (kill -CONT " + std::to_string(child))));
  waitpid(child, nullptr, 0);
}

TEST(Locks, KnowAnOwnerThatIsGone) {
  const TempDir folder;
  const fs::path path = folder.path() / "lock";
  auto lock = Lock::try_acquire(path);
  std::string owner = *Lock::holder(path);

  EXPECT_FALSE(Lock::owner_is_gone(owner));
  EXPECT_FALSE(Lock::owner_is_gone("host elsewhere.invalid, process 1"));
  owner.replace(owner.rfind(' ') + 1, std::string::npos, std::to_string(dead_process()));
  EXPECT_TRUE(Lock::owner_is_gone(owner));
}

TEST(Locks, AreNeverHeldTwiceThoughTheirFilesAreRemoved) {
  const TempDir folder;
  const fs::path path = folder.path() / "lock", inside = folder.path() / "inside";
  std::vector<pid_t> children;

  for (int c = 0; c < 3; ++c) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int i = 0; i < 200; ++i) {
      std::unique_ptr<Lock> lock;
      while ((lock = Lock::try_acquire(path)) == nullptr) {
      }
      if (!fs::create_directory(inside)) _exit(1);  // another process is inside too
      fs::remove(inside);
      lock->remove_file();
    }
    _exit(0);
  }

  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Locks, LetAWaitingProcessGiveUp) {
  const TempDir folder;
  const auto mine = Lock::try_acquire(folder.path() / "lock");
  int polls = 0;

  EXPECT_THROW(Lock::acquire(folder.path() / "lock",
                             nullptr,
                             [&] {
                               if (++polls == 2) throw std::runtime_error("enough");
                             }),
               std::runtime_error);
}

TEST(Hashes, InPiecesAreTheHashOfTheWhole) {
  const std::string text(100'000, 'x');
  Hasher hasher;

  hasher.update(as_bytes(text.substr(0, 1)));
  hasher.update(as_bytes(text.substr(1, 70'000)));
  hasher.update(as_bytes(text.substr(70'001)));

  EXPECT_EQ(hasher.digest(), xxh3(as_bytes(text)));
}

TEST(Hashes, AreXxh3) {
  // The published hash of empty input with seed 0.
  EXPECT_EQ(hex64(xxh3({})), "2d06800538d394c2");
  EXPECT_EQ(hex64(0xAB), "00000000000000ab");
}

class CacheDir : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"TESSERA_CACHE", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? "" : value);
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

TEST_F(CacheDir, FollowsTheEnvironmentInOrder) {
  const TempDir home;

  EXPECT_EQ(cache_dir(), ".cache");
  setenv("HOME", home.path().c_str(), 1);
  EXPECT_EQ(cache_dir(), home.path() / ".cache" / "tessera");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(cache_dir(), "/x/tessera");
  setenv("TESSERA_CACHE", "/t", 1);
  EXPECT_EQ(cache_dir(), "/t");
  EXPECT_TRUE(fs::is_empty(home.path()));
}

}  // namespace
}  // namespace tessera::files
