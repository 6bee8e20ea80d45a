// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/records.h"

#include <fstream>
#include <string>
#include <vector>

#include "support/compressed_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::data {
namespace {

using test::gzip;
using test::zstd;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

class Records : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view content) const {
    const auto path = temp_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  /// "LINE:RECORD" of each.
  Strings read(const Strings& files, const RecordOptions& options = {}) {
    Strings out;
    counts_ = for_each_record(files, options, [&](const Record& record) {
      out.push_back(record.place.substr(record.place.rfind(':') + 1) + ":" + record.value.dump());
    });
    return out;
  }
  /// The records without their lines.
  Strings values(const Strings& files, const RecordOptions& options = {}) {
    Strings out = read(files, options);
    for (std::string& one : out)
      one.erase(0, one.find(':') + 1);
    return out;
  }
  std::string refusal(const Strings& files, const RecordOptions& options = {}) {
    return error_of(files, options).what();
  }
  Error error_of(const Strings& files, const RecordOptions& options = {}) {
    try {
      read(files, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
      return error;
    }
    return {Error::Kind::Bug, "none"};
  }
  files::TempDir temp_;
  RecordCounts counts_;
};

TEST_F(Records, AreTheLinesOfAJsonl) {
  EXPECT_THAT(read({write("a.jsonl", "\xEF\xBB\xBF{\"a\": 1}\r\n\n{\"a\": \"x\"}")}),
              ElementsAre("1:{\"a\":1}", "3:{\"a\":\"x\"}"));
  EXPECT_EQ(counts_.blank, 1);
  EXPECT_EQ(counts_.records, 2);
}

TEST_F(Records, AreTheObjectsOfAJsonFile) {
  const Strings wanted = {"2:{\"a\":1}", "3:{\"a\":2}"};
  EXPECT_EQ(read({write("list.json", "[\n{\"a\": 1},\n{\"a\": 2}]")}), wanted);
  EXPECT_EQ(
      read({write("wrapped.json", "{\"version\": 1, \"data\": [\n{\"a\": 1},\n{\"a\": 2}]}")}),
      wanted);
  EXPECT_EQ(read({write("lines.json", "\n{\"a\": 1}\n{\"a\": 2}\n")}), wanted);
  EXPECT_THAT(refusal({write("one.json", "{\"a\": 1}")}), HasSubstr("not a list of records"));
  EXPECT_THAT(refusal({write("broken.json", "[{\"a\": 1}")}), HasSubstr("broken.json:1"));
}

TEST_F(Records, AreTheRowsOfATable) {
  EXPECT_THAT(read({write("a.csv",
                          "text,n,x,yes,code\r\n"
                          "\"a, \"\"b\"\"\nc\",1,2.5,true,007\r\n"
                          "d,-2,,false,1\r\n")}),
              ElementsAre(R"(2:{"text":"a, \"b\"\nc","n":1,"x":2.5,"yes":true,"code":"007"})",
                          R"(4:{"text":"d","n":-2,"x":null,"yes":false,"code":"1"})"));
  EXPECT_THAT(read({write("semicolons.csv", "a;b\n1;2,5\n")}),
              ElementsAre(R"(2:{"a":1,"b":"2,5"})"));
  EXPECT_THAT(read({write("returns.csv", "a,b\r1,x\r\r2,y\r")}),
              ElementsAre(R"(2:{"a":1,"b":"x"})", R"(4:{"a":2,"b":"y"})"));
}

TEST_F(Records, AColumnMayHaveNoName) {
  EXPECT_THAT(read({write("pandas.csv", ",text,label\n0,a,x\n1,b,y\n")}),
              ElementsAre(R"(2:{"Unnamed: 0":0,"text":"a","label":"x"})",
                          R"(3:{"Unnamed: 0":1,"text":"b","label":"y"})"));
}

// A number may stand in a field of texts.
TEST_F(Records, ATableKeepsTheSpellingOfItsCells) {
  EXPECT_THAT(read({write("a.csv", "n,x,yes\n1.50,123456789012345678901,True\n2,.5,False\n")}),
              ElementsAre(R"(2:{"n":1.50,"x":123456789012345678901,"yes":"True"})",
                          R"(3:{"n":2,"x":0.5,"yes":"False"})"));
}

