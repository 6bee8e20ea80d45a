// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/folders.h"

#include "checkpoint/support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint::test {
namespace {

const std::vector<Spec> kTiny = {{"w", DType::F32, {64}}};

std::vector<std::string> names(const fs::path& root) {
  std::vector<std::string> out;
  for (const auto& folder : list(root))
    out.push_back(folder.filename().string());
  return out;
}

TEST(Folders, AreListedByStepAndLatestIsNotConsulted) {
  const files::TempDir dir;
  for (const int step : {5, 100'000'000, 20})
    save_model(dir.path(), step, kTiny);
  spill(dir.path() / "latest", "step-00000005\n");

  EXPECT_EQ(names(dir.path()),
            (std::vector<std::string>{"step-00000005", "step-00000020", "step-100000000"}));
  EXPECT_EQ(newest(dir.path())->filename(), "step-100000000");
}

TEST(Folders, AreNotLookedForInAFile) {
  const files::TempDir dir;
  spill(dir.path() / "model.safetensors", "weights");

  EXPECT_TRUE(found_at(dir.path() / "model.safetensors").empty());
  EXPECT_TRUE(found_at(dir.path() / "absent").empty());
  EXPECT_FALSE(is_ours(dir.path() / "model.safetensors"));
}

TEST(Folders, LatestNamesTheLastOneSaved) {
  const files::TempDir dir;
  for (const int step : {5, 20})
    save_model(dir.path(), step, kTiny);

  EXPECT_EQ(slurp(dir.path() / "latest"), "step-00000020\n");
}

TEST(Folders, WhatIsNotCompleteIsNotListed) {
  const files::TempDir dir;
  save_model(dir.path(), 7, kTiny);
  fs::create_directories(dir.path() / "step-00000008");
  fs::create_directories(dir.path() / "step-x");
  fs::create_directories(dir.path() / ".tmp-step-00000009-1");
  spill(dir.path() / ".tmp-step-00000009-1" / "manifest.json", "{}");

  EXPECT_EQ(names(dir.path()), std::vector<std::string>{"step-00000007"});
}

TEST(Folders, NothingThereIsNoError) {
  const files::TempDir dir;

  EXPECT_TRUE(list(dir.path() / "absent").empty());
  EXPECT_FALSE(newest(dir.path()).has_value());
}

/// A process that was killed between writing `latest` and renaming it.
TEST(Folders, PruneRemovesWhatAProcessThatEndedLeft) {
  const files::TempDir dir;
  save_model(dir.path(), 1, kTiny);
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  ::waitpid(ended, nullptr, 0);
  const fs::path left = dir.path() / fmt::format("latest.tmp-{}", ended),
                 other = dir.path() / fmt::format("latest.tmp-{}", ::getppid());
  spill(left, "step");
  spill(other, "step");

  prune(real_storage(), dir.path(), 3);

  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(dir.path() / "latest"));
}

TEST(Folders, PruneKeepsTheNewest) {
  const files::TempDir dir;
  for (int step = 1; step <= 5; ++step)
    save_model(dir.path(), step, kTiny);

  prune(dir.path(), 2);

  EXPECT_EQ(names(dir.path()), (std::vector<std::string>{"step-00000004", "step-00000005"}));
}

TEST(Folders, PruneSparesOneMore) {
  const files::TempDir dir;
  for (int step = 1; step <= 5; ++step)
    save_model(dir.path(), step, kTiny);

  prune(dir.path(), 2, 3);
  EXPECT_EQ(names(dir.path()),
            (std::vector<std::string>{"step-00000003", "step-00000004", "step-00000005"}));

  prune(dir.path(), 2, 5);
  EXPECT_EQ(names(dir.path()), (std::vector<std::string>{"step-00000004", "step-00000005"}));
}

TEST(Folders, PruneAlwaysKeepsOne) {
  const files::TempDir dir;
  save_model(dir.path(), 1, kTiny);

  for (const int keep : {0, -1})
    EXPECT_EQ(error_of([&] { prune(dir.path(), keep); }).kind(), Error::Kind::Config);

  EXPECT_EQ(names(dir.path()), std::vector<std::string>{"step-00000001"});
}

