// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/writable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::files {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(WritableFolders, AreThoseInWhichFilesCanBeCreated) {
  const TempDir folder;
  const fs::path file = folder.path() / "file";
  write_atomic(file, "");

  EXPECT_EQ(obstacle_to_files_in(folder.path()), std::nullopt);
  EXPECT_THAT(obstacle_to_files_in(file), Optional(HasSubstr("not a folder")));
  EXPECT_THAT(obstacle_to_files_in(folder.path() / "missing"), Optional(HasSubstr("not a folder")));
}

// The superuser has permission to write into /proc, and the kernel creates nothing there.
TEST(WritableFolders, AreNotThoseOfTheKernel) {
  for (const char* const place : {"/proc", "/sys"}) {
    if (!fs::is_directory(place)) continue;
    EXPECT_NE(obstacle_to_files_in(place), std::nullopt) << place;
  }
}

TEST(WritableFolders, BeginAtTheNearestThatExists) {
  const TempDir folder;
  fs::create_symlink("nowhere", folder.path() / "link");

  EXPECT_EQ(nearest_existing(folder.path()), folder.path());
  EXPECT_EQ(nearest_existing(folder.path() / "a" / "b"), folder.path());
  EXPECT_EQ(nearest_existing(folder.path() / "link" / "b"), folder.path() / "link");
  EXPECT_EQ(nearest_existing("/no-such-folder/of/anybody"), "/");
}

}  // namespace
}  // namespace tessera::files