TEST_F(Records, ARowOfAnotherLengthDecidesNothingAboutTheOthers) {
  EXPECT_THAT(read({write("a.csv", "n,x\n1,2\nonly,two,many\n3,4\n")}, {.skip_bad = true}),
              ElementsAre(R"(2:{"n":1,"x":2})", R"(4:{"n":3,"x":4})"));
}

TEST_F(Records, ATableWithTabsMayHaveQuotesInItsTexts) {
  EXPECT_THAT(read({write("a.tsv", "a\tb\n\"hi\" he said\t\"x\"\n\"\ty\n")}),
              ElementsAre(R"(2:{"a":"\"hi\" he said","b":"x"})", R"(3:{"a":"\"","b":"y"})"));
}

// GLUE's CoLA, as it is downloaded: no row of names in the files for training.
TEST_F(Records, ATableOfAcceptabilityNeedsNoNames) {
  EXPECT_THAT(
      read({write("train.tsv", "gj04\t1\t\tThe box fell.\nbc01\t0\t*\t\"Fell the box.\n")}),
      ElementsAre(R"(1:{"source":"gj04","label":1,"star":"","sentence":"The box fell."})",
                  R"(2:{"source":"bc01","label":0,"star":"*","sentence":"\"Fell the box."})"));
  EXPECT_THAT(read({write("test.tsv", "index\tsentence\n0\tThe box fell.\n")}),
              ElementsAre(R"(2:{"index":0,"sentence":"The box fell."})"));
}

TEST_F(Records, NamesTheLineOfATableThatCannotBeRead) {
  EXPECT_THAT(refusal({write("a.csv", "a,b\n1,2\n3\n")}),
              HasSubstr("a.csv:3: the row has 1 fields, and the first row names 2"));
  EXPECT_THAT(refusal({write("b.csv", "a,b\n1,\"2\n3,4\n")}),
              HasSubstr("b.csv:2: the quote is never closed"));
  EXPECT_THAT(refusal({write("c.csv", "a,b\n1,\"2\"3\n")}), HasSubstr("c.csv:2: text behind"));
  EXPECT_THAT(refusal({write("d.csv", "a,a\n1,2\n")}), HasSubstr("two columns are called \"a\""));
  EXPECT_THAT(refusal({write("e.csv", "a,b\n1,\xff\n")}), HasSubstr("e.csv:2"));
}

