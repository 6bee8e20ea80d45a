// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/slices.h"

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/records.h"
#include "tessera/data/sources.h"

namespace tessera::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

// As datasets.arrow_reader.ReadInstruction.from_spec("train" + SLICE).to_absolute({"train": COUNT})
// computes them (datasets 4).
TEST(Slices, AreThoseOfDatasets) {
  const std::vector<std::string> slices = {"[:3]",
                                           "[2:5]",
                                           "[-2:]",
                                           "[:-2]",
                                           "[10%:20%]",
                                           "[:1%]",
                                           "[-30%:]",
                                           "[5:1_000]",
                                           "[25%:75%]",
                                           "[:50%]",
                                           "[99%:]",
                                           "[-5:-1]",
                                           "[10:20%]"};
  using Ranges = std::vector<RecordRange>;
  const std::vector<std::pair<std::int64_t, Ranges>> expected = {
      {0,
       {{0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 0}}},
      {1,
       {{0, 1},
        {1, 1},
        {0, 1},
        {0, 0},
        {0, 0},
        {0, 0},
        {0, 1},
        {1, 1},
        {0, 1},
        {0, 0},
        {1, 1},
        {0, 0},
        {0, 0}}},
      {7,
       {{0, 3},
        {2, 5},
        {5, 7},
        {0, 5},
        {1, 1},
        {0, 0},
        {5, 7},
        {5, 7},
        {2, 5},
        {0, 4},
        {7, 7},
        {2, 6},
        {1, 1}}},
      {10,
       {{0, 3},
        {2, 5},
        {8, 10},
        {0, 8},
        {1, 2},
        {0, 0},
        {7, 10},
        {5, 10},
        {2, 8},
        {0, 5},
        {10, 10},
        {5, 9},
        {1, 2}}},
      {150,
       {{0, 3},
        {2, 5},
        {148, 150},
        {0, 148},
        {15, 30},
        {0, 2},
        {105, 150},
        {5, 150},
        {38, 112},
        {0, 75},
        {148, 150},
        {145, 149},
        {15, 30}}},
      {2001,
       {{0, 3},
        {2, 5},
        {1999, 2001},
        {0, 1999},
        {200, 400},
        {0, 20},
        {1401, 2001},
        {5, 1000},
        {500, 1501},
        {0, 1000},
        {1981, 2001},
        {1996, 2000},
        {200, 400}}},
  };
  for (const auto& [count, ranges] : expected) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const auto slice = parse_slice(slices[i]);
      ASSERT_TRUE(slice) << slices[i];
      const RecordRange got = range_of(*slice, count);
      EXPECT_EQ(got, ranges[i]) << slices[i] << " of " << count << ": " << got.begin << " to "
                                << got.end;
    }
  }
}

TEST(Slices, AreNotPatternsOrNamesOfFiles) {
  const files::TempDir temp;
  for (const std::string name : {"a[0-9]", "a[abc]", "a[[:digit:]]", "[:3]", "a[3]", "a[:3]b"})
    EXPECT_FALSE(cut_slice(name).slice) << name;
  const std::string odd = (temp.path() / "odd[:3]").string();
  EXPECT_TRUE(cut_slice(odd).slice);
  std::ofstream(odd) << "x";
  EXPECT_FALSE(cut_slice(odd).slice);
}

TEST(Slices, WithWrongEndsAreRefused) {
  for (const auto& [name, words] : {std::pair("a.jsonl[:ten]", "\"ten\" is not an end"),
                                    std::pair("a.jsonl[1.5:]", "\"1.5\" is not an end"),
                                    std::pair("a.jsonl[:101%]", "101% is not a share"),
                                    std::pair("a.jsonl[1:2:3]", "\"2:3\" is not an end")}) {
    try {
      (void)cut_slice(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr("a.jsonl["));
    }
  }
}

class SlicesOfFiles : public ::testing::Test {
 protected:
  // Records with their numbers from `first`, with blank lines among them.
  std::string write(const std::string& name, int first, int count) const {
    const auto path = temp_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream out(path);
    for (int i = first; i < first + count; ++i)
      out << (name.ends_with(".txt") ? fmt::format("line {}\n", i)
                                     : fmt::format("{{\"text\": \"t{}\"}}\n\n", i));
    return path.string();
  }
  static Strings texts(const Strings& names, Split split = Split::Train) {
    Strings out;
    for_each_record(record_files(names, split), {}, [&](const Record& record) {
      out.push_back(record.value.find("text")->as_string());
    });
    return out;
  }
  static std::string contents(const std::string& name) {
    std::string out;
    for (const Source& source : expand_sources({name}))
      out += SourceText(source, "text").text();
    return out;
  }
  files::TempDir temp_;
};

