// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "support/text_files.h"
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::data {
namespace {

using test::byte;
using test::contains;
using test::error_of;
using test::Folder;
using test::gpt2;
namespace fs = std::filesystem;

/// TESSERA_CACHE points into a folder of the test's own.
class TokenCache : public ::testing::Test {
 protected:
  TokenCache() { setenv("TESSERA_CACHE", (folder_ / "cache").c_str(), 1); }
  ~TokenCache() override { unsetenv("TESSERA_CACHE"); }

  [[nodiscard]] std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / "cache" / "tokens")) {
      if (entry.is_directory()) found.push_back(entry.path());
    }
    return found;
  }
  // Tokenizing reports its progress; reading the cache does not.
  OpenedTokens open(const std::vector<fs::path>& sources,
                    const text::Tokenizer& tokenizer,
                    const TokenizeOptions& how = {}) {
    built_ = false;
    TokenizeOptions options = how;
    options.progress = [this](std::int64_t, std::int64_t) { built_ = true; };
    return open_tokens(sources, tokenizer, options);
  }

  Folder folder_;
  bool built_ = false;
};

TEST_F(TokenCache, BuildsOnceAndRemembersTheCounts) {
  const auto path = folder_.write("a.jsonl", "\n{\"text\":\"one\"}\n{\"text\":\"two\"}\n");

  const auto first = open({path}, *byte());
  EXPECT_TRUE(built_);
  const auto second = open({path}, *byte());

  EXPECT_FALSE(built_);
  EXPECT_EQ(second.fingerprint, first.fingerprint);
  EXPECT_EQ(second.stats.documents, 2);
  EXPECT_EQ(second.stats.tokens, 7);
  EXPECT_EQ(second.stats.skipped_empty, 1);
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(TokenCache, IsKeyedByContentsAndNotByNamesOrTimes) {
  const auto a = folder_.write("a.txt", "some text"), b = folder_.write("b.txt", "some text");
  open({a}, *byte());

  open({b}, *byte());
  EXPECT_FALSE(built_);
  const auto time = fs::last_write_time(a);
  folder_.write("a.txt", "same size");
  fs::last_write_time(a, time);
  open({a}, *byte());

  EXPECT_TRUE(built_);
}

TEST_F(TokenCache, DistinguishesSettingsThatGiveOtherTokens) {
  const auto text = folder_.write("a.txt", R"({"text":"x","body":"y"})"),
             lines = folder_.write("a.jsonl", R"({"text":"x","body":"y"})");
  std::set<std::string> fingerprints;

  for (const auto& opened : {open({text}, *byte()),
                             open({lines}, *byte()),
                             open({lines}, *gpt2()),
                             open({lines}, *byte(), {.text_field = "body"}),
                             open({lines}, *byte(), {.invalid_utf8 = "replace"}),
                             open({lines, text}, *byte()),
                             open({text, lines}, *byte())}) {
    fingerprints.insert(opened.fingerprint);
  }

  EXPECT_EQ(fingerprints.size(), 7U);
}

TEST_F(TokenCache, ReplacesADamagedEntry) {
  const auto path = folder_.write("a.txt", "some text");
  for (const char* name : {"tokens.bin", "tokens.idx", "about.json"}) {
    open({path}, *byte());
    const fs::path file = entries().front() / name;
    fs::resize_file(file, fs::file_size(file) - 2);

    const auto opened = open({path}, *byte());

    EXPECT_TRUE(built_) << name;
    EXPECT_EQ(opened.file->tokens(), 9);
  }
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(TokenCache, ReplacesAnEntryThatIsALinkOrHasOneOrAFifo) {
  const auto path = folder_.write("a.txt", "some text");
  const auto target = folder_.write("target", "precious");
  for (const std::string name : {"tokens.bin", "tokens.idx", "about.json", ""}) {
    for (const bool link : {true, false}) {
      SCOPED_TRACE(name + (link ? ", a link" : ", a FIFO"));
      open({path}, *byte());
      const fs::path entry = entries().front();
      const fs::path moved = folder_ / "moved";
      const fs::path place = name.empty() ? entry : entry / name;
      fs::remove_all(moved);
      fs::rename(place, moved);
      if (!link) {
        ASSERT_EQ(::mkfifo(place.c_str(), 0600), 0);
      } else {
        fs::create_symlink(name.empty() ? moved : target, place);
      }

      const auto opened = open({path}, *byte());

      EXPECT_TRUE(built_);
      EXPECT_EQ(opened.file->tokens(), 9);
      EXPECT_TRUE(fs::exists(moved)) << "what a link names stays";
      EXPECT_EQ(files::read(target), "precious");
    }
  }
}

TEST_F(TokenCache, ALinkInThePlaceOfItsLockIsRefused) {
  const auto path = folder_.write("a.txt", "some text");
  const auto target = folder_.write("target", "precious");
  open({path}, *byte());
  const fs::path entry = entries().front();
  fs::remove_all(entry);
  fs::create_symlink(target, entry.string() + ".lock");

  EXPECT_TRUE(
      contains(error_of([&] { open({path}, *byte()); }).what(), ".lock is a symbolic link"));
  EXPECT_EQ(files::read(target), "precious");
}

// The bytes of `file` with one bit inverted.
void flip(const fs::path& file, std::uintmax_t byte, int bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(byte));
  const int was = stream.get();
  stream.seekp(static_cast<std::streamoff>(byte));
  stream.put(static_cast<char>(was ^ (1 << bit)));
}

std::vector<std::int64_t> all_tokens(const TokenFile& file) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), ids.data());
  return ids;
}

