// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <fstream>
#include <new>

#include "support/no_threads.h"
#include "support/text_files.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/text.h"
#include "tessera/data/sources.h"
#include "tessera/data/token_file.h"

namespace tessera::data {
namespace {

using test::byte;
using test::bytes_of;
using test::contains;
using test::error_of;
using test::Folder;
using test::gpt2;
using test::ids_of;
using test::random_text;
namespace fs = std::filesystem;
using Paths = std::vector<std::filesystem::path>;
using Documents = std::vector<std::vector<std::int32_t>>;

Documents documents_of(const TokenFile& file) {
  Documents documents;
  for (std::int64_t s = 0; s < file.sequences(); ++s) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(file.sequence_length(s)));
    file.read(file.sequence_begin(s), file.sequence_length(s), ids.data());
    documents.emplace_back(ids.begin(), ids.end());
  }
  return documents;
}

// An end of text separates documents and is counted with the document before it.
Documents expected_documents(const text::Tokenizer& tokenizer,
                             const std::vector<std::string>& texts) {
  Documents documents;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    documents.push_back(ids_of(tokenizer, texts[i]));
    if (i + 1 < texts.size()) documents.back().push_back(tokenizer.end_of_text());
  }
  return documents;
}

/// Tokenizes into a folder of its own.
struct Result {
  Folder folder;
  TokenizeStats stats;
  std::shared_ptr<const TokenFile> file;
  Result(const Paths& sources,
         const text::Tokenizer& tokenizer,
         const TokenizeOptions& options = {}) {
    stats = tokenize(sources, tokenizer, folder / "out", options);
    file = TokenFile::open(folder / "out");
  }
  [[nodiscard]] std::string bytes() const {
    return bytes_of(folder / "out.bin") + bytes_of(folder / "out.idx");
  }
};

TEST(Tokenize, MakesATextFileOneDocument) {
  const Folder folder;
  const auto path = folder.write("a.txt", "one\n\ntwo\n");

  const Result result({path}, *byte());

  EXPECT_EQ(documents_of(*result.file), expected_documents(*byte(), {"one\n\ntwo\n"}));
  EXPECT_EQ(result.stats.documents, 1);
  EXPECT_EQ(result.stats.tokens, 9);
  EXPECT_EQ(result.stats.bytes, 9);
}

TEST(Tokenize, MakesEveryJsonLineADocument) {
  const Folder folder;
  const auto path = folder.write(
      "a.jsonl", "{\"text\":\"one\"}\n{\"id\":2,\"text\":\"tw\\u00f6\"}\n{\"text\":\"three\"}");

  const Result result({path}, *gpt2());

  EXPECT_EQ(documents_of(*result.file), expected_documents(*gpt2(), {"one", "twö", "three"}));
}

TEST(Tokenize, ReadsAnotherFieldOnRequest) {
  const Folder folder;
  const auto path = folder.write("a.jsonl", R"({"text":"no","body":"yes"})");

  EXPECT_EQ(documents_of(*Result({path}, *byte(), {.text_field = "body"}).file),
            expected_documents(*byte(), {"yes"}));
}

TEST(Tokenize, SkipsBlankLinesAndEmptyTextsWithACount) {
  const Folder folder;
  const auto lines = folder.write(
      "a.jsonl", "\n{\"text\":\"one\"}\n  \t\n{\"text\":\"\"}\n{\"text\":\"two\"}\n\n");
  const auto empty = folder.write("b.txt", "");

  const Result result({lines, empty}, *byte());

  EXPECT_EQ(documents_of(*result.file), expected_documents(*byte(), {"one", "two"}));
  EXPECT_EQ(result.stats.skipped_empty, 5);
}

TEST(Tokenize, AcceptsByteOrderMarksAndLinesOfWindows) {
  const Folder folder;
  const auto text = folder.write("a.txt", "\xEF\xBB\xBFone\r\ntwo\r\rthree\r\n");
  const auto lines =
      folder.write("b.jsonl", "\xEF\xBB\xBF{\"text\":\"x\\r\\ny\"}\r\n\r\n{\"text\":\"z\"}\r\n");

  const Result result({text, lines}, *byte());

  EXPECT_EQ(documents_of(*result.file),
            expected_documents(*byte(), {"one\ntwo\r\rthree\n", "x\r\ny", "z"}));
  EXPECT_EQ(result.stats.skipped_empty, 1);
  EXPECT_EQ(result.stats.bytes,
            static_cast<std::int64_t>(fs::file_size(text) + fs::file_size(lines)));
}

