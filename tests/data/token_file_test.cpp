// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "support/text_files.h"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/data/llmc_tokens.h"
#include "tessera/data/sources.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {
namespace {

using test::bytes_of;
using test::contains;
using test::error_of;
using test::Folder;
using Ids = std::vector<std::int64_t>;

/// An index in bytes, field by field, as docs/formats/tokens.md has it.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::uint64_t sequences = 2, documents = 3;
  std::vector<std::int32_t> lengths = {3, 2};
  std::vector<std::int64_t> pointers = {0, 6};
  std::vector<std::int64_t> marks = {0, 1, 2};
  std::string tail;

  [[nodiscard]] std::string bytes() const {
    std::string out = magic;
    const auto put = [&out](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    put(version);
    put(code);
    put(sequences);
    put(documents);
    for (const auto v : lengths)
      put(v);
    for (const auto v : pointers)
      put(v);
    for (const auto v : marks)
      put(v);
    return out + tail;
  }
};
template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
const std::string kFive = raw<std::uint16_t>({1, 2, 3, 4, 65499});

Ids all_of(const TokenFile& file) {
  Ids ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), ids.data());
  return ids;
}

TEST(TokenFile, ReadsAPairByAnyOfItsNames) {
  const Folder folder;
  folder.write("x.idx", Index().bytes());
  folder.write("x.bin", kFive);

  for (const char* name : {"x", "x.bin", "x.idx"}) {
    const auto file = TokenFile::open(folder / name);

    EXPECT_EQ(file->tokens(), 5);
    EXPECT_EQ(file->sequences(), 2);
    EXPECT_EQ(file->sequence_begin(1), 3);
    EXPECT_EQ(file->sequence_length(1), 2);
    EXPECT_EQ(all_of(*file), (Ids{1, 2, 3, 4, 65499}));
  }
}

TEST(TokenFile, ReadsEveryWidth) {
  const auto read = [](std::uint8_t code, const std::string& bin, std::int64_t width) {
    const Folder folder;
    Index index;
    index.code = code;
    index.pointers = {0, 3 * width};
    folder.write("x.idx", index.bytes());
    folder.write("x.bin", bin);
    return all_of(*TokenFile::open(folder / "x"));
  };
  const Ids expected = {1, 2, 3, 4, 100};

  EXPECT_EQ(read(1, raw<std::uint8_t>({1, 2, 3, 4, 100}), 1), expected);
  EXPECT_EQ(read(2, raw<std::int8_t>({1, 2, 3, 4, 100}), 1), expected);
  EXPECT_EQ(read(3, raw<std::int16_t>({1, 2, 3, 4, 100}), 2), expected);
  EXPECT_EQ(read(4, raw<std::int32_t>({1, 2, 3, 4, 100}), 4), expected);
  EXPECT_EQ(read(5, raw<std::int64_t>({1, 2, 3, 4, 100}), 8), expected);
  EXPECT_EQ(read(8, raw<std::uint16_t>({1, 2, 3, 4, 100}), 2), expected);
}

TEST(TokenFile, AcceptsTheModesOfMultimodalIndexes) {
  const Folder folder;
  Index index;
  index.tail = std::string(2, '\0');
  folder.write("x.idx", index.bytes());
  folder.write("x.bin", kFive);

  EXPECT_EQ(TokenFile::open(folder / "x")->tokens(), 5);
}

TEST(TokenFile, RefusesEveryFalseFieldOfTheHeader) {
  const auto refused = [](const std::function<void(Index&)>& lie, const std::string& part) {
    const Folder folder;
    Index index;
    lie(index);
    folder.write("x.idx", index.bytes());
    folder.write("x.bin", kFive);
    const Error error = error_of([&] { TokenFile::open(folder / "x"); });
    EXPECT_EQ(error.kind(), Error::Kind::Data) << part;
    EXPECT_TRUE(contains(error.what(), part));
    EXPECT_TRUE(contains(error.what(), folder.path().string()));
  };

  refused([](Index& i) { i.magic[0] = 'X'; }, "MMIDIDX");
  refused([](Index& i) { i.version = 2; }, "index version 2");
  refused([](Index& i) { i.code = 7; }, "floating point");
  refused([](Index& i) { i.code = 0; }, "type code 0");
  refused([](Index& i) { i.code = 99; }, "type code 99");
  refused([](Index& i) { i.sequences = 3; }, "3 sequences");
  refused([](Index& i) { i.sequences = 0xFFFFFFFFFFFFFFFF; }, "sequences");
  refused([](Index& i) { i.documents = 0x2000000000000000; }, "document marks");
  refused(
      [](Index& i) {
        i.sequences = 0x1555555555555556;
        i.documents = 0;
      },
      "sequences");
  refused([](Index& i) { i.lengths[1] = -2; }, "the length -2");
  refused([](Index& i) { i.lengths[0] = 0x7FFFFFFF; }, "truncated");
  refused([](Index& i) { i.lengths[1] = 1; }, "describes 8");
  refused([](Index& i) { i.pointers[1] = 5; }, "begins at byte 5, expected 6");
  refused([](Index& i) { i.pointers[0] = -2; }, "begins at byte -2");
  refused([](Index& i) { i.marks[0] = 1; }, "document mark 0");
  refused([](Index& i) { i.marks[2] = 1; }, "end at 1");
  refused([](Index& i) { i.marks[1] = 9; }, "document mark 1");
  refused([](Index& i) { i.marks[1] = -1; }, "document mark 1");
  refused([](Index& i) { i.tail = "abc"; }, "does not fit");
}

