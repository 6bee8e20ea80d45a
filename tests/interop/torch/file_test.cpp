// SPDX-License-Identifier: Apache-2.0
// Files that torch wrote (data/make_torch_files.py), and files put together by hand.
#include "tessera/interop/torch/file.h"

#include <cstring>
#include <functional>
#include <map>

#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/interop/torch/pickle.h"

namespace tessera::interop::test {
namespace {

fs::path data(const std::string& name) {
  return tessera::test::source_dir() / "tests/interop/data" / name;
}

std::map<std::string, Weight> open(const fs::path& path) {
  std::map<std::string, Weight> out;
  for (Weight& weight : open_weight_file(path))
    out.emplace(weight.name, weight);
  return out;
}

template <class T>
std::vector<T> elements(const Weight& weight) {
  EXPECT_EQ(size_of(weight.dtype), sizeof(T)) << weight.name;
  std::vector<T> out(static_cast<std::size_t>(weight.numel()));
  weight.copy(0, weight.numel(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

class FilesOfTorch : public ::testing::TestWithParam<const char*> {};

TEST_P(FilesOfTorch, GiveEveryElementType) {
  const auto held = open(data(GetParam()));

  EXPECT_EQ(elements<double>(held.at("double")), std::vector<double>{0.1});
  EXPECT_EQ(elements<std::int64_t>(held.at("long")),
            (std::vector<std::int64_t>{-1, std::int64_t{1} << 40}));
  EXPECT_EQ(elements<std::int32_t>(held.at("int")), std::vector<std::int32_t>{-7});
  EXPECT_EQ(elements<std::int16_t>(held.at("short")), std::vector<std::int16_t>{300});
  EXPECT_EQ(elements<std::int8_t>(held.at("char")), std::vector<std::int8_t>{-3});
  EXPECT_EQ(elements<std::uint8_t>(held.at("byte")), std::vector<std::uint8_t>{200});
  EXPECT_EQ(elements<std::uint8_t>(held.at("bool")), (std::vector<std::uint8_t>{1, 0}));
  // 1 sign bit, 5 or 8 bits of exponent.
  EXPECT_EQ(elements<std::uint16_t>(held.at("half")), (std::vector<std::uint16_t>{0x3800, 0xC000}));
  EXPECT_EQ(elements<std::uint16_t>(held.at("bfloat")),
            (std::vector<std::uint16_t>{0x3FC0, 0x4380}));
  EXPECT_EQ(held.at("half").dtype, DType::F16);
  EXPECT_EQ(held.at("bfloat").dtype, DType::BF16);
  EXPECT_EQ(held.at("bool").dtype, DType::Bool);
}

TEST_P(FilesOfTorch, GiveViewsInRowMajorOrder) {
  const auto held = open(data(GetParam()));
  using Floats = std::vector<float>;

  EXPECT_EQ(elements<float>(held.at("base")), (Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(held.at("transposed").shape, (Shape{4, 3}));
  EXPECT_EQ(elements<float>(held.at("transposed")), (Floats{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(elements<float>(held.at("row")), (Floats{4, 5, 6, 7}));
  EXPECT_EQ(elements<float>(held.at("column")), (Floats{2, 6, 10}));
  EXPECT_EQ(elements<float>(held.at("expanded")), (Floats{3, 3, 3, 3, 3, 3}));
  EXPECT_EQ(elements<float>(held.at("scalar")), Floats{2.5F});
  EXPECT_EQ(held.at("scalar").shape, Shape{});
  EXPECT_EQ(held.at("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(elements<float>(held.at("parameter")), (Floats{1, -1}));
}

TEST_P(FilesOfTorch, NameWhatIsNestedAndPassOverTheRest) {
  const auto held = open(data(GetParam()));

  EXPECT_EQ(elements<float>(held.at("more.list.0")), std::vector<float>{9});
  EXPECT_EQ(elements<float>(held.at("more.5")), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_EQ(held.size(), 20U);
}

TEST_P(FilesOfTorch, KnowWhatIsTied) {
  const auto held = open(data(GetParam()));

  EXPECT_TRUE(held.at("tied").same_storage(held.at("base")));
  EXPECT_FALSE(held.at("transposed").same_storage(held.at("base")));
  EXPECT_FALSE(held.at("empty").same_storage(held.at("empty")));
}

TEST_P(FilesOfTorch, CutAnywhereAreRefused) {
  const files::TempDir dir;
  const std::string good = slurp(data(GetParam()));
  for (std::size_t size = 0; size < good.size(); size += size < 4000 ? 7 : 31) {
    spill(dir.path() / "cut.pt", good.substr(0, size));
    const Error error = error_of([&] { open_torch_file(dir.path() / "cut.pt"); });
    EXPECT_EQ(error.kind(), Error::Kind::Format) << size << ": " << error.text();
  }
}

TEST_P(FilesOfTorch, WithFlippedBitsAreReadOrRefusedAndNothingElse) {
  const files::TempDir dir;
  const std::string good = slurp(data(GetParam()));
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); at += 3) {
    std::string bad = good;
    bad[at] = static_cast<char>(static_cast<unsigned>(bad[at]) ^ (1U << at % 8));
    spill(dir.path() / "bad.pt", bad);
    try {
      for (const Weight& weight : open_torch_file(dir.path() / "bad.pt")) {
        std::vector<std::byte> bytes(weight.numel() > 1000 ? 0 : weight.bytes());
        if (!bytes.empty()) weight.copy(0, weight.numel(), bytes.data());
      }
    } catch (const Error& error) {
      const bool ours =
          error.kind() == Error::Kind::Format || error.kind() == Error::Kind::Unsupported;
      EXPECT_TRUE(ours) << at << ": " << error.text();
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         FilesOfTorch,
                         ::testing::Values("views.pt", "views_legacy.pt", "views_protocol4.pt"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(TorchFile, HasTheFoldersNameFromTheArchive) {
  const files::TempDir dir;
  spill(dir.path() / "a.bin",
        zip_of({{"whatever/version", "3\n"},
                {"whatever/data.pkl",
                 pickle_of(op::dict(
                     {{"w", op::tensor(op::storage("FloatStorage", "7", 1), 0, {1}, {1})}}))},
                {"whatever/data/7", le(0x3F800000, 4)}},
               {.comment = "a comment at the end"}));

  EXPECT_EQ(elements<float>(open(dir.path() / "a.bin").at("w")), std::vector<float>{1.0F});
}

TEST(TorchFile, ReadsZip64) {
  const files::TempDir dir;
  const std::string saturated = le(0xFFFFFFFF, 4);
  std::string zip = torch_zip(
      pickle_of(op::dict({{"w", op::tensor(op::storage("LongStorage", "0", 1), 0, {1}, {1})}})),
      {le(42, 8)});
  // The end record points to a zip64 one, which a locator finds.
  const std::size_t end = zip.size() - 22;
  std::uint32_t begin = 0, bytes = 0;
  std::memcpy(&bytes, zip.data() + end + 12, 4);
  std::memcpy(&begin, zip.data() + end + 16, 4);
  const std::string wide = "PK\x06\x06" + le(44, 8) + le(45, 2) + le(45, 2) + le(0, 4) + le(0, 4) +
                           le(3, 8) + le(3, 8) + le(bytes, 8) + le(begin, 8);
  const std::string locator = "PK\x06\x07" + le(0, 4) + le(end, 8) + le(1, 4);
  zip = zip.substr(0, end) + wide + locator + "PK\x05\x06" + le(0, 4) + le(0xFFFF, 2) +
        le(0xFFFF, 2) + saturated + saturated + le(0, 2);
  spill(dir.path() / "a.bin", zip);

  EXPECT_EQ(elements<std::int64_t>(open(dir.path() / "a.bin").at("w")),
            std::vector<std::int64_t>{42});
}

/// Returns a pickle as protocol 4 writes it: inside a frame with its size.
std::string framed(const std::string& value) {
  return "\x80\x04\x95" + le(value.size() + 1, 8) + value + ".";
}

TEST(TorchFile, ReadsTheStreamOfPicklesOfProtocolFour) {
  const files::TempDir dir;
  const std::string object =
      op::dict({{"w", op::tensor(op::storage("FloatStorage", "0", 1), 0, {1}, {1})}});
  spill(dir.path() / "a.bin",
        framed("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + framed(op::integer(1001)) +
            framed(op::dict({{"little_endian", "\x88"}})) + framed(object) +
            framed(op::list_of({op::text("0")})) + le(1, 8) + le(0x40000000, 4));

  EXPECT_EQ(elements<float>(open(dir.path() / "a.bin").at("w")), std::vector<float>{2.0F});
}

/// _rebuild_tensor_v3: elements of `type` in bytes.
std::string tensor_v3(const std::string& type, std::int64_t bytes, std::int64_t numel) {
  return op::global("torch._utils", "_rebuild_tensor_v3") +
         op::tuple({op::tuple({op::text("storage"),
                               op::global("torch.storage", "UntypedStorage"),
                               op::text("0"),
                               op::text("cpu"),
                               op::integer(bytes)}) +
                        "Q",
                    op::integer(0),
                    op::sizes({numel}),
                    op::sizes({1}),
                    op::kFalse,
                    op::global("collections", "OrderedDict") + op::kNothing + op::kCall,
                    op::global("torch", type)}) +
         op::kCall;
}

TEST(TorchFile, ReadsTypesThatHaveNoStorageOfTheirOwn) {
  const files::TempDir dir;
  const std::string bytes = le(65535, 2) + le(7, 2);
  spill(dir.path() / "a.bin",
        torch_zip(pickle_of(op::dict({{"w", tensor_v3("uint16", 4, 2)}})), {bytes}));
  spill(dir.path() / "long.bin",
        torch_zip(pickle_of(op::dict({{"w", tensor_v3("uint16", 4, 3)}})), {bytes}));
  spill(dir.path() / "f8.bin",
        torch_zip(pickle_of(op::dict({{"w", tensor_v3("float8_e4m3fn", 4, 4)}})), {bytes}));

  EXPECT_EQ(elements<std::uint16_t>(open(dir.path() / "a.bin").at("w")),
            (std::vector<std::uint16_t>{65535, 7}));
  const std::string far = error_of([&] { open(dir.path() / "long.bin"); }).text(),
                    other = error_of([&] { open(dir.path() / "f8.bin"); }).text();
  EXPECT_NE(far.find("reaches past the 2 elements"), std::string::npos) << far;
  EXPECT_NE(other.find("\"w\" is of torch.float8_e4m3fn"), std::string::npos) << other;
}

// The pickle stream counts an untyped storage in bytes, whatever its elements are.
TEST(TorchFile, ReadsTypesThatHaveNoStorageOfTheirOwnFromTheStreamOfPickles) {
  const files::TempDir dir;
  const std::string keys = op::list_of({op::text("0")});
  spill(dir.path() / "a.bin",
        torch_legacy(op::dict({{"w", tensor_v3("uint16", 4, 2)}, {"v", tensor_v3("uint32", 4, 1)}}),
                     keys,
                     le(4, 8) + le(65535, 2) + le(7, 2)));
  spill(dir.path() / "long.bin",
        torch_legacy(op::dict({{"w", tensor_v3("uint64", 8, 1)}}), keys, le(8, 8) + le(7, 4)));

  const auto read = open(dir.path() / "a.bin");

  EXPECT_EQ(elements<std::uint16_t>(read.at("w")), (std::vector<std::uint16_t>{65535, 7}));
  EXPECT_EQ(elements<std::uint32_t>(read.at("v")), std::vector<std::uint32_t>{7 * 65536 + 65535});
  EXPECT_NE(error_of([&] { open(dir.path() / "long.bin"); }).text().find("claims 8 elements"),
            std::string::npos);
}

TEST(TorchFile, SkipsObjectsThatAreNotTensors) {
  const files::TempDir dir;
  const std::string arguments =
      op::global("argparse", "Namespace") + ")\x81" + op::dict({{"lr", op::integer(1)}}) + "b";
  const std::string scalar =
      op::global("numpy.core.multiarray", "scalar") +
      op::tuple({op::global("numpy", "dtype") + op::tuple({op::text("f8"), "\x89", "\x88"}) + "R",
                 "C\x08" + std::string(8, '\1')}) +
      "R";
  const std::string set = op::global("builtins", "set") + op::tuple({op::list_of({"K\x01"})}) + "R";
  const std::string range =
      op::global("builtins", "range") + op::tuple({"K\x01", "K\x05", "K\x01"}) + "R";
  const std::string counts =
      op::global("collections", "defaultdict") + op::tuple({op::global("builtins", "list")}) + "R";
  spill(dir.path() / "a.bin",
        torch_zip(pickle_of(op::dict(
                      {{"args", arguments},
                       {"lr", scalar},
                       {"seen", set},
                       {"steps", range},
                       {"counts", counts},
                       {"w", op::tensor(op::storage("FloatStorage", "0", 1), 0, {1}, {1})}})),
                  {le(0x3F800000, 4)}));

  const auto held = open(dir.path() / "a.bin");

  EXPECT_EQ(held.size(), 1U);
  EXPECT_EQ(elements<float>(held.at("w")), std::vector<float>{1.0F});
}

TEST(TorchFile, NamesTensorsThatHaveNoPlainElements) {
  const files::TempDir dir;
  for (const auto& [function, kind] : std::vector<std::pair<std::string, std::string>>{
           {"_rebuild_qtensor", "a quantized tensor"},
           {"_rebuild_sparse_tensor", "a sparse tensor"},
           {"_rebuild_sparse_csr_tensor", "a sparse tensor"}}) {
    spill(dir.path() / "a.bin",
          torch_zip(pickle_of(op::dict({{"w", op::global("torch._utils", function) + ")R"}}))));

    for (const auto& read :
         {std::function<void()>([&] { open_torch_file(dir.path() / "a.bin"); }),
          std::function<void()>([&] { read_torch_file(dir.path() / "a.bin"); })}) {
      const Error error = error_of(read);
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported) << error.text();
      EXPECT_NE(error.text().find(kind), std::string::npos) << error.text();
    }
  }
}

/// Returns a tensor of one element with the bits of `metadata`, as torch saves it.
std::string tensor_with(const std::string& metadata) {
  return op::global("torch._utils", "_rebuild_tensor_v2") +
         op::tuple({op::storage("FloatStorage", "0", 1),
                    op::integer(0),
                    op::sizes({1}),
                    op::sizes({1}),
                    op::kFalse,
                    op::global("collections", "OrderedDict") + op::kNothing + op::kCall,
                    metadata}) +
         op::kCall;
}

TEST(TorchFile, WhoseTensorIsStillToBeNegatedIsRefusedByName) {
  const files::TempDir dir;
  const std::string element = le(0x3F800000, 4);
  const auto write = [&](const std::string& metadata) {
    const std::string object = op::dict({{"w", tensor_with(metadata)}});
    spill(dir.path() / "zip.bin", torch_zip(pickle_of(object), {element}));
    spill(dir.path() / "legacy.bin",
          torch_legacy(object, op::list_of({op::text("0")}), le(1, 8) + element));
  };
  for (const auto& [bit, word] : std::vector<std::pair<std::string, std::string>>{
           {"neg", "negative"}, {"conj", "conjugate"}}) {
    for (const char* file : {"zip.bin", "legacy.bin"}) {
      write(op::dict({{bit, op::kTrue}}));
      const Error error = error_of([&] { open_torch_file(dir.path() / file); });
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported) << error.text();
      EXPECT_NE(error.text().find("tensor \"w\" has the " + word + " bit"), std::string::npos)
          << error.text();
      EXPECT_EQ(error.fix(), "save tensor.resolve_" + bit + "()");

      write(op::dict({{bit, op::kFalse}}));
      EXPECT_EQ(elements<float>(open(dir.path() / file).at("w")), std::vector<float>{1.0F});
    }
  }
}

TEST(TorchFile, KeepsItsBytesMappedForAsLongAsATensorLives) {
  const files::TempDir dir;
  spill(dir.path() / "a.bin",
        torch_zip(pickle_of(op::dict(
                      {{"w", op::tensor(op::storage("FloatStorage", "0", 2), 1, {1}, {1})}})),
                  {le(0, 4) + le(0x40000000, 4)}));

  const Weight weight = open_weight_file(dir.path() / "a.bin").front();
  fs::remove(dir.path() / "a.bin");

  EXPECT_EQ(elements<float>(weight), std::vector<float>{2.0F});
}

}  // namespace
}  // namespace tessera::interop::test