// `give` gives the tokens that were made, or refuses with the file's name and the way to rebuild.
void expect_right_or_refused(const fs::path& entry,
                             const std::vector<std::int64_t>& right,
                             const std::function<std::vector<std::int64_t>()>& give) {
  try {
    EXPECT_EQ(give(), right);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_TRUE(contains(error.what(), (entry / "tokens.bin").string())) << error.what();
    EXPECT_TRUE(contains(error.fix(), "remove the folder " + entry.string())) << error.fix();
  }
}

TEST_F(TokenCache, NeverGivesOtherTokensAfterABitWasFlipped) {
  const auto path = folder_.write("a.txt", "some text of a few words");
  const std::vector<std::int64_t> right = all_tokens(*open({path}, *byte()).file);
  const fs::path entry = entries().front(), kept = folder_ / "kept";
  fs::copy(entry, kept);
  for (const auto& [name, every] :
       {std::pair{"tokens.bin", 1U}, {"tokens.idx", 9U}, {"about.json", 31U}}) {
    for (std::uintmax_t at = 0; at < fs::file_size(kept / name); at += every) {
      SCOPED_TRACE(name + (" byte " + std::to_string(at)));
      fs::copy(kept, entry, fs::copy_options::overwrite_existing);
      flip(entry / name, at, static_cast<int>(at % 8));

      expect_right_or_refused(
          entry, right, [&] { return all_tokens(*open({path}, *byte()).file); });

      EXPECT_EQ(built_, name != std::string("tokens.bin"));
    }
  }
}

TEST_F(TokenCache, RefusesTokensThatWereReplaced) {
  const auto path = folder_.write("a.txt", "some text of a few words");
  open({path}, *byte());
  const fs::path bin = entries().front() / "tokens.bin";
  const std::string other(fs::file_size(bin), '\1');
  std::ofstream(bin, std::ios::binary) << other;

  const OpenedTokens opened = open({path}, *byte());
  const Error error = error_of([&] { all_tokens(*opened.file); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), bin.string() + " is damaged or was replaced")) << error.what();
  fs::remove_all(entries().front());
  EXPECT_EQ(all_tokens(*open({path}, *byte()).file).size(), 24U);
}

TEST_F(TokenCache, ReplacesAnEntryWithoutChecksums) {
  const auto path = folder_.write("a.txt", "some text");
  open({path}, *byte());
  std::ofstream(entries().front() / "about.json")
      << R"({"bytes":9,"documents":1,"replaced_utf8":0,"skipped_empty":0,"tokens":9})";

  open({path}, *byte());

  EXPECT_TRUE(built_);
}