TEST(TokenFile, RefusesTruncatedPairs) {
  const Folder folder;
  const std::string index = Index().bytes();

  for (std::size_t size = 0; size < index.size(); ++size) {
    folder.write("x.idx", index.substr(0, size));
    folder.write("x.bin", kFive);
    EXPECT_EQ(error_of([&] { TokenFile::open(folder / "x"); }).kind(), Error::Kind::Data) << size;
  }
  folder.write("x.idx", index);
  for (std::size_t size = 0; size < kFive.size(); ++size) {
    folder.write("x.bin", kFive.substr(0, size));
    EXPECT_EQ(error_of([&] { TokenFile::open(folder / "x"); }).kind(), Error::Kind::Data) << size;
  }
}

TEST(TokenFile, NamesTheMissingHalf) {
  const Folder folder;
  folder.write("x.idx", Index().bytes());

  const Error error = error_of([&] { TokenFile::open(folder / "x"); });

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "x.bin"));
}

TEST(TokenFile, SurvivesRandomDamage) {
  std::mt19937 random(23);
  const Folder folder;
  int opened = 0;

  for (int i = 0; i < 3000; ++i) {
    std::string index = Index().bytes(), bin = kFive;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      index[random() % index.size()] = static_cast<char>(random());
    if (random() % 4 == 0) index.resize(random() % (index.size() + 1));
    if (random() % 4 == 0) bin.resize(random() % (bin.size() + 1));
    folder.write("x.idx", index);
    folder.write("x.bin", bin);
    try {
      const auto file = TokenFile::open(folder / "x");
      // A file that is accepted can be read from beginning to end.
      all_of(*file);
      for (std::int64_t s = 0; s < file->sequences(); ++s) {
        ASSERT_LE(file->sequence_begin(s) + file->sequence_length(s), file->tokens());
      }
      ++opened;
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), Error::Kind::Data) << e.what();
    }
  }

  EXPECT_LT(opened, 3000);
}

TEST(TokenFile, NamesTheFirstIdBeyondTheVocabulary) {
  const Folder folder;
  folder.write("x.idx", Index().bytes());
  folder.write("x.bin", kFive);
  const auto file = TokenFile::open(folder / "x");

  const Error error = error_of([&] { file->check_ids(50257); });

  EXPECT_NO_THROW(file->check_ids(65500));
  EXPECT_NO_THROW(file->check_ids(100'000));
  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_TRUE(contains(error.what(), "token 4 has the id 65499"));
  EXPECT_TRUE(contains(error.what(), "0 to 50256"));
}

TEST(TokenFile, FindsNegativeIds) {
  const Folder folder;
  Index index;
  index.code = 4;
  index.pointers = {0, 12};
  folder.write("x.idx", index.bytes());
  folder.write("x.bin", raw<std::int32_t>({1, 2, -1, 4, 5}));

  EXPECT_TRUE(contains(error_of([&] { TokenFile::open(folder / "x")->check_ids(100); }).what(),
                       "token 2 has the id -1"));
}

TEST(TokenWriter, WritesMegatronsBytes) {
  const Folder folder;
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 65499};
  std::vector<std::byte> tokens;
  append_tokens(ids, TokenWidth::U16, tokens);

  TokenWriter writer(folder / "x", TokenWidth::U16);
  writer.begin_document();
  writer.add_to_document(3);
  writer.begin_document();
  writer.add_to_document(2);
  writer.write(tokens);
  writer.finish();

  EXPECT_EQ(bytes_of(folder / "x.idx"), Index().bytes());
  EXPECT_EQ(bytes_of(folder / "x.bin"), kFive);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"x.bin", "x.idx"}));
}

TEST(TokenWriter, ChoosesTheWidthAsMegatronDoes) {
  EXPECT_EQ(token_width(65499), TokenWidth::U16);
  EXPECT_EQ(token_width(65500), TokenWidth::I32);
}

