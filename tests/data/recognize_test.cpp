// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/recognize.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Recognize : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path write(const std::string& name,
                                            const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
    return folder_.path() / name;
  }
  [[nodiscard]] std::string refusal(const std::string& name, const std::string& content) const {
    try {
      recognize(write(name, content));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
      return error.text();
    }
    return "";
  }
  files::TempDir folder_;
};

TEST_F(Recognize, TextRegardlessOfItsName) {
  for (const char* name : {"a.txt", "b.md", "README", "c.tex", "d.py"})
    EXPECT_EQ(recognize(write(name, "To be, or not to be\n")).kind, Source::Kind::Text) << name;
  // A list in a text is not JSON, and a brace is not an object.
  EXPECT_EQ(recognize(write("e.md", "[1] a reference\n{curly\n")).kind, Source::Kind::Text);
}

TEST_F(Recognize, ObjectsOnLinesWhateverTheyAreCalled) {
  for (const char* name : {"a.jsonl", "b.ndjson", "c"})
    EXPECT_EQ(recognize(write(name, "\n{\"text\": \"x\"}\n{\"text\": \"y\"}\n")).kind,
              Source::Kind::Lines)
        << name;
  EXPECT_EQ(recognize(write("d.jsonl", "")).kind, Source::Kind::Lines);
}

TEST_F(Recognize, RecordsByContentsAndTablesByNames) {
  using std::string_literals::operator""s;
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"a.bin.x", "PAR1....", "parquet"},
      {"a.txt", "PAR1....", "parquet"},  // a wrong name does not hide what a file is
      {"a.arrow", "ARROW1\0\0"s, "arrow"},
      {"a.stream", "\xff\xff\xff\xff\x10\0\0\0"s, "arrow"},
      {"a.json", "[{\"text\": 1}]", "json"},
      {"b.json", "[\n{\"text\": 1}]", "json"},
      {"c.json", "{\n\"data\": []}", "json"},
      {"a.csv", "a,b\n1,2\n", "csv"},
      {"a.tsv", "a\tb\n1\t2\n", "tsv"}};
  for (const auto& [name, content, format] : cases) {
    const Source source = recognize(write(name, content));
    EXPECT_EQ(source.kind, Source::Kind::Records) << name;
    EXPECT_EQ(source.format, format) << name;
  }
}

TEST_F(Recognize, OtherContentsComeWithTheCommandThatConverts) {
  using std::string_literals::operator""s;
  EXPECT_THAT(refusal("a.txt.xz", "\xfd\x37zXZ\0"s), HasSubstr("xz -dk "));
  EXPECT_THAT(refusal("a.bz2", "BZh91AY"), AllOf(HasSubstr("bzip2"), HasSubstr("bunzip2 -k ")));
  EXPECT_THAT(refusal("a.zip", "PK\x03\x04"), HasSubstr("unzip "));
  EXPECT_THAT(refusal("a.dat", "a\0b"s), HasSubstr("binary data"));
  EXPECT_THAT(refusal("a", "\x1f\x8b\x08"), HasSubstr("cannot be decompressed"));
}

}  // namespace
}  // namespace tessera::data