TEST(VerifiedBytes, ChecksTheBlocksThatAreReadAndNoOthers) {
  constexpr std::size_t kBlock = BlockSums::kBlockBytes;
  std::vector<std::byte> bytes(2 * kBlock + 10, std::byte{7});
  const BlockSums sums = block_sums(bytes);
  bytes[kBlock] = std::byte{8};
  const VerifiedBytes verified(bytes, sums, "x.bin", "make it anew");

  EXPECT_EQ(sums.blocks.size(), 3U);
  verified.verify(0, kBlock);
  verified.verify(2 * kBlock, 10);
  verified.verify(kBlock, 0);
  EXPECT_THROW(verified.verify(kBlock - 1, 2), Error);
  EXPECT_THROW(verified.verify(2 * kBlock - 1, 1), Error);
  EXPECT_THROW(verified.verify(2 * kBlock - 1, 2), Error);
}

TEST_F(TokenCache, RemovesWhatAKilledBuilderLeft) {
  const auto path = folder_.write("a.txt", "some text");
  open({path}, *byte());
  const fs::path entry = entries().front();
  fs::rename(entry, entry.string() + ".tmp-123");

  open({path}, *byte());

  EXPECT_TRUE(built_);
  EXPECT_EQ(entries(), std::vector<fs::path>{entry});
}

TEST_F(TokenCache, LeavesNoEntryWhenTokenizingFails) {
  const auto path = folder_.write("a.txt", "bad \xFF");

  EXPECT_EQ(error_of([&] { open({path}, *byte()); }).kind(), Error::Kind::Data);

  EXPECT_TRUE(entries().empty());
}

TEST_F(TokenCache, KeepsNothingOfAFileThatIsReplacedOnceItWasHashed) {
  const auto path = folder_.write("a.txt", "some text");
  TokenizeOptions options;
  // First asked when the file is open for hashing.
  options.poll = [&, replaced = false]() mutable {
    if (!std::exchange(replaced, true)) folder_.write("a.txt", "other text");
  };

  const Error error = error_of([&] { open({path}, *byte(), options); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "a.txt was changed or replaced"));
  EXPECT_TRUE(built_);
  EXPECT_TRUE(entries().empty());
  folder_.write("a.txt", "some text");
  EXPECT_EQ(open({path}, *byte()).file->tokens(), 9);
}

TEST_F(TokenCache, KeepsNothingOfDataThatChangesWhileItIsTokenized) {
  const auto path = folder_.write("in/a.txt", "some text");
  const auto once = [&](const std::function<void()>& change) {
    // The clock of a file system is coarse: a change must not fall into the tick of the writing.
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
    TokenizeOptions options;
    options.progress = [&](std::int64_t, std::int64_t) { change(); };
    return error_of([&] { open_tokens({folder_ / "in"}, *byte(), options); });
  };

  const Error written = once(
      [&] { std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << "same size"; });
  const Error added = once([&] { folder_.write("in/b.txt", "more"); });
  const Error removed = once([&] { fs::remove(path); });

  EXPECT_TRUE(contains(written.what(), "a.txt was changed or replaced"));
  EXPECT_TRUE(contains(added.what(), "b.txt was changed or replaced"));
  EXPECT_TRUE(contains(removed.what(), "a.txt was changed or replaced"));
  EXPECT_TRUE(entries().empty());
}

TEST_F(TokenCache, LosesWhatWasUnusedForLongestOnceItIsTooLarge) {
  const auto now = fs::file_time_type::clock::now();
  std::vector<fs::path> made;
  for (const int days : {40, 50, 60, 1}) {
    open({folder_.write("a.txt", std::string(1000, static_cast<char>('a' + days % 26)))}, *byte());
    for (const fs::path& entry : entries()) {
      if (std::find(made.begin(), made.end(), entry) != made.end()) continue;
      made.push_back(entry);
      fs::last_write_time(entry / "about.json", now - std::chrono::hours(24 * days));
    }
  }
  ASSERT_EQ(made.size(), 4U);
  const auto left = [&] { return entries().size(); };
  std::uintmax_t each = 0;
  for (const auto& file : fs::directory_iterator(made[0]))
    each += file.file_size();
  const fs::path tokens = folder_ / "cache" / "tokens";

  evict(tokens, {.bytes = 4 * each + 100});
  EXPECT_EQ(left(), 4U);
  evict(tokens, {.bytes = 3 * each + 100});
  EXPECT_EQ(left(), 3U);
  EXPECT_FALSE(fs::exists(made[2]));  // is 60 days old
  {
    const auto building = files::Lock::try_acquire(made[1].string() + ".lock");
    evict(tokens, {.bytes = 2 * each + 100});
    EXPECT_TRUE(fs::exists(made[1]));
    EXPECT_FALSE(fs::exists(made[0]));
  }
  evict(tokens, {.bytes = 0});

  EXPECT_EQ(entries(), std::vector<fs::path>{made[3]});  // was used yesterday
  EXPECT_TRUE(fs::exists(made[3] / "tokens.bin"));
}

