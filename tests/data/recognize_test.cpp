// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/recognize.h"

#include <string>
#include <utility>

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

TEST_F(Recognize, TextWhateverItIsCalled) {
  for (const char* name : {"a.txt", "b.md", "README", "c.tex", "d.py"})
    EXPECT_EQ(recognize(write(name, "To be, or not to be\n")), Source::Kind::Text) << name;
  // A list in a text is no JSON, and a brace no object.
  EXPECT_EQ(recognize(write("e.md", "[1] a reference\n{curly\n")), Source::Kind::Text);
}

TEST_F(Recognize, ObjectsOnLinesWhateverTheyAreCalled) {
  for (const char* name : {"a.jsonl", "b.ndjson", "c"})
    EXPECT_EQ(recognize(write(name, "\n{\"text\": \"x\"}\n{\"text\": \"y\"}\n")),
              Source::Kind::Lines)
        << name;
  EXPECT_EQ(recognize(write("d.jsonl", "")), Source::Kind::Lines);
}

TEST_F(Recognize, OtherContentsComeWithTheCommandThatConverts) {
  EXPECT_THAT(
      refusal("a.parquet", "PAR1...."),
      AllOf(HasSubstr("a parquet file"), HasSubstr("pandas.read_parquet"), HasSubstr("a.jsonl")));
  EXPECT_THAT(refusal("a.arrow", "ARROW1\0\0"), HasSubstr("an arrow file"));
  EXPECT_THAT(refusal("a.txt.gz", "\x1f\x8b\x08"), HasSubstr("gunzip -k "));
  EXPECT_THAT(refusal("a.zst", "\x28\xb5\x2f\xfd"), HasSubstr("zstd -d "));
  EXPECT_THAT(refusal("a.json", "[{\"text\": 1}]"),
              AllOf(HasSubstr("one JSON array"), HasSubstr("json.load")));
  EXPECT_THAT(refusal("b.json", "[\n{\"text\": 1}]"), HasSubstr("one JSON array"));
  EXPECT_THAT(refusal("a.csv", "a,b\n1,2\n"), AllOf(HasSubstr("a table"), HasSubstr("read_csv")));
  EXPECT_THAT(refusal("a.dat", std::string("a\0b", 3)), HasSubstr("binary data"));
}

// A wrong name does not hide what a file is.
TEST_F(Recognize, ContentsBeforeNames) {
  EXPECT_THAT(refusal("a.txt", "PAR1...."), HasSubstr("a parquet file"));
  EXPECT_THAT(refusal("a.jsonl", "\x1f\x8b\x08"), HasSubstr("gzip"));
}

}  // namespace
}  // namespace tessera::data