TEST(Tokenize, ReadsAFolderAndItsSubfoldersByByteOrderOfPaths) {
  const Folder folder;
  folder.write("in/b.txt", "b");
  folder.write("in/B.txt", "B");
  folder.write("in/a10.txt", "a10");
  folder.write("in/a2.jsonl", R"({"text":"a2"})");
  folder.write("in/readme.md", "no");
  folder.write("in/a/z.txt", "a/z");
  folder.write("in/sub/deep/c.txt", "c");
  folder.write("in/.hidden/d.txt", "no");
  folder.write("elsewhere/e.txt", "no");
  fs::create_directory_symlink(folder / "elsewhere", folder / "in/link");

  EXPECT_EQ(documents_of(*Result({folder / "in"}, *byte()).file),
            expected_documents(*byte(), {"B", "a/z", "a10", "a2", "b", "c"}));
}

TEST(Tokenize, KeepsTheOrderOfAList) {
  const Folder folder;
  const auto a = folder.write("a.txt", "a"), b = folder.write("b.txt", "b");

  EXPECT_EQ(documents_of(*Result({b, a, b}, *byte()).file),
            expected_documents(*byte(), {"b", "a", "b"}));
}

// Larger than several chunks, with a long stretch that has no white space to split at.
std::string long_text() {
  std::mt19937 random(29);
  std::string text = "Once";  // no byte order mark
  while (text.size() < 2'600'000) {
    text += random_text(random, 20);
    if (random() % 3 == 0) text += "\r\n";
  }
  return text.insert(1'500'000, std::string(300'000, 'x'));
}

std::string unix_lines(std::string text) {
  for (std::size_t at = text.find("\r\n"); at != std::string::npos; at = text.find("\r\n", at))
    text.erase(at, 1);
  return text;
}

TEST(Tokenize, EncodesOneLongTextAsIfItWereNotCut) {
  const Folder folder;
  std::string text = long_text();
  while (text::find_invalid_utf8(text))
    text = text::replace_invalid_utf8(text);  // the insertion may split a character
  const auto path = folder.write("a.txt", text);

  for (const auto& tokenizer : {byte(), gpt2()}) {
    const Result result({path}, *tokenizer, {.threads = 3});
    EXPECT_EQ(documents_of(*result.file), expected_documents(*tokenizer, {unix_lines(text)}))
        << tokenizer->name();
  }
}

TEST(Tokenize, WritesTheSameBytesForAnyNumberOfThreads) {
  const Folder folder;
  std::mt19937 random(31);
  std::string lines;
  while (lines.size() < 3'000'000) {
    lines +=
        nlohmann::json{{"text", random_text(random, static_cast<int>(random() % 400))}}.dump() +
        "\n";
  }
  const auto big = folder.write("a.jsonl", lines), small = folder.write("b.txt", "the end");

  const Result one({big, small}, *gpt2(), {.threads = 1}),
      two({big, small}, *gpt2(), {.threads = 2}), many({big, small}, *gpt2(), {.threads = 7});

  EXPECT_GT(one.stats.documents, 100);
  EXPECT_TRUE(one.bytes() == two.bytes());
  EXPECT_TRUE(one.bytes() == many.bytes());
  EXPECT_EQ(one.stats.skipped_empty, many.stats.skipped_empty);
}

TEST(Tokenize, NeedsNoThreads) {
  const Folder folder;
  const auto path = folder.write("a.txt", std::string(3'000'000, 'x'));
  const Result one({path}, *byte(), {.threads = 1});
  const tessera::test::NoMoreThreads none;

  const Result alone({path}, *byte(), {.threads = 3});

  EXPECT_EQ(alone.stats.tokens, 3'000'000);
  EXPECT_TRUE(alone.bytes() == one.bytes());
}

TEST(Tokenize, ReportsItsProgress) {
  const Folder folder;
  const auto path = folder.write("a.txt", long_text().substr(0, 2'500'000));
  std::vector<std::int64_t> seen;
  TokenizeOptions options{.invalid_utf8 = "replace", .threads = 2};
  options.progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_EQ(all, 2'500'000);
    seen.push_back(done);
  };

  const Result result({path}, *gpt2(), options);

  EXPECT_GE(seen.size(), 2U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 2'500'000);
}

TEST(Tokenize, NamesFileLineAndByteOfInvalidText) {
  const Folder folder;
  const auto text = folder.write("a.txt", "good\nline\xFFtwo\n");
  const auto lines = folder.write("b.jsonl", "{\"text\":\"x\"}\n{\"text\":\"\xC3\x28\"}\n");

  const Error a = error_of([&] { Result({text}, *byte()); }),
              b = error_of([&] { Result({lines}, *byte()); });

  EXPECT_EQ(a.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(a.what(), "a.txt:2:5: byte 0xFF"));
  EXPECT_TRUE(contains(a.fix(), "iconv"));
  EXPECT_TRUE(contains(b.what(), "b.jsonl:2:10: byte 0xC3"));
}

TEST(Tokenize, FindsThePlaceFarIntoAFile) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 300'000; ++i)
    text += "seven\n";
  const auto path = folder.write("a.txt", text + "ab\xF0\x9F\n");

  for (const int threads : {1, 4}) {
    const Error error = error_of([&] { Result({path}, *gpt2(), {.threads = threads}); });
    EXPECT_TRUE(contains(error.what(), "a.txt:300001:3: byte 0xF0"));
  }
}

