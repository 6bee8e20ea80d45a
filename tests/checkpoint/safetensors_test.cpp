// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/safetensors.h"

#include "checkpoint/support.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint::test {
namespace {

/// Returns a file with this header, which may be invalid, and the given number of data bytes.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, 'x');
}
std::string entry(const std::string& name,
                  const std::string& dtype,
                  const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

Error refusal(const std::string& content) {
  const files::TempDir dir;
  spill(dir.path() / "lie.safetensors", content);
  const Error error = error_of([&] { SafetensorsFile file(dir.path() / "lie.safetensors"); });
  EXPECT_EQ(error.kind(), Error::Kind::Format) << error.text();
  EXPECT_NE(std::string(error.what()).find("lie.safetensors"), std::string::npos) << error.text();
  return error;
}
/// Checks that the file is rejected with a text that contains `words` and names tensor "w".
void expect_lie(const std::string& header, std::size_t data_bytes, const std::string& words) {
  const Error error = refusal(file_of(header, data_bytes));
  EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.text();
  EXPECT_NE(std::string(error.what()).find("\"w\""), std::string::npos) << error.text();
}

TEST(Safetensors, WhatIsWrittenReadsBack) {
  const files::TempDir dir;
  const fs::path path = dir.path() / "a.safetensors";
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorBytes> tensors;
  for (const auto& spec : small_model()) {
    memory.push_back(values(spec));
    tensors.push_back({spec.name, spec.dtype, spec.shape, memory.back()});
  }

  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path);

  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& tensor : tensors) {
    const TensorEntry* found = file.find(tensor.name);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->dtype, tensor.dtype);
    EXPECT_TRUE(std::ranges::equal(file.bytes(*found), tensor.bytes));
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.data_begin() % 8, 0U);
}

TEST(Safetensors, WideTypesComeFirstThenNames) {
  const files::TempDir dir;
  const std::vector<std::byte> bytes(8);
  const auto one = [&](const char* name, DType dtype) {
    return TensorBytes{name, dtype, {1}, std::span(bytes).first(size_of(dtype))};
  };

  write_safetensors(
      dir.path() / "a",
      {one("a", DType::Bool), one("c", DType::F32), one("b", DType::F32), one("d", DType::I64)},
      {});

  std::vector<std::string> names;
  const SafetensorsFile file(dir.path() / "a");
  for (const auto& e : file.entries())
    names.push_back(e.name);
  EXPECT_EQ(names, (std::vector<std::string>{"d", "b", "c", "a"}));
}