TEST(Folders, OrphansOfDeadProcessesGoAndThoseOfLivingOnesStay) {
  const files::TempDir dir;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  fs::create_directories(dir.path() / temp_name(3, dead));
  fs::create_directories(dir.path() / temp_name(3, ::getpid()));
  fs::create_directories(dir.path() / temp_name(3, 1));

  prune(dir.path(), 1);

  EXPECT_FALSE(fs::exists(dir.path() / temp_name(3, dead)));
  EXPECT_FALSE(fs::exists(dir.path() / temp_name(3, ::getpid())));
  EXPECT_TRUE(fs::exists(dir.path() / temp_name(3, 1)));
}

TEST(Folders, ALoneShardReadsAsAnOrdinarySafetensorsFile) {
  const files::TempDir dir;
  const Spec spec{"w", DType::F32, {4, 4}};

  const SafetensorsFile file(save_model(dir.path(), 1, {spec}) / "rank-00000.safetensors");

  ASSERT_EQ(file.entries().size(), 1U);
  EXPECT_EQ(file.entries()[0].name, "w");
  EXPECT_EQ(file.entries()[0].shape, spec.shape);
  EXPECT_TRUE(std::ranges::equal(file.bytes(file.entries()[0]), values(spec)));
}

/// Larger than one write, in parts that do not end at disk block boundaries; also on file systems
/// in memory.
TEST(LargeFiles, HoldWhatWasAppended) {
  const files::TempDir dir;
  std::vector<std::byte> bytes((std::size_t{21} << 20) + 777);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const fs::path in_memory = fmt::format("/dev/shm/tessera-large-{}", ::getpid());
  std::vector<fs::path> paths = {dir.path() / "large"};
  if (fs::exists("/dev/shm")) paths.push_back(in_memory);
  for (const fs::path& path : paths) {
    auto output = real_storage().create(path, bytes.size());
    std::span<const std::byte> left = bytes;
    for (std::size_t part = 1; !left.empty(); part = part * 3 + 5) {
      const std::size_t now = std::min(part % (std::size_t{7} << 20), left.size());
      output->append(left.first(now));
      left = left.subspan(now);
    }
    output.reset();  // sync() protects against power loss; the bytes are there without it

    const files::Mapped written(path);
    EXPECT_TRUE(std::ranges::equal(written.bytes(), bytes)) << path;
  }
  fs::remove(in_memory);
}

/// Returns the error of a save by two ranks in a child process that may not write files larger than
/// 4 KiB.
TEST(FullDisk, IsSaidWithPathAndBytesAndThePreviousCheckpointStays) {
  const files::TempDir dir;
  save_model(dir.path(), 1, kTiny);
  const std::vector<Spec> large = {{"w", DType::F32, {64, 1024}}};
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Error error =
        error_of([&] { save_model(real_storage(), dir.path(), 2, large, ranges, 2); });
    const std::string what = error.what();
    const bool said = error.kind() == Error::Kind::Io &&
                      what.find("rank-00000.safetensors") != std::string::npos &&
                      what.find("larger than") != std::string::npos &&
                      what.find("needed") != std::string::npos;
    spill(dir.path() / "said", what);
    ::_exit(said ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);

  EXPECT_EQ(status, 0) << slurp(dir.path() / "said");
  EXPECT_TRUE(loads_exactly(*newest(dir.path()), kTiny));
  EXPECT_EQ(names(dir.path()), std::vector<std::string>{"step-00000001"});
}

TEST(FullDisk, AFolderThatCannotBeMadeIsNamed) {
  const files::TempDir dir;
  spill(dir.path() / "file", "x");

  const Error error = error_of([&] {
    save_model(real_storage(), dir.path() / "file" / "checkpoints", 1, kTiny, ranges, 1);
  });

  EXPECT_EQ(error.kind(), Error::Kind::Io);
  EXPECT_NE(std::string(error.what()).find("file"), std::string::npos) << error.text();
}

}  // namespace
}  // namespace tessera::checkpoint::test
