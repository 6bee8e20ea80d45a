// SPDX-License-Identifier: Apache-2.0
// Texts in compressed files and in files of records give the tokens of the same texts as lines.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/compressed_text.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/token_file.h"
#include "tessera/text/tokenizer.h"

namespace tessera::data {
namespace {

using test::gzip;
using test::zstd;

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class PackedSources : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
    return folder_.path() / name;
  }
  /// The token file of the sources.
  std::string tokens(const fs::path& source, const std::string& field = "text") {
    const fs::path prefix = folder_.path() / ("tokens" + std::to_string(made_++));
    TokenizeOptions options;
    options.text_field = field;
    options.threads = 1;
    (void)tokenize({source}, *text::make_tokenizer({}), prefix, options);
    return files::read(prefix.string() + ".bin") + "|" + files::read(prefix.string() + ".idx");
  }
  std::string refusal(const fs::path& source, const std::string& field = "text") {
    try {
      (void)tokens(source, field);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
      return error.text();
    }
    return "";
  }
  files::TempDir folder_;
  int made_ = 0;
};

TEST_F(PackedSources, AreReadAsTheTextThatTheyHold) {
  std::string text;
  for (int i = 0; i < 40000; ++i)
    text += "line " + std::to_string(i) + " of a text\n";
  const std::string wanted = tokens(write("a.txt", text));

  EXPECT_EQ(tokens(write("a.txt.gz", gzip(text))), wanted);
  EXPECT_EQ(tokens(write("b.txt.zst", zstd(text))), wanted);
  EXPECT_EQ(tokens(write("c", gzip(text))), wanted);
  EXPECT_EQ(tokens(write("d.txt", zstd(text))), wanted);
}

TEST_F(PackedSources, AreReadAsTheLinesThatTheyHold) {
  const std::string lines = "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n";
  const std::string wanted = tokens(write("a.jsonl", lines));

  EXPECT_EQ(tokens(write("a.jsonl.gz", gzip(lines))), wanted);
  EXPECT_EQ(tokens(write("b.zst", zstd(lines))), wanted);
}

TEST_F(PackedSources, AreReadAsTheRecordsThatTheyHold) {
  const std::string wanted =
      tokens(write("a.jsonl", "{\"text\": \"one, 1\"}\n{\"text\": \"two\\n\"}\n"));

  EXPECT_EQ(tokens(write("a.json", R"([{"text": "one, 1"}, {"text": "two\n"}])")), wanted);
  EXPECT_EQ(tokens(write("a.csv", "n,text\n1,\"one, 1\"\n2,\"two\n\"\n")), wanted);
  EXPECT_EQ(tokens(write("b.csv.gz", gzip("n,text\n1,\"one, 1\"\n2,\"two\n\"\n"))), wanted);
}

// Written by pyarrow, with the same records as lines beside them.
TEST_F(PackedSources, AreReadAsTheColumnThatTheyHold) {
  const fs::path columns = tessera::test::source_dir() / "tests/data/columns";
  for (const char* field : {"text", "large"}) {
    std::string lines;
    for (const char* name : {"gzip.parquet", "lz4.parquet", "plain.feather", "lz4.feather"}) {
      SCOPED_TRACE(name);
      const std::string found = tokens(columns / name, field);
      if (lines.empty()) lines = found;
      EXPECT_EQ(found, lines);
    }
    if (std::string(field) == "text") {
      EXPECT_EQ(lines, tokens(columns / "records.jsonl", field));
    }
  }
}

TEST_F(PackedSources, OfAFolderAreReadWithThePlainFiles) {
  fs::create_directories(folder_.path() / "only");
  (void)write("only/b.txt.gz", gzip("two"));
  (void)write("only/a.txt.gz", gzip("one"));
  const std::string wanted = tokens(write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));

  EXPECT_EQ(tokens(folder_.path() / "only"), wanted);

  // A plain file beside its compressed copy is read once; hidden files are not read.
  (void)write("only/c.txt", "three");
  (void)write("only/c.txt.gz", gzip("three"));
  for (const char* name : {"only/.d.txt", "only/._c.txt", "only/._e.txt.gz"})
    (void)write(name, "no");
  const std::string all =
      tokens(write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n"));
  EXPECT_EQ(tokens(folder_.path() / "only"), all);

  // A pattern names files of any ending.
  fs::create_directories(folder_.path() / "notes");
  for (const auto& [name, text] : {std::pair{"1.md", "one"}, {"2.md", "two"}, {"3.md", "three"}})
    (void)write("notes/" + std::string(name), text);
  EXPECT_EQ(tokens(folder_.path() / "notes/*.md"), all);
  EXPECT_THAT(refusal(folder_.path() / "notes/*.txt"), HasSubstr("no file matches"));
}

TEST_F(PackedSources, OfAFolderAreNeverMissingWithoutAWord) {
  fs::create_directories(folder_.path() / "linked");
  const auto whole = write("linked/a.txt", "one");
  fs::create_symlink(whole, folder_.path() / "linked" / "b.txt");
  fs::create_symlink("nowhere", folder_.path() / "linked" / "notes.md");  // is not read anyway
  const std::string both = tokens(write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"one\"}\n"));
  EXPECT_EQ(tokens(folder_.path() / "linked"), both);

  for (const char* name : {"c.txt", "c.jsonl", "c.txt.gz"}) {
    const fs::path link = folder_.path() / "linked" / name;
    fs::create_symlink("nowhere", link);
    EXPECT_THAT(refusal(folder_.path() / "linked"),
                HasSubstr(link.string() + " is a link to nowhere, which does not exist"));
    EXPECT_THAT(refusal(folder_.path() / "linked/c*"), HasSubstr("is a link to nowhere"));
    fs::remove(link);
  }
}

TEST_F(PackedSources, NameTheRecordWithoutItsText) {
  EXPECT_THAT(refusal(write("a.json", R"([{"body": "x"}])")),
              AllOf(HasSubstr("a.json:1: the record has no text \"text\""),
                    HasSubstr("set data.text_field; the record has body")));
  EXPECT_THAT(refusal(write("b.txt.gz", gzip("a text").substr(0, 12))),
              HasSubstr("cannot be decompressed"));
}

}  // namespace
}  // namespace tessera::data