TEST_F(Records, AreReadFromCompressedFiles) {
  const std::string text = "{\"a\": 1}\n{\"a\": 2}\n";
  const Strings wanted = {"1:{\"a\":1}", "2:{\"a\":2}"};
  EXPECT_EQ(read({write("a.jsonl.gz", gzip(text))}), wanted);
  EXPECT_EQ(read({write("two.jsonl.gz", gzip("{\"a\": 1}\n") + gzip("{\"a\": 2}\n"))}), wanted);
  EXPECT_EQ(read({write("a.jsonl.zst", zstd(text))}), wanted);
  EXPECT_EQ(read({write("renamed.jsonl", zstd(text))}), wanted);
  std::string large;
  for (int i = 0; i < 300'000; ++i)
    large += "{\"number\": " + std::to_string(i) + "}\n";
  EXPECT_EQ(read({write("large.jsonl.gz", gzip(large))}).size(), 300'000U);
  EXPECT_EQ(read({write("large.jsonl.zst", zstd(large))}).size(), 300'000U);
  const std::string cut = gzip(large);
  EXPECT_THAT(refusal({write("cut.jsonl.gz", cut.substr(0, cut.size() / 2))}),
              HasSubstr("cannot be decompressed"));
  const std::string half = zstd(large);
  EXPECT_THAT(refusal({write("cut.jsonl.zst", half.substr(0, half.size() / 2))}),
              HasSubstr("cannot be decompressed"));
}

TEST_F(Records, AreFoundByTheirContentWhereTheNameSaysNothing) {
  EXPECT_EQ(read({write("a.data", "{\"a\": 1}\n{\"a\": 2}\n")}).size(), 2U);
  EXPECT_EQ(read({write("noname", "[{\"a\": 1}]")}).size(), 1U);
  EXPECT_THAT(refusal({write("a.txt", "{\"a\": 1}\n")}), HasSubstr("is not a file of records"));
  EXPECT_THAT(refusal({write("a.bin", "PAR1....")}), HasSubstr("ends without a footer"));
}

/// UTF-16 of a text of ASCII and U+1F642, with its mark.
std::string utf16(std::string_view text, bool big) {
  std::string out;
  const auto put = [&](unsigned unit) {
    const char high = static_cast<char>(unit >> 8), low = static_cast<char>(unit & 0xFFU);
    out += big ? high : low;
    out += big ? low : high;
  };
  put(0xFEFF);
  for (const char c : text) {
    if (c == '@') {
      put(0xD83D);
      put(0xDE42);
    } else {
      put(static_cast<unsigned char>(c));
    }
  }
  return out;
}

TEST_F(Records, MayBeUtf16WithItsMark) {
  const Strings wanted = values({write("plain.csv", "text,label\n\xf0\x9f\x99\x82 a,1\n")});
  for (const bool big : {false, true}) {
    EXPECT_EQ(values({write("a.csv", utf16("text,label\n@ a,1\n", big))}), wanted) << big;
    EXPECT_EQ(values({write("a.csv.gz", gzip(utf16("text,label\n@ a,1\n", big)))}), wanted) << big;
    EXPECT_EQ(values({write("a.jsonl", utf16("{\"text\": \"@ a\", \"label\": 1}\n", big))}), wanted)
        << big;
  }
  EXPECT_THAT(refusal({write("odd.csv", utf16("a,b\n", false) + "x")}),
              HasSubstr("not UTF-16 from byte 10 on"));
  EXPECT_THAT(refusal({write("half.csv", std::string("\xff\xfe\x3d\xd8", 4))}),
              HasSubstr("not UTF-16 from byte 2 on"));
  EXPECT_THAT(refusal({write("wide.csv", std::string("\xff\xfe\0\0a\0\0\0", 8))}),
              HasSubstr("UTF-32"));
}

TEST_F(Records, OfLinesMayShareALineOrSpanSeveral) {
  const Strings wanted = values({write("a.jsonl", "{\"a\": \"} {\"}\n{\"a\": [1, {\"b\": 2}]}\n")});
  ASSERT_EQ(wanted.size(), 2U);
  EXPECT_EQ(values({write("b.jsonl", "{\"a\": \"} {\"} {\"a\": [1, {\"b\": 2}]}")}), wanted);
  EXPECT_EQ(
      values({write("c.jsonl", "{\n  \"a\": \"} {\"\n}\n{\n  \"a\": [1,\n {\"b\": 2}]\n}\n")}),
      wanted);
  // A line that lost its end does not swallow the next one.
  EXPECT_EQ(values({write("d.jsonl", "{\"a\": [1\n{\"a\": \"} {\"}\n{\"a\": [1, {\"b\": 2}]}\n")},
                   {.skip_bad = true}),
            wanted);
  EXPECT_EQ(counts_.bad, 1);
  EXPECT_THAT(refusal({write("e.jsonl", "{\"a\": 1} x\n")}), HasSubstr("e.jsonl:1:10"));
}

TEST_F(Records, OfOneLineAreNamedByTheirNumberInIt) {
  EXPECT_THAT(refusal({write("a.json", "[{\"a\": 1}, {\"a\": 2}, 3]")}),
              HasSubstr("a.json:1, element 3: expected a JSON object"));
  EXPECT_THAT(refusal({write("a.json", "[{\"a\": 1},\n 3]")}), HasSubstr("a.json:2: expected"));
}

TEST_F(Records, OfTabbedTablesMayHaveTabsAndLineEndsBetweenQuotes) {
  const Strings wanted = values({write("a.csv", "text,label\n\"a\tb\",1\n\"c\n\"\"d\"\"\",0\n")});
  EXPECT_EQ(values({write("a.tsv", "text\tlabel\n\"a\tb\"\t1\n\"c\n\"\"d\"\"\"\t0\n")}), wanted);
  // Without quoting a text may begin with a quote, and the next one end with one.
  EXPECT_EQ(values({write("b.tsv", "label\ttext\n1\t\"abc\n0\tdef\"\n")}).size(), 2U);
}

TEST_F(Records, OfConllAreSentences) {
  const Strings wanted = {R"({"tokens":["EU","rejects"],"tags":["B-ORG","O"]})",
                          R"({"tokens":["#1"],"tags":["O"]})"};
  EXPECT_EQ(
      values({write("a.conll",
                    "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n#1 CD I-NP "
                    "O\n")}),
      wanted);
  EXPECT_EQ(values({write("a.bio", "# id = 1\r\nEU\tB-ORG\r\nrejects\tO\r\n\r\n#1\tO")}), wanted);
  EXPECT_THAT(refusal({write("b.conll", "EU B-ORG\nalone\n")}), HasSubstr("b.conll:2"));
}

TEST_F(Records, ThatAreBadSayHowTheyAreLeftOut) {
  for (const char* text : {"x\n", "[1]\n", "{\"a\": 1\n"}) {
    EXPECT_THAT(error_of({write("a.jsonl", text)}).fix(), HasSubstr("data.on_bad_record \"skip\""))
        << text;
  }
  EXPECT_THAT(error_of({write("a.csv", "a,b\n1,2,3\n")}).fix(),
              HasSubstr("data.on_bad_record \"skip\""));
}

TEST_F(Records, BadOnesAreLeftOutWhereThatIsAskedFor) {
  const std::string file = write("a.jsonl", "{\"a\": 1}\nx\n[1]\n{\"a\": 2}\n");
  EXPECT_THAT(refusal({file}), HasSubstr("a.jsonl:2:1: "));

  EXPECT_EQ(read({file}, {.skip_bad = true}).size(), 2U);

  EXPECT_EQ(counts_.bad, 2);
  ASSERT_EQ(counts_.refused.size(), 2U);
  EXPECT_THAT(counts_.refused[1], HasSubstr("a.jsonl:3: expected a JSON object"));
}

TEST_F(Records, LinksOfAFolderThatLeadNowhereAreRefused) {
  (void)write("linked/a.csv", "text\na\n");
  const std::filesystem::path folder = temp_.path() / "linked";
  std::filesystem::create_symlink("nowhere", folder / "b.csv");

  for (const std::string& name : {folder.string(), (folder / "*.csv").string()}) {
    try {
      (void)record_files({name}, Split::Train);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Data);
      EXPECT_THAT(error.what(), testing::HasSubstr("b.csv is a link to nowhere"));
    }
  }
}

TEST_F(Records, FoldersStandForTheFilesOfAPart) {
  const std::string folder = temp_.path().string();
  for (const char* name : {"d/train-0.jsonl",
                           "d/train-1.jsonl",
                           "d/dev.jsonl",
                           "d/notes.md",
                           "e/b.csv",
                           "e/a.jsonl.gz",
                           "e/more/c.csv",
                           "f/data/train-00000.parquet",
                           "f/data/test-00000.parquet",
                           "f/.cache/train-00001.parquet",
                           "g/train/b.jsonl",
                           "g/train/deep/c.jsonl",
                           "g/test/a.jsonl"})
    write(name, "");
  const auto names = [&](const std::string& name, Split split) {
    Strings out;
    for (const std::string& path : record_files({folder + "/" + name}, split))
      out.push_back(std::filesystem::path(path).filename().string());
    return out;
  };
  EXPECT_THAT(names("d", Split::Train), ElementsAre("train-0.jsonl", "train-1.jsonl"));
  EXPECT_THAT(names("d", Split::Validation), ElementsAre("dev.jsonl"));
  EXPECT_THAT(names("e", Split::Train), ElementsAre("a.jsonl.gz", "b.csv"));
  // Subfolders stand for a folder without files of its own.
  EXPECT_THAT(names("f", Split::Train), ElementsAre("train-00000.parquet"));
  EXPECT_THAT(names("f", Split::Test), ElementsAre("test-00000.parquet"));
  EXPECT_THAT(names("g", Split::Train), ElementsAre("b.jsonl"));
  EXPECT_THAT(names("g", Split::Test), ElementsAre("a.jsonl"));
  EXPECT_THAT(names("d/train-*.jsonl", Split::Train),
              ElementsAre("train-0.jsonl", "train-1.jsonl"));
  EXPECT_THROW(names("d", Split::Test), Error);
  EXPECT_THROW(names("d/*.csv", Split::Train), Error);
  EXPECT_THROW(names("nothing", Split::Train), Error);
  ASSERT_EQ(mkfifo((folder + "/pipe.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(names("pipe.jsonl", Split::Train), Error);  // nobody writes to it
}

}  // namespace
}  // namespace tessera::data