TEST(Tokenize, ReportsTheFirstOfSeveralErrors) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 200'000; ++i)
    lines += i == 70'000 || i == 150'000 ? "{\"text\":1}\n" : "{\"text\":\"some words\"}\n";
  const auto path = folder.write("a.jsonl", lines);

  for (int run = 0; run < 5; ++run) {
    const Error error = error_of([&] { Result({path}, *gpt2(), {.threads = 4}); });
    EXPECT_TRUE(contains(error.what(), "a.jsonl:70001:9"));
  }
}

TEST(Tokenize, ReplacesInvalidTextOnRequestAndCountsIt) {
  const Folder folder;
  const auto text = folder.write("a.txt", "a\xFFz\uFFFD\xE4\xBD");
  const auto lines = folder.write("b.jsonl", "{\"text\":\"\xFF\\ud800\"}");

  const Result result({text, lines}, *byte(), {.invalid_utf8 = "replace"});

  EXPECT_EQ(documents_of(*result.file),
            expected_documents(*byte(), {"a\uFFFDz\uFFFD\uFFFD", "\uFFFD\uFFFD"}));
  EXPECT_EQ(result.stats.replaced_utf8, 4);
}

TEST(Tokenize, NamesFileAndLineOfBadJson) {
  const auto refused = [](const std::string& line, const std::string& part) {
    const Folder folder;
    const auto path = folder.write("a.jsonl", "{\"text\":\"x\"}\r\n\n" + line + "\n");
    const Error error = error_of([&] { Result({path}, *byte()); });
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_TRUE(contains(error.what(), part));
  };

  refused(R"({"body":"x"})", "a.jsonl:3:1: has no field \"text\"; it has: body");
  refused(R"({"text":3})", "a.jsonl:3:9: the field \"text\" is a number");
  refused(R"({"text":"x")", "a.jsonl:3:12: not valid JSON");
  refused("plain words", "a.jsonl:3:1: not valid JSON");
  refused(R"({"text":"\ud800"})", "a.jsonl:3:10: lone surrogate");
}

// Records of other tasks are not texts; the fix names the task.
TEST(Tokenize, NamesTheTaskOfOtherRecords) {
  const auto fix_of = [](const std::string& record) {
    const Folder folder;
    const auto path = folder.write("a.jsonl", record + "\n");
    return error_of([&] { Result({path}, *byte()); }).fix();
  };

  EXPECT_TRUE(contains(fix_of(R"({"messages":[]})"), "\"task\": \"sft\""));
  EXPECT_TRUE(contains(fix_of(R"({"chosen":"a","rejected":"b"})"), "\"task\": \"prefer\""));
  EXPECT_TRUE(contains(fix_of(R"({"prompt":"a","completion":"b"})"), "\"task\": \"sft\""));
  EXPECT_TRUE(contains(fix_of(R"({"body":"a"})"), "set data.text_field to"));
}

