// SPDX-License-Identifier: Apache-2.0
// Files that would cause unbounded work (base/budget.h) are refused with their place, in little
// memory.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/peak_memory.h"
#include "support/text_files.h"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/budget.h"
#include "tessera/data/chunks.h"
#include "tessera/data/records.h"
#include "tessera/data/sources.h"
#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/sentencepiece_file.h"

namespace tessera::data {
namespace {

using Json = nlohmann::json;
using test::contains;
using test::error_of;
using test::Folder;

struct Row {
  const char* reason;
  std::function<void()> read;
};

/// What a text may grow to is 64 MB for short ones, and the rest of the work is small.
constexpr std::int64_t kMostBytes = std::int64_t{400} << 20;

void expect_refusals(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.reason);
    const Error error = error_of(row.read);
    EXPECT_TRUE(error.kind() == Error::Kind::Data || error.kind() == Error::Kind::Format)
        << error.text();
    EXPECT_TRUE(contains(error.what(), row.reason)) << error.text();
    EXPECT_FALSE(error.fix().empty());
    EXPECT_LE(
        tessera::test::peak_growth([&] { return error_of(row.read).kind() != Error::Kind::Bug; }),
        kMostBytes);
  }
}

/// Encodes "aaaa" with these normalizers before a vocabulary of bytes.
void encode_with(const Json& normalizers) {
  const Json file = {
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", Json::array()}}}};
  const text::tokenizers::Pipeline pipeline(file, "tokenizer.json");
  (void)pipeline.encode("aaaa");
}

TEST(Budgets, HoldForNormalizersThatExpand) {
  const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json anywhere = {
      {"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", std::string(1 << 20, 'b')}};
  const Json before = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'b')}};
  const char* const reason = "the tokenizer's normalizer: makes a text of";

  expect_refusals({{reason, [&] { encode_with(Json(60, twice)); }},
                   {reason, [&] { encode_with(Json(1, anywhere)); }},
                   {reason, [&] { encode_with(Json(100, before)); }}});
  EXPECT_NO_THROW(encode_with(Json(4, twice)));
}

TEST(Budgets, HoldForTokens) {
  const std::string long_one(10 << 20, 'a');
  // A piece with its text, inside of a model; both are fields of bytes.
  const auto field = [](const std::string& bytes) {
    std::string size;
    std::uint64_t rest = bytes.size();
    for (; rest > 127; rest >>= 7)
      size += static_cast<char>(0x80 | (rest & 127));
    return "\x0a" + size + static_cast<char>(rest) + bytes;
  };
  const Json file = {
      {"model", {{"type", "BPE"}, {"vocab", {{long_one, 0}}}, {"merges", Json::array()}}}};

  expect_refusals(
      {{"has a piece of 10485760 bytes",
        [&] { text::tokenizers::read_sentencepiece(field(field(long_one)), "spm.model"); }},
       {"has a token of 10485760 bytes",
        [&] { text::tokenizers::Pipeline(file, "tokenizer.json"); }}});
}

/// Reads a file of records of this format from memory.
void read_records(const char* format, const std::string& bytes) {
  const RecordSink sink = {.json = [](std::string_view, std::int64_t) {},
                           .value = [](const json::Value&, std::int64_t) {},
                           .bad = [](const Error& error) { throw error; },
                           .blank = [] {}};
  record_formats().get(format).read({bytes, "x.data"}, sink);
}

TEST(Budgets, HoldForLinesAndColumns) {
  std::string columns = "a0";
  for (int i = 1; i < 100'000; ++i)
    columns += fmt::format(",a{}", i);
  const std::string line = "\n" + std::string(budget::kLineBytes + 1, 'a');

  expect_refusals({{"x.data:1: 100000 columns", [&] { read_records("csv", columns + "\n1"); }},
                   {"x.data:2: a line of 64.0 MiB", [&] { read_records("jsonl", line); }}});
}

TEST(Budgets, HoldForTextsWithoutWhiteSpace) {
  const Folder folder;
  const std::string text(budget::kLineBytes + Chunker::kChunkBytes + 1, 'a');
  for (const char* name : {"a.txt", "a.jsonl"}) {
    SCOPED_TRACE(name);
    const std::vector<Source> sources = expand_sources({folder.write(name, text)});
    Chunker chunker(sources, *test::gpt2(), "text");
    Chunk chunk;

    const Error error = error_of([&] { chunker.next(chunk); });

    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_TRUE(contains(error.what(), std::string(name) + ": from byte")) << error.text();
  }
}

/// A gzip file of this many zeros.
std::string bomb(std::size_t zeros) {
  const std::string block(1 << 20, '\0');
  std::string out(zeros / 500 + 4096, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (std::size_t done = 0; done < zeros; done += block.size()) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));  // NOLINT
    stream.avail_in = static_cast<uInt>(block.size());
    deflate(&stream, done + block.size() < zeros ? Z_NO_FLUSH : Z_FINISH);
  }
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Budgets, HoldForCompressedFiles) {
  const std::string small = bomb(std::size_t{32} << 20), large = bomb(std::size_t{192} << 20);

  expect_refusals({{"x.gz: ", [&] {
                      std::string kept;
                      decompressed(large, "x.gz", kept);
                    }}});
  std::string kept;
  EXPECT_EQ(decompressed(small, "x.gz", kept).size(), std::size_t{32} << 20);
}

TEST(Budgets, HoldForSparseFilesAndDevices) {
  const Folder folder;
  const std::string text = folder.write("a.txt", "text\n"), lines = folder.write("a.jsonl", "{}\n");
  for (const std::string& path : {text, lines})
    std::filesystem::resize_file(path, std::uintmax_t{1} << 40);

  expect_refusals({{"is sparse: from byte", [&] { expand_sources({text}); }},
                   {"is sparse: from byte", [&] { expand_sources({folder.path()}); }},
                   {"is sparse: from byte", [&] { record_files({lines}, Split::Train); }},
                   {"a file of 1.0 TiB", [&] { files::read_within(text); }},
                   {"/dev/zero: a device or pipe", [] { files::read_within("/dev/zero"); }}});
  EXPECT_EQ(files::read_within(folder.write("b.txt", "text")), "text");
}

}  // namespace
}  // namespace tessera::data
