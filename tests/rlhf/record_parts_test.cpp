// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/record_parts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::rlhf {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using Lines = std::vector<std::string>;

class RlhfParts : public ::testing::Test {
 protected:
  /// Writes two files of records with the numbers from 0 on.
  RlhfParts() {
    for (int i = 0; i < kRecords; ++i)
      std::ofstream(i < 30 ? first_ : second_, std::ios::app) << line(i) << "\n";
  }
  static std::string line(int number) {
    return R"({"prompt":"q)" + std::to_string(number) + R"(","chosen":"a"})";
  }
  std::vector<Lines> divided(std::uint64_t seed, const std::string& folder = "parts") {
    std::vector<Lines> out;
    for (const fs::path& path :
         write_parts({first_.string(), second_.string()}, {2, 4, 4}, seed, dir_.path() / folder)) {
      std::ifstream in(path);
      out.emplace_back();
      for (std::string text; std::getline(in, text);)
        out.back().push_back(text);
    }
    return out;
  }

  static constexpr int kRecords = 50;
  files::TempDir dir_;
  fs::path first_ = dir_.path() / "a.jsonl", second_ = dir_.path() / "b.jsonl";
};

TEST_F(RlhfParts, HaveEachRecordOnceAndTheirShares) {
  const std::vector<Lines> parts = divided(7);

  ASSERT_EQ(parts.size(), 3U);
  EXPECT_THAT((std::vector<std::size_t>{parts[0].size(), parts[1].size(), parts[2].size()}),
              ElementsAre(10, 20, 20));
  std::multiset<std::string> all, expected;
  for (const Lines& part : parts)
    all.insert(part.begin(), part.end());
  for (int i = 0; i < kRecords; ++i)
    expected.insert(line(i));
  EXPECT_EQ(all, expected);
  // Both files are in every part.
  for (const Lines& part : parts)
    EXPECT_TRUE(part.front() < line(30) || part.front().size() < line(30).size()) << part.front();
}

TEST_F(RlhfParts, DependOnTheSeedAlone) {
  EXPECT_EQ(divided(7, "one"), divided(7, "two"));
  EXPECT_NE(divided(7, "one"), divided(8, "three"));
}

TEST_F(RlhfParts, AreWrittenAgainOnlyForOtherRecords) {
  const std::vector<Lines> parts = divided(7);
  const fs::path file = dir_.path() / "parts" / "part-1.jsonl";
  std::ofstream(file) << "kept\n";
  EXPECT_THAT(divided(7).front(), ElementsAre("kept"));

  EXPECT_NE(divided(8).front(), parts.front());
  EXPECT_EQ(divided(7), parts);
  std::ofstream(second_, std::ios::app) << line(99) << "\n";
  EXPECT_NE(divided(7), parts);
}

TEST_F(RlhfParts, RefuseAPartWithoutARecord) {
  std::ofstream(first_) << line(1) << "\n";
  try {
    (void)write_parts({first_.string()}, {1, 1}, 0, dir_.path() / "none");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_THAT(error.what(), testing::HasSubstr("of 1 records has none"));
  }
}

}  // namespace
}  // namespace tessera::rlhf