TEST(TokenWriter, LeavesNothingBehindUnlessFinished) {
  const Folder folder;
  {
    TokenWriter writer(folder / "x", TokenWidth::I32);
    writer.begin_document();
  }

  EXPECT_TRUE(folder.names().empty());
}

/// A process that has begun to write a pair and does not continue.
class StuckWriter {
 public:
  explicit StuckWriter(const std::filesystem::path& prefix) : process_(::fork()) {
    if (process_ == 0) {
      const TokenWriter writer(prefix, TokenWidth::I32);
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(process_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  ~StuckWriter() { kill(); }
  StuckWriter(const StuckWriter&) = delete;
  StuckWriter& operator=(const StuckWriter&) = delete;
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
  }
  /// The name that it would give to a draft of `name`.
  [[nodiscard]] std::string draft(const std::string& name) const {
    return name + ".tmp-" + std::to_string(process_);
  }

 private:
  pid_t process_;
};

TEST(TokenWriter, RemovesWhatKilledWritersLeft) {
  const Folder folder;
  {
    StuckWriter killed(folder / "x");
    EXPECT_EQ(folder.names().size(), 2U);
    killed.kill();
  }
  EXPECT_EQ(folder.names().size(), 2U);

  TokenWriter(folder / "x", TokenWidth::I32).finish();

  EXPECT_EQ(folder.names(), (std::vector<std::string>{"x.bin", "x.idx"}));
}

TEST(TokenWriter, LeavesWhatOthersWrite) {
  const Folder folder;
  StuckWriter gone(folder / "y"), seen(folder / "x"), of_another_host(folder / "z");
  // This draft counts as in use, although no process with its number is visible.
  const std::string unseen = gone.draft("x.bin");
  gone.kill();
  std::filesystem::rename(folder / of_another_host.draft("z.bin"), folder / unseen);

  TokenWriter(folder / "x", TokenWidth::I32).finish();

  for (const auto& name : {unseen, seen.draft("x.bin")})
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  of_another_host.kill();
  TokenWriter(folder / "x", TokenWidth::I32).finish();
  EXPECT_FALSE(std::filesystem::exists(folder / unseen));
}

TEST(TokenWriter, RefusesDocumentsThatTheIndexCannotSay) {
  const Folder folder;
  TokenWriter writer(folder / "x", TokenWidth::I32);
  writer.begin_document();
  writer.add_to_document(0x7FFFFFFF);

  EXPECT_EQ(error_of([&] { writer.add_to_document(1); }).kind(), Error::Kind::Data);
}

std::string llmc_tokens(std::int32_t magic,
                        std::int32_t version,
                        std::int32_t count,
                        const std::string& tokens) {
  std::string out(1024, '\0');
  const std::int32_t head[] = {magic, version, count};
  std::memcpy(out.data(), head, sizeof(head));
  return out + tokens;
}

TEST(TokenFile, ReadsLlmcsFilesOfBothWidths) {
  const files::TempDir dir;
  files::write_atomic(dir.path() / "gpt2.bin",
                      llmc_tokens(20240520, 1, 3, std::string("\x01\x00\xff\xff\x50\xc4", 6)));
  files::write_atomic(dir.path() / "llama.bin",
                      llmc_tokens(20240801, 7, 1, std::string("\x01\xf4\x01\x00", 4)));

  const auto gpt2 = TokenFile::open(dir.path() / "gpt2.bin");
  const auto llama = TokenFile::open(dir.path() / "llama.bin");

  std::vector<std::int64_t> ids(3);
  gpt2->read(0, 3, ids.data());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{1, 65535, 50256}));
  EXPECT_EQ(gpt2->sequences(), 1);
  EXPECT_NO_THROW(gpt2->check_ids(65536));
  EXPECT_THROW(gpt2->check_ids(50257), Error);
  llama->read(0, 1, ids.data());
  EXPECT_EQ(ids[0], 128001);
}

TEST(TokenFile, ReadsTokensAloneAsNanoGptWritesThem) {
  const files::TempDir dir;
  files::write_atomic(dir.path() / "train.bin", std::string("\x01\x00\x50\xc4\x0d\x00", 6));

  const auto tokens = TokenFile::open(dir.path() / "train.bin");

  std::vector<std::int64_t> ids(3);
  tokens->read(0, 3, ids.data());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{1, 50256, 13}));
  EXPECT_EQ(tokens->sequences(), 1);
  EXPECT_THROW(tokens->check_ids(50256), Error);
}