TEST(Tokenize, RefusesSourcesThatAreNotThere) {
  const Folder folder;
  folder.write("corpus.txt", "x");
  folder.write("other.parquet", "PAR1");
  fs::create_directories(folder / "empty");
  const auto refused =
      [&](const std::string& name, const std::string& part, const std::string& fix) {
        const Error error = error_of([&] { Result({folder / name}, *byte()); });
        EXPECT_EQ(error.kind(), Error::Kind::Data) << name;
        EXPECT_TRUE(contains(error.what(), part));
        EXPECT_TRUE(contains(error.fix(), fix));
      };

  refused("corpsu.txt", "no such file", "corpus.txt");
  refused("empty", "no .txt, .jsonl, .parquet, .gz or .zst file", "");
  refused("other.parquet", "other.parquet", "");
}

TEST(Tokenize, RefusesDataWithoutText) {
  const Folder folder;
  const auto empty = folder.write("a.txt", ""), mark = folder.write("b.txt", "\xEF\xBB\xBF"),
             blank = folder.write("c.jsonl", "\n\n{\"text\":\"\"}\n");

  for (const auto& path : {empty, mark, blank}) {
    const Error error = error_of([&] { Result({path}, *byte()); });
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_TRUE(contains(error.what(), path.filename().string()));
  }
}

TEST(Tokenize, LeavesNothingBehindWhenItFails) {
  const Folder folder, out;
  const auto path = folder.write("a.txt", "x\xFF");

  EXPECT_EQ(error_of([&] { tokenize({path}, *byte(), out / "p", {}); }).kind(), Error::Kind::Data);

  EXPECT_TRUE(out.names().empty());
}

/// A limit on the size of files, which a writer meets as it meets a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(Tokenize, SaysThatTheDiskIsFullAndLeavesNothing) {
  const Folder folder, out;
  const auto path = folder.write("a.txt", std::string(3'000'000, 'x'));
  const FileSizeLimit limit(1'000'000);

  for (const int threads : {1, 3}) {
    const Error error =
        error_of([&] { tokenize({path}, *byte(), out / "p", {.threads = threads}); });
    EXPECT_EQ(error.kind(), Error::Kind::Io);
    EXPECT_TRUE(contains(error.what(), "p.bin"));
    EXPECT_TRUE(contains(error.fix(), "space"));
  }

  EXPECT_TRUE(out.names().empty());
}

TEST(Sources, AreNotBlamedForALimitOfTheProcess) {
  const Folder folder;
  const auto path = folder.write("a.txt", "x");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};

  setrlimit(RLIMIT_NOFILE, &none);
  const Error file = error_of([&] { map_source(path); });
  const Error inside = error_of([&] { expand_sources({folder.path()}); });
  setrlimit(RLIMIT_NOFILE, &before);

  for (const Error& error : {file, inside}) {
    EXPECT_EQ(error.kind(), Error::Kind::Io);
    EXPECT_TRUE(contains(error.fix(), "ulimit -n"));
  }
  EXPECT_EQ(error_of([&] { map_source(folder / "missing.txt"); }).kind(), Error::Kind::Data);
}

TEST(Tokenize, NamesAFolderThatItCannotWriteTo) {
  const Folder folder;
  const auto path = folder.write("a.txt", "x");

  const Error error = error_of([&] { tokenize({path}, *byte(), folder / "not/there/p", {}); });

  EXPECT_EQ(error.kind(), Error::Kind::Io);
  EXPECT_TRUE(contains(error.what(), "not/there/p.bin"));
}

/// Bytes of address space that this process has.
std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST(Tokenize, EndsWithAnErrorWhereThreadsLackMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs address space of its own";
#endif
  const Folder folder;
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i)
    text += "Sentence " + std::to_string(i * 7919) + " is not like the others.\n";
  const fs::path file = folder.write("a.txt", text);
  const text::Tokenizer& tokenizer = *gpt2();
  int refused = 0;

  for (std::uint64_t left = 1; left <= 256; left *= 2) {
    const pid_t child = fork();
    if (child == 0) {
      const rlim_t limit = address_space() + (left << 20);
      const rlimit limits{limit, limit};
      setrlimit(RLIMIT_AS, &limits);
      try {
        tokenize({file}, tokenizer, folder / std::to_string(left), {.threads = 3});
        _exit(0);
      } catch (const std::bad_alloc&) {
        _exit(5);
      } catch (...) {
        _exit(6);
      }
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << left << " MiB: signal " << WTERMSIG(status);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) ++refused;
  }
  EXPECT_GT(refused, 0) << "every limit was large enough";
}

}  // namespace
}  // namespace tessera::data