TEST_F(SlicesOfFiles, CountTheRecordsOfAFile) {
  const std::string file = write("a.jsonl", 0, 10);
  EXPECT_THAT(texts({file + "[:2]"}), ElementsAre("t0", "t1"));
  EXPECT_THAT(texts({file + "[2:4]"}), ElementsAre("t2", "t3"));
  EXPECT_THAT(texts({file + "[-2:]"}), ElementsAre("t8", "t9"));
  EXPECT_THAT(texts({file + "[10%:30%]"}), ElementsAre("t1", "t2"));
  EXPECT_THAT(texts({file + "[20:]"}), IsEmpty());
  EXPECT_THAT(texts({file + "[:1]", file + "[9:]"}), ElementsAre("t0", "t9"));
}

TEST_F(SlicesOfFiles, MayBeSlicedAgain) {
  const std::string file = write("a.jsonl", 0, 10), more = write("b.jsonl", 10, 10);
  EXPECT_THAT(texts({file + "[2:8][1:3]"}), ElementsAre("t3", "t4"));
  EXPECT_THAT(texts({file + "[-4:][50%:]"}), ElementsAre("t8", "t9"));
  EXPECT_THAT(slice_files({file + "[2:8]"}, {.begin = std::nullopt, .end = 3}),
              ElementsAre(file + "[2:5]"));
  EXPECT_THAT(slice_files({file + "[8:]", more + "[5:]"}, {.begin = 1, .end = 4}),
              ElementsAre(file + "[9:10]", more + "[5:7]"));
  EXPECT_EQ(contents(write("a.txt", 0, 8) + "[2:6][1:3]"), "line 3\nline 4\n");
}

TEST_F(SlicesOfFiles, CountTheRecordsOfAllFilesOfAName) {
  for (int i = 0; i < 4; ++i)
    write(fmt::format("set/train-{}.jsonl", i), 5 * i, 5);
  write("set/test-0.jsonl", 100, 10);
  const std::string folder = (temp_.path() / "set").string();
  for (const std::string& name : {folder, folder + "/train-*.jsonl"}) {
    EXPECT_THAT(texts({name + "[4:7]"}), ElementsAre("t4", "t5", "t6")) << name;
    EXPECT_THAT(texts({name + "[:20%]"}), ElementsAre("t0", "t1", "t2", "t3")) << name;
    EXPECT_THAT(texts({name + "[-1:]"}), ElementsAre("t19")) << name;
    EXPECT_EQ(texts({name + "[:100]"}).size(), 20U) << name;
  }
  EXPECT_THAT(texts({folder + "[:1]"}, Split::Test), ElementsAre("t100"));
}

TEST_F(SlicesOfFiles, DivideTheRecordsWhateverTheCuts) {
  for (int i = 0; i < 3; ++i)
    write(fmt::format("all/{}.jsonl", i), 7 * i, 7);
  const std::string folder = (temp_.path() / "all").string();
  const Strings whole = texts({folder});
  for (int cut = 0; cut <= 21; ++cut) {
    const Strings both =
        texts({fmt::format("{}[:{}]", folder, cut), fmt::format("{}[{}:]", folder, cut)});
    EXPECT_EQ(both, whole) << cut;
  }
}

TEST_F(SlicesOfFiles, KeepTheLinesOfMessages) {
  const std::string file = (temp_.path() / "bad.jsonl").string();
  std::ofstream(file) << "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{broken\n{\"text\": \"c\"}\n";
  EXPECT_THAT(texts({file + "[:2]"}), ElementsAre("a", "b"));
  EXPECT_THAT(texts({file + "[3:]"}), ElementsAre("c"));
  try {
    texts({file + "[1:]"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.jsonl:3"));
  }
}

TEST_F(SlicesOfFiles, OfTextsToLearnAreDocumentsAndOfATextItsLines) {
  EXPECT_EQ(contents(write("a.jsonl", 0, 4) + "[1:3]"),
            "\n\n{\"text\": \"t1\"}\n\n{\"text\": \"t2\"}\n\n");
  EXPECT_EQ(contents(write("a.txt", 0, 4) + "[1:3]"), "line 1\nline 2\n");
  EXPECT_EQ(contents(write("b.txt", 0, 4) + "[50%:]"), "line 2\nline 3\n");
  const std::string csv = (temp_.path() / "a.csv").string();
  std::ofstream(csv) << "text\nx\ny\nz\n";
  EXPECT_EQ(contents(csv + "[1:2]"), "\n{\"text\":\"y\"}\n");
}

TEST_F(SlicesOfFiles, AreNotThoseOfTokens) {
  std::ofstream(temp_.path() / "t.bin", std::ios::binary) << std::string(64, '\0');
  std::ofstream(temp_.path() / "t.idx", std::ios::binary) << "x";
  try {
    (void)expand_sources({(temp_.path() / "t.bin[:2]").string()});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("token file has no records"));
  }
}

}  // namespace
}  // namespace tessera::data