/// `count` ids below `vocab`, with the smallest and the largest, as numbers of type T.
template <class T>
std::pair<std::string, Ids> ids_below(std::int64_t vocab, std::size_t count) {
  std::vector<T> numbers;
  std::uint64_t state = static_cast<std::uint64_t>(vocab);
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    numbers.push_back(static_cast<T>((state >> 33) % static_cast<std::uint64_t>(vocab)));
  }
  numbers.front() = 0;
  numbers.back() = static_cast<T>(vocab - 1);
  return {raw(numbers), Ids(numbers.begin(), numbers.end())};
}

// 40,000 numbers are more than the part of a file that is looked at.
TEST(TokenFile, FindsTheWidthOfTokensAloneByTheirHalves) {
  const files::TempDir dir;
  const auto read = [&](const std::string& content) {
    files::write_atomic(dir.path() / "x.bin", content);
    EXPECT_TRUE(is_bare_tokens(dir.path() / "x.bin"));
    return all_of(*TokenFile::open(dir.path() / "x.bin"));
  };
  for (const std::int64_t vocab : {4, 16, 65, 256, 1000, 50257, 65536, 70000, 128256, 262144}) {
    for (const std::size_t count : {32U, 1000U, 40000U}) {
      const auto [narrow, narrow_ids] =
          ids_below<std::uint16_t>(std::min<std::int64_t>(vocab, 65536), count);
      const auto [wide, wide_ids] = ids_below<std::uint32_t>(vocab, count);
      const auto [widest, widest_ids] = ids_below<std::int64_t>(vocab, count);
      EXPECT_EQ(read(narrow), narrow_ids) << vocab << " " << count;
      EXPECT_EQ(read(wide), wide_ids) << vocab << " " << count;
      EXPECT_EQ(read(widest), widest_ids) << vocab << " " << count;
    }
  }
  files::write_atomic(dir.path() / "x.bin", ids_below<std::uint32_t>(70000, 100).first + "ab");
  const Error cut = error_of([&] { TokenFile::open(dir.path() / "x.bin"); });
  EXPECT_TRUE(contains(cut.what(), "ids of 32 bits"));
}

TEST(TokenFile, SaysWhichIdsItsNumbersCanBe) {
  const files::TempDir dir;
  files::write_atomic(dir.path() / "x.bin", ids_below<std::uint16_t>(70, 100).first);
  EXPECT_EQ(TokenFile::open(dir.path() / "x.bin")->largest_id(), 65535);
  files::write_atomic(dir.path() / "x.bin", ids_below<std::uint32_t>(70, 100).first);
  EXPECT_GT(TokenFile::open(dir.path() / "x.bin")->largest_id(), 1'000'000'000);
  const Folder folder;
  folder.write("y.idx", Index().bytes());
  folder.write("y.bin", kFive);
  EXPECT_EQ(TokenFile::open(folder / "y")->largest_id(), 65535);
}

TEST(TokenFile, DoesNotTakeOtherFilesForTokensAlone) {
  const files::TempDir dir;
  const auto is_tokens = [&](const std::string& content) {
    files::write_atomic(dir.path() / "x.bin", content);
    return is_bare_tokens(dir.path() / "x.bin");
  };
  const std::string id("\x07\x01", 2), zeros("\0\0", 2);
  EXPECT_FALSE(is_tokens("some text that someone has named so"));
  EXPECT_FALSE(names_token_file(dir.path() / "x.bin"));  // it is read as text
  EXPECT_FALSE(is_tokens("PK\x03\x04" + zeros));
  EXPECT_FALSE(is_tokens(""));
  EXPECT_TRUE(is_tokens(id + zeros + id + id + zeros));
  files::write_atomic(dir.path() / "y.bin", id + zeros + id + "a");
  const Error odd = error_of([&] { TokenFile::open(dir.path() / "y.bin"); });
  EXPECT_TRUE(contains(odd.what(), "odd number of bytes"));
  files::write_atomic(dir.path() / "x.idx", "an index");
  EXPECT_FALSE(is_bare_tokens(dir.path() / "x.bin"));
}

TEST(TokenFile, RefusesLlmcsFilesWithFalseHeaders) {
  const files::TempDir dir;
  const std::string two("\x01\x00\x02\x00", 4);
  for (const std::string& content : {llmc_tokens(20240520, 1, 3, two),
                                     llmc_tokens(20240520, 1, 1, two),
                                     llmc_tokens(20240520, 1, -2, two),
                                     llmc_tokens(20240520, 2, 2, two),
                                     llmc_tokens(20240520, 1, 2147483647, two),
                                     llmc_tokens(20240520, 1, 2, "").substr(0, 500)}) {
    files::write_atomic(dir.path() / "x.bin", content);
    EXPECT_THROW(TokenFile::open(dir.path() / "x.bin"), Error);
  }
}

}  // namespace
}  // namespace tessera::data