TEST_F(TokenCache, AnEntryIsUsedWhenItIsRead) {
  const auto path = folder_.write("a.txt", "some text");
  const auto first = open({path}, *byte());
  const fs::path about = entries().front() / "about.json";
  fs::last_write_time(about, fs::file_time_type::clock::now() - std::chrono::hours(24 * 90));

  const auto again = open({path}, *byte());
  evict(folder_ / "cache" / "tokens", {.bytes = 0});

  EXPECT_TRUE(fs::exists(about));
}

TEST_F(TokenCache, OpenDataStaysReadableWhenItsEntryIsRemoved) {
  const auto opened = open({folder_.write("a.txt", "some text")}, *byte());

  evict(folder_ / "cache" / "tokens", {.bytes = 0, .unused = std::chrono::hours(0)});
  std::vector<std::int64_t> ids(9);
  opened.file->read(0, 9, ids.data());

  EXPECT_TRUE(entries().empty());
  EXPECT_EQ(ids.back(), 't');
}

TEST_F(TokenCache, IsBuiltByOneOfManyProcesses) {
  const auto path = folder_.write("a.txt", std::string(200'000, 'x'));
  std::vector<pid_t> children;

  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        const bool good = open({path}, *byte()).file->tokens() == 200'000;
        _exit(!good ? 9 : built_ ? 1 : 0);
      } catch (...) {
        _exit(9);
      }
    }
    children.push_back(child);
  }
  int builders = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    builders += WEXITSTATUS(status);
  }

  EXPECT_EQ(builders, 1);
}

TEST_F(TokenCache, GivesWayToTheWorkingDirectoryWhereItCannotBeWritten) {
  const auto path = folder_.write("a.txt", "some text");
  const auto file = folder_.write("plain", "a file cannot be a folder");
  setenv("TESSERA_CACHE", (file / "cache").c_str(), 1);
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "work");
  fs::current_path(folder_ / "work");

  const auto opened = open({path}, *byte());
  fs::current_path(before);

  EXPECT_EQ(opened.file->tokens(), 9);
  EXPECT_TRUE(fs::exists(folder_ / "work" / ".cache" / "tokens"));
}

TEST_F(TokenCache, OpensPairsInPlace) {
  const auto path = folder_.write("a.txt", "some text");
  tokenize({path}, *byte(), folder_ / "pair", {});

  const auto opened = open({folder_ / "pair"}, *byte());

  EXPECT_EQ(opened.file->tokens(), 9);
  EXPECT_FALSE(opened.from_text);
  EXPECT_FALSE(fs::exists(folder_ / "cache"));
  EXPECT_EQ(open({folder_ / "pair.bin"}, *byte()).fingerprint, opened.fingerprint);
}

TEST_F(TokenCache, ChecksTheIdsOfAPair) {
  const auto path = folder_.write("a.txt", "some text");
  tokenize({path}, *gpt2(), folder_ / "pair", {});

  EXPECT_EQ(error_of([&] { tokens_of({folder_ / "pair"}, *byte(), {}); }).kind(),
            Error::Kind::Data);
  EXPECT_EQ(tokens_of({folder_ / "pair"}, *gpt2(), {})->tokens(), 2);
}

TEST_F(TokenCache, RefusesAPairAmongOtherData) {
  const auto path = folder_.write("a.txt", "some text");
  tokenize({path}, *byte(), folder_ / "pair", {});

  EXPECT_EQ(error_of([&] {
              open({path, folder_ / "pair.bin"}, *byte());
            }).kind(),
            Error::Kind::Data);
}

}  // namespace
}  // namespace tessera::data
