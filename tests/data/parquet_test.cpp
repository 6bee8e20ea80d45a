// SPDX-License-Identifier: Apache-2.0
// Parquet files as pyarrow wrote them (columns/make.py), and damaged ones.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path written(const std::string& name) {
  return tessera::test::source_dir() / "tests/data/columns" / name;
}

std::vector<json::Value> read_all(const fs::path& file) {
  std::vector<json::Value> out;
  for_each_record({file.string()}, {}, [&](const Record& record) { out.push_back(record.value); });
  return out;
}

/// Compares numbers in any notation; compares only the members of `a`.
bool same(const json::Value& a, const json::Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.is_object() && b.is_object()) {
    return std::ranges::all_of(a.members(), [&](const auto& member) {
      const json::Value* const other = b.find(member.first);
      return other != nullptr && same(member.second, *other);
    });
  }
  if (a.is_array() && b.is_array()) return std::ranges::equal(a.items(), b.items(), same);
  return a.dump() == b.dump();
}

TEST(Parquet, HasTheRecordsThatPyarrowWrote) {
  const auto expected = read_all(written("records.jsonl"));
  ASSERT_EQ(expected.size(), 40U);
  for (const auto& [name, columns] : {std::pair<const char*, std::size_t>{"snappy.parquet", 14},
                                      {"zstd.parquet", 14},
                                      {"gzip.parquet", 14},
                                      {"lz4.parquet", 14},
                                      {"delta.parquet", 5},
                                      {"bytes.parquet", 1}}) {
    SCOPED_TRACE(name);
    const auto rows = read_all(written(name));
    ASSERT_EQ(rows.size(), expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].members().size(), columns);
      EXPECT_TRUE(same(rows[i], expected[i])) << rows[i].dump() << "\n" << expected[i].dump();
    }
  }
}

/// Reads changed bytes: it must end with records or with one error, whatever they are.
void expect_bounded(const std::string& bytes, const fs::path& path) {
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    std::size_t values = 0;
    for (const json::Value& record : read_all(path))
      values += record.dump().size();
    EXPECT_LT(values, std::size_t{1} << 26);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data) << error.what();
  }
}

TEST(Parquet, RefusesFilesThatEndEarly) {
  const files::TempDir temp;
  const std::string whole = files::read(written("snappy.parquet"));
  for (std::size_t size = 0; size < whole.size(); size += 211) {
    std::ofstream(temp.path() / "cut.parquet", std::ios::binary) << whole.substr(0, size);
    EXPECT_THROW((void)read_all(temp.path() / "cut.parquet"), Error);
    // The footer belongs to a longer file.
    expect_bounded(whole.substr(size), temp.path() / "cut.parquet");
  }
}

TEST(Parquet, SurvivesChangedBytes) {
  const files::TempDir temp;
  for (const char* name : {"snappy.parquet", "zstd.parquet", "delta.parquet", "lz4.parquet"}) {
    const std::string whole = files::read(written(name));
    for (std::uint64_t round = 0; round < 40; ++round) {
      std::string changed = whole;
      const auto words = Philox{round}(1);
      for (std::uint32_t i = 0; i < 1 + words[0] % 4; ++i) {
        const auto at = Philox{round}(2 + i);
        // Half of the changes are in the footer.
        const std::size_t from = at[2] % 2 == 0 ? changed.size() : changed.size() / 2;
        const char values[] = {0, 1, '\x7f', '\xff', static_cast<char>(at[1])};
        changed[changed.size() - 1 - at[0] % from] = values[at[3] % 5];
      }
      expect_bounded(changed, temp.path() / "changed.parquet");
    }
  }
}

TEST(Parquet, IsKnownByItsContent) {
  const files::TempDir temp;
  fs::copy_file(written("snappy.parquet"), temp.path() / "records.bin");
  EXPECT_EQ(read_all(temp.path() / "records.bin").size(), 40U);
}

TEST(Parquet, NamesAFileWithoutAFooter) {
  const files::TempDir temp;
  std::ofstream(temp.path() / "a.parquet") << "PAR1....PAR1";
  try {
    (void)read_all(temp.path() / "a.parquet");
    FAIL() << "no footer was missed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.parquet"));
  }
}

}  // namespace
}  // namespace tessera::data
