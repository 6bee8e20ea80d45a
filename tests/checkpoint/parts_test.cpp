// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose shards are on several disks.
#include "tessera/checkpoint/parts.h"

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/streamed_save.h"

namespace tessera::checkpoint::test {
namespace {

/// A checkpoint of three ranks; the shards of ranks 1 and 2 are moved to other folders.
class Parts : public ::testing::Test {
 protected:
  Parts() : folder(save_model(dir.path() / "root", 2, small_model(), rows_then_ranges, 3)) {
    for (const int rank : {1, 2}) {
      const fs::path part = dir.path() / ("disk" + std::to_string(rank));
      const std::string name = "rank-0000" + std::to_string(rank) + ".safetensors";
      fs::create_directory(part);
      fs::rename(folder / name, part / name);
      parts.push_back(part);
    }
  }
  files::TempDir dir;
  fs::path folder;
  std::vector<fs::path> parts;
};

TEST_F(Parts, AreOneCheckpoint) {
  const auto whole = save_model(dir.path() / "other", 2, small_model(), rows_then_ranges, 3);
  const auto joined = std::make_shared<const Checkpoint>(open_parts(folder, parts));

  fs::create_directory(dir.path() / "merged");
  write_checkpoint(dir.path() / "merged", joined->meta(), tensors_of(joined));

  EXPECT_EQ(joined->digest(), Checkpoint(whole).digest());
  EXPECT_TRUE(loads_exactly(dir.path() / "merged"));
}

TEST_F(Parts, OfWhichOneIsMissingAreRefused) {
  const Error error = error_of([&] { open_parts(folder, {parts[0]}); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(error.what()).find("rank-00002.safetensors"), std::string::npos)
      << error.text();
}

TEST_F(Parts, OfAnotherSaveAreRefused) {
  const auto later = save_model(dir.path() / "later", 3, small_model(), rows_then_ranges, 3);
  const auto same_step =
      save_model(dir.path() / "seed", 2, small_model(), rows_then_ranges, 3, /*seed=*/1);
  fs::copy_file(same_step / "rank-00002.safetensors", dir.path() / "stray");
  fs::rename(dir.path() / "stray", parts[1] / "rank-00002.safetensors");

  const Error manifest = error_of([&] { open_parts(folder, {later}); });
  const Error shard = error_of([&] { (void)open_parts(folder, parts).digest(); });

  EXPECT_NE(std::string(manifest.what()).find("different checkpoints"), std::string::npos)
      << manifest.text();
  EXPECT_NE(std::string(shard.what()).find("disk2/rank-00002.safetensors"), std::string::npos)
      << shard.text();
}

TEST_F(Parts, ThatAreLinksAreRefused) {
  fs::rename(parts[1] / "rank-00002.safetensors", dir.path() / "elsewhere");
  fs::create_symlink(dir.path() / "elsewhere", parts[1] / "rank-00002.safetensors");

  EXPECT_EQ(error_of([&] { (void)open_parts(folder, parts).digest(); }).kind(),
            Error::Kind::Format);
}

}  // namespace
}  // namespace tessera::checkpoint::test
