// SPDX-License-Identifier: Apache-2.0
// Arrow files and folders of `datasets`, as pyarrow wrote them (columns/make.py), and damaged ones.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/data/record_formats/blocks.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

fs::path columns(const std::string& name) {
  return tessera::test::source_dir() / "tests/data/columns" / name;
}

std::vector<json::Value> read(const std::vector<std::string>& files,
                              const RecordOptions& options = {}) {
  std::vector<json::Value> out;
  for_each_record(files, options, [&](const Record& record) { out.push_back(record.value); });
  return out;
}

/// Numbers alike, whatever they are written as.
bool equal(const json::Value& a, const json::Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.is_object() && b.is_object()) {
    if (a.members().size() != b.members().size()) return false;
    return std::ranges::all_of(a.members(), [&](const auto& member) {
      const json::Value* const other = b.find(member.first);
      return other != nullptr && equal(member.second, *other);
    });
  }
  if (a.is_array() && b.is_array()) return std::ranges::equal(a.items(), b.items(), equal);
  return a.dump() == b.dump();
}

void expect_equal(const std::vector<json::Value>& actual,
                  const std::vector<json::Value>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(equal(actual[i], expected[i])) << actual[i].dump() << "\n" << expected[i].dump();
}

std::string error_of(const std::vector<std::string>& files) {
  try {
    (void)read(files);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data) << error.what();
    return error.what();
  }
  return "";
}

TEST(Arrow, HasTheRecordsThatPyarrowWrote) {
  const auto expected = read({columns("records.jsonl").string()});
  EXPECT_EQ(expected.size(), 40U);
  for (const char* name : {"stream.arrow", "plain.feather", "lz4.feather", "zstd.feather"}) {
    SCOPED_TRACE(name);
    expect_equal(read({columns(name).string()}), expected);
  }
}

TEST(Arrow, LeavesColumnsOfBytesOut) {
  expect_equal(read({columns("bytes.arrow").string()}), read({columns("records.jsonl").string()}));
}

TEST(Arrow, IsKnownByItsContent) {
  const files::TempDir temp;
  for (const char* name : {"stream.arrow", "lz4.feather"}) {
    const fs::path copy = temp.path() / "records.bin";
    fs::copy_file(columns(name), copy, fs::copy_options::overwrite_existing);
    EXPECT_EQ(read({copy.string()}).size(), 40U);
  }
}

TEST(DatasetsFolder, StandsForTheFilesOfItsSplits) {
  const std::string folder = columns("saved").string();
  const auto texts = [&](const std::string& name, Split split) {
    std::vector<std::string> out;
    for (const json::Value& record : read(record_files({name}, split)))
      out.push_back(record.find("text")->as_string());
    return out;
  };

  EXPECT_THAT(texts(folder, Split::Train),
              ElementsAre("train 0", "train 1", "train 2", "train 3", "train 4"));
  EXPECT_THAT(texts(folder, Split::Test), ElementsAre("test 0", "test 1"));
  EXPECT_THAT(texts(folder + "/test", Split::Train), ElementsAre("test 0", "test 1"))
      << "one of its folders by itself";
  try {
    (void)record_files({folder}, Split::Validation);
    FAIL() << "a split that is not there was found";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("train, test"));
  }
}

TEST(DatasetsFolder, RefusesWhatItsDescriptionDoesNotHold) {
  const files::TempDir temp;
  const auto refused = [&](const std::string& state) {
    std::ofstream(temp.path() / "dataset_info.json") << "{}";
    std::ofstream(temp.path() / "state.json") << state;
    try {
      (void)record_files({temp.path().string()}, Split::Train);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused("{}"), HasSubstr("_data_files"));
  EXPECT_THAT(refused(R"({"_data_files": [{"filename": "../a.arrow"}]})"), HasSubstr("plain name"));
  EXPECT_THAT(refused(R"({"_data_files": [{"filename": "a.arrow"}]})"), HasSubstr("no a.arrow"));
  EXPECT_THAT(refused(R"({"_data_files": [], "_indices_data_files": [{"filename": "i"}]})"),
              HasSubstr("index"));
}

/// Reads changed bytes: it must end with records or with one error, whatever they are.
void expect_bounded(const std::string& bytes, const fs::path& path) {
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    std::size_t values = 0;
    for (const json::Value& record : read({path.string()}))
      values += record.dump().size();
    EXPECT_LT(values, std::size_t{1} << 26);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data) << error.what();
  }
}

TEST(Arrow, RefusesFilesThatEndEarly) {
  const files::TempDir temp;
  for (const char* name : {"stream.arrow", "lz4.feather", "zstd.feather"}) {
    const std::string whole = files::read(columns(name));
    for (std::size_t size = 0; size < whole.size(); size += 97)
      expect_bounded(whole.substr(0, size), temp.path() / "cut.arrow");
  }
  std::ofstream(temp.path() / "empty.arrow");
  EXPECT_THAT(error_of({(temp.path() / "empty.arrow").string()}), HasSubstr("no description"));
}

TEST(Arrow, SurvivesChangedBytes) {
  const files::TempDir temp;
  for (const char* name : {"stream.arrow", "lz4.feather", "zstd.feather"}) {
    const std::string whole = files::read(columns(name));
    for (std::uint64_t round = 0; round < 60; ++round) {
      std::string changed = whole;
      const auto words = Philox{round}(1);
      for (std::uint32_t i = 0; i < 1 + words[0] % 4; ++i) {
        const auto at = Philox{round}(2 + i);
        // Sizes and offsets stand in front.
        const std::size_t from =
            at[2] % 2 == 0 ? changed.size() : std::min<std::size_t>(changed.size(), 4000);
        const char values[] = {0, 1, '\x7f', '\xff', static_cast<char>(at[1])};
        changed[at[0] % from] = values[at[3] % 5];
      }
      expect_bounded(changed, temp.path() / "changed.arrow");
    }
  }
}

TEST(Blocks, AreRefusedForAnotherSize) {
  // "abcabcabcabc" in each format.
  const std::string snappy(
      "\x0c\x08"
      "abc"
      "\x22\x03\x00",
      8);
  EXPECT_EQ(snappy_block(snappy, 12, "here"), "abcabcabcabc");
  EXPECT_THROW((void)snappy_block(snappy, 11, "here"), Error);
  EXPECT_THROW((void)snappy_block(snappy.substr(0, 6), 12, "here"), Error);
  const std::string lz4(
      "\x35"
      "abc"
      "\x03\x00\x00",
      7);
  EXPECT_EQ(lz4_block(lz4, 12, "here"), "abcabcabcabc");
  EXPECT_THROW((void)lz4_block(lz4, 13, "here"), Error);
  EXPECT_THROW((void)lz4_block(std::string("\x05"
                                           "\x09\x00\x00",
                                           4),
                               9,
                               "here"),
               Error)
      << "a match before the beginning";
  EXPECT_THROW((void)zstd_block("no zstd", std::size_t{1} << 40, "here"), Error);
  EXPECT_THROW((void)gzip_block("no gzip", std::size_t{1} << 40, "here"), Error);
}

}  // namespace
}  // namespace tessera::data