TEST(Safetensors, ReadsFilesOfOtherPrograms) {
  const fs::path golden = tessera::test::source_dir() / "tests/golden/reference/models";
  int files = 0;
  for (const auto& at : fs::recursive_directory_iterator(golden)) {
    if (at.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(at.path());
    EXPECT_FALSE(file.entries().empty()) << at.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(Safetensors, NamesMayHoldAnyCharacter) {
  const files::TempDir dir;
  const std::vector<std::byte> bytes(4);
  const std::string name = "quote\" slash\\ line\n tab\t h\xC3\xA4t \xF0\x9F\x8D\x8E";

  write_safetensors(dir.path() / "a", {{name, DType::F32, {}, bytes}}, {});

  EXPECT_NE(SafetensorsFile(dir.path() / "a").find(name), nullptr);
}

TEST(Safetensors, EscapesAreUnderstood) {
  const files::TempDir dir;
  spill(dir.path() / "a",
        file_of("{" + entry("\\u0077\\u00e4\\ud83c\\udf4e\\/", "F32", "[1]", "[0,4]") + "}", 4));

  EXPECT_NE(SafetensorsFile(dir.path() / "a").find("w\xC3\xA4\xF0\x9F\x8D\x8E/"), nullptr);
}

TEST(Safetensors, EmptyTensorsAndScalarsAreLegal) {
  const files::TempDir dir;
  const std::string header = "{" + entry("none", "F32", "[0,7]", "[0,0]") + "," +
                             entry("one", "F32", "[]", "[0,4]") + "}   ";
  spill(dir.path() / "a", file_of(header, 4));

  const SafetensorsFile file(dir.path() / "a");

  EXPECT_EQ(file.bytes(*file.find("none")).size(), 0U);
  EXPECT_EQ(file.bytes(*file.find("one")).size(), 4U);
}

TEST(SafetensorsLies, AboutTheHeadersLength) {
  const std::string good = file_of("{" + entry("w", "F32", "[1]", "[0,4]") + "}", 4);
  for (const std::uint64_t length : {~0ULL,
                                     1ULL << 63,
                                     100'000'001ULL,
                                     static_cast<unsigned long long>(good.size()),
                                     0ULL,
                                     1ULL}) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, 8);
    refusal(bad);
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    refusal(good.substr(0, size));
}

TEST(SafetensorsLies, APointerOfGitLfsIsNamed) {
  const Error error =
      refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n");
  EXPECT_NE(error.fix().find("git lfs pull"), std::string::npos) << error.text();
}

TEST(SafetensorsLies, AboutOffsets) {
  expect_lie("{" + entry("w", "F32", "[2]", "[0,8]") + "}", 4, "claims bytes [0, 8) of 4");
  expect_lie("{" + entry("w", "F32", "[1]", "[4,0]") + "}", 4, "claims bytes [4, 0)");
  expect_lie("{" + entry("w", "F32", "[1]", "[4,8]") + "}", 8, "hole");
  expect_lie(
      "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("w", "F32", "[2]", "[4,12]") + "}",
      12,
      "inside");
  expect_lie("{" + entry("w", "F32", "[1]", "[0,18446744073709551615]") + "}", 4, "63 bits");
  const Error tail = refusal(file_of("{" + entry("w", "F32", "[1]", "[0,4]") + "}", 9));
  EXPECT_NE(std::string(tail.what()).find("5 bytes follow"), std::string::npos) << tail.text();
}

TEST(SafetensorsLies, AboutSizes) {
  expect_lie("{" + entry("w", "F32", "[3]", "[0,8]") + "}", 8, "needs 12 bytes but claims 8");
  expect_lie("{" + entry("w", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0, "overflows");
  expect_lie("{" + entry("w", "F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]") + "}",
             0,
             "overflows");
  refusal(file_of("{" + entry("w", "F32", "[-1]", "[0,4]") + "}", 4));
  refusal(file_of("{" + entry("w", "F32", "[1.0]", "[0,4]") + "}", 4));
  refusal(file_of("{" + entry("w", "F32", "[1e0]", "[0,4]") + "}", 4));
}

TEST(SafetensorsLies, AboutNames) {
  const Error twice = refusal(file_of(
      "{" + entry("w", "F32", "[1]", "[0,4]") + "," + entry("w", "F32", "[1]", "[4,8]") + "}", 8));
  EXPECT_NE(std::string(twice.what()).find("appears twice"), std::string::npos) << twice.text();
  refusal(file_of(
      "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4));
}

TEST(SafetensorsLies, DtypesThatCannotBeReadAreNamed) {
  for (const std::string dtype : {"F8_E4M3", "F8_E5M2", "C64", "F4", "F6_E2M3"}) {
    expect_lie("{" + entry("w", dtype, "[4]", "[0,4]") + "}",
               4,
               "\"" + dtype + "\", which tessera does not read");
  }
  expect_lie("{" + entry("w", "FLOAT", "[1]", "[0,4]") + "}", 4, "which is not a safetensors type");
}

TEST(SafetensorsLies, BrokenJson) {
  for (const std::string header : {"{",
                                   "{}x",
                                   "[]",
                                   "{\"w\"}",
                                   "{\"w\":}",
                                   "{\"w\":{}}",
                                   "{\"w\":[1]}",
                                   "{\"w\":{\"dtype\":1}}",
                                   "{\"w\":{\"shape\":[1,]}}",
                                   "{,}",
                                   "{\"a\\q\":{}}",
                                   "{\"\\ud800\":{}}",
                                   "{\"\\u12\":{}}",
                                   "{\"w\n\":{}}",
                                   "{\"w\":{\"data_offsets\":[0,4,8]}}",
                                   "{\"\xFF\":{}}",
                                   " {}",
                                   "{\"__metadata__\":{\"a\":1}}"}) {
    refusal(file_of(header, 0));
  }
}

TEST(SafetensorsLies, DeepNestingCostsNothing) {
  refusal(file_of("{\"w\":" + std::string(10'000'000, '['), 0));
  refusal(file_of(
      "{\"w\":{\"note\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}}", 0));
}

TEST(SafetensorsLies, AnythingButAPlainFileIsRefused) {
  const files::TempDir dir;
  ::mkfifo((dir.path() / "pipe").c_str(), 0600);

  EXPECT_EQ(error_of([&] { SafetensorsFile file(dir.path() / "pipe"); }).kind(),
            Error::Kind::Format);
  EXPECT_EQ(error_of([&] { SafetensorsFile file(dir.path()); }).kind(), Error::Kind::Format);
  EXPECT_EQ(error_of([&] { SafetensorsFile file(dir.path() / "absent"); }).kind(),
            Error::Kind::Format);
}

TEST(SafetensorsWriter, RefusesDoubledNamesAndAnExistingFile) {
  const files::TempDir dir;
  const std::vector<std::byte> bytes(4);
  const TensorBytes one{"w", DType::F32, {1}, bytes};
  write_safetensors(dir.path() / "a", {one}, {});

  EXPECT_EQ(error_of([&] {
              write_safetensors(dir.path() / "b", {one, one}, {});
            }).kind(),
            Error::Kind::Bug);
  EXPECT_EQ(error_of([&] { write_safetensors(dir.path() / "a", {one}, {}); }).kind(),
            Error::Kind::Io);
}

}  // namespace
}  // namespace tessera::checkpoint::test
