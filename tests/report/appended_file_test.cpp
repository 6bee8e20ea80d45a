// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/appended_file.h"

#include <string>

#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::report {
namespace {

TEST(AppendedFile, KeepsSmallPiecesAndTheirOrder) {
  const files::TempDir dir;
  const auto path = dir.path() / "sub" / "a.csv";
  {
    AppendedFile file(path);
    file.append_soon("1\n");  // the first piece is written at once
    EXPECT_EQ(files::read(path), "1\n");
    file.append_soon("2\n");
    EXPECT_EQ(files::read(path), "1\n");
    file.append("3\n");
    EXPECT_EQ(files::read(path), "1\n2\n3\n");
    file.append_soon(std::string(70'000, 'x'));  // more than is kept
    EXPECT_EQ(files::read(path).size(), 70'006U);
    file.append_soon("4\n");
    file.flush();
    EXPECT_EQ(files::read(path).size(), 70'008U);
    file.append_soon("5\n");
  }
  EXPECT_EQ(files::read(path).size(), 70'010U);  // the end writes what is kept
}

}  // namespace
}  // namespace tessera::report
