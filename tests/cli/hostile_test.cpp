// SPDX-License-Identifier: Apache-2.0
// More than a hundred malicious files, each with one false claim: they are rejected with the file's
// name and the reason, before memory is allocated for what they claim. There are 28 safetensors
// files, 28 pickles, 20 zip files, 14 indexes, 18 manifests and 17 token files.
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include "support/peak_memory.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/manifest.h"
#include "tessera/data/token_file.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/weights.h"

namespace tessera::interop::test {
namespace {

/// The reason and the bytes of a bad file, and the name in the error if it is another file's.
struct Bad {
  std::string reason, content, file = {};
};

// Memory for code that is loaded on first use (10 MB if the program was not in the page cache) and
// for the reader's tables; the largest claims are of 100 MB to exabytes.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
#else
constexpr std::int64_t kMostBytes = std::int64_t{32} << 20;
#endif

/// Writes each of `bad` to `file` and reads it.
void expect_refusals(const fs::path& folder,
                     const std::string& file,
                     std::size_t count,
                     const std::vector<Bad>& bad,
                     const std::function<void()>& read) {
  EXPECT_EQ(bad.size(), count);
  for (const Bad& one : bad) {
    SCOPED_TRACE(one.reason);
    spill(folder / file, one.content);

    const Error error = error_of(read);
    const std::int64_t grown =
        tessera::test::peak_growth([&] { return error_of(read).kind() != Error::Kind::Bug; });

    EXPECT_TRUE(error.kind() == Error::Kind::Format || error.kind() == Error::Kind::Unsupported ||
                error.kind() == Error::Kind::Data)
        << error.text();
    const std::string what = error.what();
    EXPECT_NE(what.find(one.file.empty() ? file : one.file), std::string::npos) << what;
    EXPECT_NE(what.find(one.reason), std::string::npos) << what;
    EXPECT_GE(grown, 0) << what;
    EXPECT_LE(grown, kMostBytes) << what;
  }
}

std::string entry(const std::string& name,
                  const std::string& dtype,
                  const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}
/// Returns a safetensors file with this header and the given number of data bytes.
std::string tensors(const std::string& header, std::size_t data) {
  return le(header.size(), 8) + header + std::string(data, '\0');
}
std::string one(const std::string& dtype,
                const std::string& shape,
                const std::string& offsets,
                std::size_t data) {
  return tensors("{" + entry("w", dtype, shape, offsets) + "}", data);
}

TEST(Hostile, SafetensorsAreRefused) {
  const files::TempDir dir;
  const std::string good = one("F32", "[1]", "[0,4]", 4), rest = good.substr(8);
  const std::string f32 = entry("w", "F32", "[1]", "[0,4]");
  std::string dims = "[1";
  for (int i = 0; i < 64; ++i)
    dims += ",1";

  expect_refusals(
      dir.path(),
      "x.safetensors",
      28,
      {{"0 bytes are too few", ""},
       {"7 bytes are too few", good.substr(0, 7)},
       {"its header claims 9223372036854775808 bytes", le(std::uint64_t{1} << 63, 8) + rest},
       {"its header claims 18446744073709551615 bytes", le(UINT64_MAX, 8) + rest},
       {"its header claims 100000001 bytes", le(100'000'001, 8) + rest},
       {"claims bytes [0, 8) of 4", one("F32", "[2]", "[0,8]", 4)},
       {"claims bytes [4, 0)", one("F32", "[1]", "[4,0]", 4)},
       {"hole", one("F32", "[1]", "[4,8]", 8)},
       {"inside",
        tensors("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("w", "F32", "[2]", "[4,12]") +
                    "}",
                12)},
       {"a number that does not fit 63 bits", one("F32", "[1]", "[0,18446744073709551615]", 4)},
       {"a number that does not fit 63 bits", one("F32", "[9223372036854775808]", "[0,4]", 4)},
       {"5 bytes follow", one("F32", "[1]", "[0,4]", 9)},
       {"needs 12 bytes but claims 8", one("F32", "[3]", "[0,8]", 8)},
       {"overflows", one("F32", "[4294967296,4294967296]", "[0,0]", 0)},
       {"overflows", one("F32", "[0,4611686018427387904,4611686018427387904]", "[0,0]", 0)},
       {"appears twice", tensors("{" + f32 + "," + entry("w", "F32", "[1]", "[4,8]") + "}", 8)},
       {"\"F8_E4M3\", which tessera does not read", one("F8_E4M3", "[4]", "[0,4]", 4)},
       {"\"C64\", which tessera does not read", one("C64", "[1]", "[0,8]", 8)},
       {"\"FLOAT\", which is not a safetensors type", one("FLOAT", "[1]", "[0,4]", 4)},
       {"a third offset", one("F32", "[1]", "[0,4,8]", 8)},
       {"lacks its dtype, shape or two data_offsets", tensors("{\"w\":{}}", 0)},
       {"more than 64 dims", one("F32", dims + "]", "[0,4]", 4)},
       {"expected a whole number", one("F32", "[-1]", "[0,4]", 4)},
       {"invalid UTF-8", tensors("{\"\xFF\":{}}", 0)},
       {"half a surrogate pair", tensors(R"({"\ud800":{}})", 0)},
       {"unknown escape", tensors(R"({"a\q":{}})", 0)},
       {"control character in a string", tensors("{\"w\n\":{}}", 0)},
       {"expected nothing more", tensors("{}x", 0)}},
      [&] { interop::open_weight_file(dir.path() / "x.safetensors"); });
}

std::string call(const std::string& module, const std::string& name) {
  return op::global(module, name) + op::tuple({op::text("touch owned")}) + op::kCall;
}
/// Returns a file whose pickle is this value and whose only storage has 16 bytes.
std::string pickled(const std::string& value) {
  return torch_zip(pickle_of(value), {std::string(16, 'x')});
}
std::string tensor(const std::string& storage,
                   std::int64_t offset,
                   const Shape& shape,
                   const Shape& strides) {
  return pickled(op::dict({{"w", op::tensor(storage, offset, shape, strides)}}));
}

TEST(Hostile, PicklesAreRefused) {
  const files::TempDir dir;
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const std::string floats = op::storage("FloatStorage", "0", 4);
  const std::string w = op::tensor(floats, 0, {1}, {1});
  const std::string ordered = op::global("collections", "OrderedDict");
  std::string deep;
  for (int i = 0; i < 20'000; ++i)
    deep += "](";

  expect_refusals(
      dir.path(),
      "x.bin",
      28,
      {{"asks for \"os.system\"", pickled(call("os", "system"))},
       {"asks for \"posix.system\"", pickled(call("posix", "system"))},
       {"asks for \"builtins.eval\"", pickled(call("builtins", "eval"))},
       {"asks for \"__builtin__.exec\"", pickled(call("__builtin__", "exec"))},
       {"asks for \"subprocess.Popen\"", pickled(call("subprocess", "Popen"))},
       {"asks for \"torch.load\"", pickled(call("torch", "load"))},
       {"INST", pickled("(ios\nsystem\n")},
       {"OBJ", pickled("(" + ordered + "o")},
       {"NEWOBJ", pickled(ordered + ")\x81")},
       {"EXT1", pickled("\x82\x01")},
       {"PERSID", pickled("Pid\n")},
       {"wants 9223372036854775808 bytes", pickled("\x8d" + le(std::uint64_t{1} << 63, 8))},
       {"wants 4294967295 bytes", pickled("X" + le(UINT32_MAX, 4) + "abc")},
       {"a name without an end", pickled("cos")},
       {"without its mark", pickled("t")},
       {"a key without a value", pickled("}(" + op::text("k") + "u")},
       {"value 5 is used before", pickled("h\x05")},
       {"not UTF-8", pickled("X" + le(2, 4) + "\xc3\x28")},
       {"nested more than 32 levels", pickled(deep + "N" + std::string(20'000, 'e'))},
       {"the file has 16 bytes of it",
        tensor(op::storage("FloatStorage", "0", kHuge), 0, {kHuge}, {1})},
       {"reaches past the 4 elements", tensor(floats, 0, {5}, {1})},
       {"reaches past the 4 elements", tensor(floats, INT64_MAX, {1}, {1})},
       {"overflows", tensor(floats, 0, {kHuge, 4}, {0, 0})},
       {"a shape of -1", tensor(floats, 0, {-1}, {1})},
       {"strides of -1", tensor(floats, 0, {2}, {-1})},
       {"65 dims", tensor(floats, 0, Shape(65, 1), Shape(65, 1))},
       {"refers to missing storage",
        tensor(op::storage("FloatStorage", "../../etc/passwd", 4), 0, {1}, {1})},
       {"tensor \"w\" is there twice", pickled(op::dict({{"w", w}, {"w", w}}))}},
      [&] { interop::open_torch_file(dir.path() / "x.bin"); });
  EXPECT_FALSE(fs::exists("owned"));
}

TEST(Hostile, ZipFilesAreRefused) {
  const files::TempDir dir;
  const ZipPart good{"m/data.pkl", pickle_of("}")};
  const auto lie = [&](auto change) {
    ZipPart part = good;
    change(part);
    return zip_of({part});
  };
  const auto named = [&](const char* name) { return zip_of({good, {name, "x"}}); };
  // The header of the second entry is inside the bytes of the first one.
  const std::string inner = zip_of({{"m/data/0", "0123456789abcdef"}});
  ZipPart hidden{"m/data/0", "0123456789abcdef"};
  hidden.local = static_cast<std::int64_t>(30 + std::string("m/data/1").size());

  expect_refusals(
      dir.path(),
      "x.bin",
      20,
      {{"claims 4294967280 bytes", lie([](auto& p) { p.stored = p.size = 0xFFFFFFF0; })},
       {"claims 9223372036854775808 bytes", lie([](auto& p) {
          p.stored = p.size = 0xFFFFFFFF;
          p.central_extra =
              le(1, 2) + le(16, 2) + le(std::uint64_t{1} << 63, 8) + le(std::uint64_t{1} << 63, 8);
        })},
       {"does not begin at byte 2147483647", lie([](auto& p) { p.local = 0x7FFFFFFF; })},
       {"is compressed", lie([](auto& p) { p.method = 8; })},
       {"is encrypted", lie([](auto& p) { p.flags = 1; })},
       {"another name in its own header", lie([](auto& p) { p.local_name = "m/data.pkx"; })},
       {"leads elsewhere", named("../data.pkl")},
       {"leads elsewhere", named("m/../../data.pkl")},
       {"leads elsewhere", named("/etc/passwd")},
       {"leads elsewhere", named("m\\..\\data.pkl")},
       {"claims 65535 entries", zip_of({good}, {.entries = 0xFFFF})},
       {"longer than its entries", zip_of({good}, {.entries = 0})},
       {"past its own end record", zip_of({good}, {.directory_bytes = 0xFFFFFFF0})},
       {"zip64 record is not where",
        zip_of({good}, {.before_end = "PK\x06\x07" + le(0, 4) + le(UINT64_MAX, 8) + le(1, 4)})},
       {"is there twice", zip_of({good, good})},
       {"two data.pkl", zip_of({good, {"n/data.pkl", pickle_of("}")}})},
       {"without data.pkl", zip_of({{"m/constants.pkl", "x"}})},
       {"no directory at its end", "PK\x03\x04 and nothing more"},
       {"lies inside of another one",
        zip_of({{"m/data/1", inner.substr(0, 30 + 8 + 16)}, hidden, good})},
       {"another byte order", zip_of({good, {"m/byteorder", "big"}})}},
      [&] { interop::open_torch_file(dir.path() / "x.bin"); });
}

TEST(Hostile, IndexesAreRefused) {
  const files::TempDir dir;
  const std::byte byte{};
  checkpoint::write_safetensors(
      dir.path() / "a.safetensors", {{"w", DType::U8, {1}, {&byte, 1}}}, {});
  const auto map = [](const std::string& members) { return "{\"weight_map\": {" + members + "}}"; };
  const auto leads = [&](const std::string& path) { return map("\"w\": \"" + path + "\""); };
  const std::string wrong = "the file of tensor \"w\" is";

  expect_refusals(
      dir.path(),
      "model.safetensors.index.json",
      14,
      {{wrong, leads("../a.safetensors")},
       {wrong, leads("/etc/passwd")},
       {wrong, leads("..")},
       {wrong, leads(".")},
       {wrong, leads("")},
       {wrong, leads("x/../a.safetensors")},
       {wrong, leads("a.safetensors/")},
       {wrong, leads("a.safetensors\\u0000")},
       {wrong, map("\"w\": 3")},
       {"b.safetensors does not exist", leads("b.safetensors"), "b.safetensors"},
       {"places tensor \"v\"", map("\"w\": \"a.safetensors\", \"v\": \"a.safetensors\"")},
       {"no object \"weight_map\"", "[]"},
       {"no object \"weight_map\"", "{\"weight_map\": {}}"},
       {"model.safetensors.index.json", std::string(100'000, '[')}},
      [&] { interop::open_weights(dir.path()); });
}

/// Adds a new checksum, as a forger would.
std::string sealed(const std::string& text) {
  const std::string body = text.substr(0, text.rfind("\"checksum\""));
  const std::string sum = files::hex64(files::xxh3(std::as_bytes(std::span(body))));
  return body + "\"checksum\": \"xxh3:" + sum + "\"\n}\n";
}

TEST(Hostile, ManifestsAreRefused) {
  const files::TempDir dir;
  const std::string good =
      slurp(save_model(dir.path(), 2, {{"w", DType::F32, {4, 4}}}, columns, 2) / "manifest.json");
  const auto forged = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return sealed(text.replace(at, from.size(), to));
  };
  const auto leads = [&](const char* path) { return forged("rank-00000.safetensors", path); };
  std::string dims = "[4, 4";
  for (int i = 0; i < 64; ++i)
    dims += ", 1";
  const std::string file = "is not of the form rank-00000.safetensors";
  std::string unsealed = good;
  unsealed[unsealed.find("\"step\": 2") + 8] = '3';

  expect_refusals(
      dir.path(),
      "manifest.json",
      18,
      {{file, leads("../../etc/passwd")},
       {file, leads("/etc/passwd")},
       {file, leads("../rank-00000.safetensors")},
       {file, leads("rank-00000.safetensors/..")},
       {file, leads("manifest.json")},
       {"a version of the format that this program does not read",
        forged("\"version\": 2", "\"version\": 3")},
       {"expected a whole number", forged("\"step\": 2", "\"step\": -2")},
       {"unknown dtype", forged("\"dtype\": \"F32\"", "\"dtype\": \"F99\"")},
       {"a shape that overflows", forged("[4, 4]", "[4294967296, 4294967296]")},
       {"a number that does not fit 63 bits", forged("[4, 4]", "[99999999999999999999]")},
       {"more than 64 dims", forged("[4, 4]", dims + "]")},
       {"a piece lacks checksums", forged("\"xxh3\": [", "\"xxh3\": [\"0000000000000000\", ")},
       {"unknown key \"tensor\"", forged("\"tensors\"", "\"tensor\"")},
       {"expected the two ends of a range", forged("\"range\": [0, 8]", "\"range\": [0]")},
       {"twice", forged("\"box\": [[0, 2], [4, 4]]", "\"box\": [[0, 0], [4, 2]]")},
       {"share elements", forged("\"box\": [[0, 2], [4, 4]]", "\"box\": [[0, 1], [4, 3]]")},
       {"do not match the checksum", unsealed},
       {"it is truncated", good.substr(0, 20)}},
      [&] {
        const fs::path path = dir.path() / "manifest.json";
        checkpoint::check_cover(
            checkpoint::read_manifest(path), Error::Kind::Format, path.string());
      });
}

/// A Megatron index, field by field: two sequences of 3 and 2 tokens of 16 bits.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1, code = 8, sequences = 2, documents = 3;
  std::array<std::int64_t, 2> lengths = {3, 2}, pointers = {0, 6};
  std::array<std::int64_t, 3> marks = {0, 1, 2};
  std::string tail = {};

  [[nodiscard]] std::string bytes() const {
    std::string out = magic + le(version, 8) + le(code, 1) + le(sequences, 8) + le(documents, 8);
    for (const std::int64_t length : lengths)
      out += le(static_cast<std::uint64_t>(length), 4);
    for (const std::int64_t pointer : pointers)
      out += le(static_cast<std::uint64_t>(pointer), 8);
    for (const std::int64_t mark : marks)
      out += le(static_cast<std::uint64_t>(mark), 8);
    return out + tail;
  }
};

TEST(Hostile, IndexesOfTokensAreRefused) {
  const files::TempDir dir;
  spill(dir.path() / "x.bin", std::string(10, '\1'));
  const auto lie = [](auto change) {
    Index index;
    change(index);
    return index.bytes();
  };

  expect_refusals(
      dir.path(),
      "x.idx",
      17,
      {{"does not begin with MMIDIDX", lie([](Index& i) { i.magic[0] = 'X'; })},
       {"index version 2", lie([](Index& i) { i.version = 2; })},
       {"floating point numbers", lie([](Index& i) { i.code = 7; })},
       {"type code 0", lie([](Index& i) { i.code = 0; })},
       {"type code 99", lie([](Index& i) { i.code = 99; })},
       {"3 sequences", lie([](Index& i) { i.sequences = 3; })},
       {"18446744073709551615 sequences", lie([](Index& i) { i.sequences = UINT64_MAX; })},
       {"2305843009213693952 document marks",
        lie([](Index& i) { i.documents = std::uint64_t{1} << 61; })},
       // Twelve bytes each; the product overflows to a small number.
       {"does not fit", lie([](Index& i) {
          i.sequences = 0x1555555555555556;
          i.documents = 0;
        })},
       {"sequence 1 has the length -2", lie([](Index& i) { i.lengths[1] = -2; })},
       {"truncated", lie([](Index& i) { i.lengths[0] = INT32_MAX; }), "x.bin"},
       {"begins at byte 5, expected 6", lie([](Index& i) { i.pointers[1] = 5; })},
       {"begins at byte -9223372036854775808", lie([](Index& i) { i.pointers[0] = INT64_MIN; })},
       {"document mark 0 is 1", lie([](Index& i) { i.marks[0] = 1; })},
       {"document mark 1 is 9", lie([](Index& i) { i.marks[1] = 9; })},
       {"the document marks end at 1", lie([](Index& i) { i.marks[2] = 1; })},
       {"does not fit", lie([](Index& i) { i.tail = "abc"; })}},
      [&] { data::TokenFile::open(dir.path() / "x.idx"); });
}

// Links are followed where users have them (Hugging Face's cache keeps files as blobs and links to
// them; data may be on another disk) and rejected in checkpoints of tessera, which are written
// without links.

class Links : public ::testing::Test {
 protected:
  Links() { fs::create_directories(dir.path() / "snapshots/main"); }
  /// Writes a file elsewhere, and a relative link to it in the snapshot, as the cache does.
  void keep(const std::string& name, const std::function<void(const fs::path&)>& write) {
    const std::string blob = "blob-" + std::to_string(++blobs_);
    fs::create_directories(dir.path() / "blobs");
    write(dir.path() / "blobs" / blob);
    fs::create_symlink(fs::path("../../blobs") / blob, snapshot() / name);
  }
  void keep_tensor(const std::string& name, const std::string& tensor) {
    keep(name, [&](const fs::path& path) {
      const std::byte byte{7};
      checkpoint::write_safetensors(path, {{tensor, DType::U8, {1}, {&byte, 1}}}, {});
    });
  }
  [[nodiscard]] fs::path snapshot() const { return dir.path() / "snapshots/main"; }
  files::TempDir dir;

 private:
  int blobs_ = 0;
};

TEST_F(Links, OfHuggingFacesCacheAreFollowed) {
  keep_tensor("model-00001-of-00002.safetensors", "v");
  keep_tensor("model-00002-of-00002.safetensors", "w");
  keep("model.safetensors.index.json", [](const fs::path& path) {
    spill(path,
          R"({"weight_map": {"v": "model-00001-of-00002.safetensors",
              "w": "model-00002-of-00002.safetensors"}})");
  });

  EXPECT_EQ(interop::open_weights(snapshot()).size(), 2U);
}

TEST_F(Links, OfTokensAreFollowed) {
  keep("x.idx", [](const fs::path& path) { spill(path, Index().bytes()); });
  keep("x.bin", [](const fs::path& path) { spill(path, std::string(10, '\1')); });

  EXPECT_EQ(data::TokenFile::open(snapshot() / "x")->tokens(), 5);
}

TEST_F(Links, ThatLeadNowhereAreNamed) {
  const auto refused = [&](const std::string& target, const std::string& reason) {
    fs::remove(snapshot() / "model.safetensors");
    fs::create_symlink(target, snapshot() / "model.safetensors");
    const Error error = error_of([&] { interop::open_weights(snapshot()); });
    EXPECT_EQ(error.kind(), Error::Kind::Format) << error.text();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.text();
    EXPECT_NE(std::string(error.what()).find(snapshot().string()), std::string::npos);
  };
  refused("model.safetensors", "model.safetensors is not a plain file");  // a link to itself
  refused("/dev/zero", "model.safetensors is not a plain file");
  refused("..", "model.safetensors is not a plain file");
  refused("../../blobs/gone", "has none of model.safetensors");
}

TEST_F(Links, OfAnIndexToAShardThatIsGoneAreNamed) {
  spill(snapshot() / "model.safetensors.index.json", R"({"weight_map": {"w": "a.safetensors"}})");
  fs::create_symlink("../../blobs/gone", snapshot() / "a.safetensors");

  const Error error = error_of([&] { interop::open_weights(snapshot()); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(error.what()).find("a.safetensors does not exist"), std::string::npos)
      << error.text();
}

TEST_F(Links, InACheckpointOfOursAreRefused) {
  for (const char* name : {"manifest.json", "rank-00001.safetensors"}) {
    SCOPED_TRACE(name);
    const files::TempDir root;
    const fs::path folder = save_model(root.path(), 2, small_model(), ranges, 2);
    // The same bytes, in a file outside the folder.
    fs::rename(folder / name, root.path() / "elsewhere");
    fs::create_symlink("../elsewhere", folder / name);

    const Error error = error_of([&] { loads_exactly(folder); });

    EXPECT_EQ(error.kind(), Error::Kind::Format) << error.text();
    EXPECT_NE(std::string(error.what()).find(std::string(name) + " is not a plain file"),
              std::string::npos)
        << error.text();
  }
}

}  // namespace
}  // namespace tessera::interop::test
