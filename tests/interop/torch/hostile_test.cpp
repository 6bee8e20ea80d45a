// SPDX-License-Identifier: Apache-2.0
// Malicious files. Each is refused with the file's name and the reason; the code in them is never
// run.
#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/pickle.h"

namespace tessera::interop::test {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 62, kMost = INT64_MAX;

/// Checks that the content is rejected with the name of the file and the reason.
void expect_refusal(const std::string& content,
                    const std::string& reason,
                    Error::Kind kind = Error::Kind::Format) {
  const files::TempDir dir;
  spill(dir.path() / "lie.bin", content);
  const Error error = error_of([&] { open_torch_file(dir.path() / "lie.bin"); });
  EXPECT_EQ(error.kind(), kind) << error.text();
  EXPECT_NE(std::string(error.what()).find("lie.bin"), std::string::npos) << error.text();
  EXPECT_NE(std::string(error.what()).find(reason), std::string::npos)
      << error.text() << "\nshould say: " << reason;
  EXPECT_FALSE(error.fix().empty()) << error.text();
}
void expect_pickle_refusal(const std::string& value, const std::string& reason) {
  SCOPED_TRACE(reason);
  expect_refusal(torch_zip(pickle_of(value), {std::string(16, 'x')}), reason);
}
/// Uses a tensor "w" in storage 0, which has 16 bytes.
void expect_tensor_refusal(const std::string& tensor, const std::string& reason) {
  SCOPED_TRACE(reason);
  expect_refusal(torch_zip(pickle_of(op::dict({{"w", tensor}})), {std::string(16, 'x')}), reason);
  expect_refusal(torch_zip(pickle_of(op::dict({{"w", tensor}})), {std::string(16, 'x')}), "\"w\"");
}
const std::string kFloats = op::storage("FloatStorage", "0", 4);

std::string call(const std::string& module, const std::string& name, const std::string& argument) {
  return op::global(module, name) + op::tuple({op::text(argument)}) + op::kCall;
}

TEST(HostilePickle, CallsNothing) {
  const files::TempDir dir;
  const std::string touch = "touch " + (dir.path() / "owned").string();
  expect_pickle_refusal(call("os", "system", touch), "asks for \"os.system\"");
  expect_pickle_refusal(call("posix", "system", touch), "asks for \"posix.system\"");
  expect_pickle_refusal(call("builtins", "eval", "1"), "asks for \"builtins.eval\"");
  expect_pickle_refusal(call("__builtin__", "exec", "1"), "asks for \"__builtin__.exec\"");
  expect_pickle_refusal(call("builtins", "getattr", "1"), "asks for \"builtins.getattr\"");
  expect_pickle_refusal(call("subprocess", "Popen", touch), "asks for \"subprocess.Popen\"");
  expect_pickle_refusal(call("torch", "load", "x"), "asks for \"torch.load\"");
  expect_pickle_refusal(call("torch._utils", "_rebuild_tensor_v2.__globals__", "x"),
                        "asks for \"torch._utils._rebuild_tensor_v2.__globals__\"");
  expect_pickle_refusal(
      op::text("os") + op::text("system") + "\x93" + op::tuple({op::text(touch)}) + "R",
      "asks for \"os.system\"");
  EXPECT_FALSE(fs::exists(dir.path() / "owned"));
}

TEST(HostilePickle, MakesNoObjects) {
  const std::string os = op::global("collections", "OrderedDict");
  expect_pickle_refusal("(S'x'\nios\nsystem\n", "STRING");
  expect_pickle_refusal("(ios\nsystem\n", "INST");
  expect_pickle_refusal("(" + os + "o", "OBJ");
  expect_pickle_refusal(os + ")\x81", "NEWOBJ");
  expect_pickle_refusal(os + ")}\x92", "NEWOBJ_EX");
  expect_pickle_refusal("\x82\x01", "EXT1");
  expect_pickle_refusal("Pid\n", "PERSID");
  expect_pickle_refusal("\x97", "NEXT_BUFFER");
  expect_pickle_refusal("\xff", "opcode 0xff");
}

TEST(HostilePickle, GivesArgumentsOnlyToFunctions) {
  expect_pickle_refusal(op::global("torch", "FloatStorage") + ")R", "calls torch.FloatStorage");
  expect_pickle_refusal(op::text("os.system") + ")R", "calls the text");
  expect_pickle_refusal(op::global("collections", "OrderedDict") + "]R", "OrderedDict with a list");
  expect_pickle_refusal(op::global("torch", "Size") + "}b", "sets the state of torch.Size");
  expect_pickle_refusal(op::global("collections", "OrderedDict") + op::tuple({op::text("x")}) + "R",
                        "OrderedDict of something other");
}

TEST(HostilePickle, HasTheLengthsThatItClaims) {
  expect_pickle_refusal("\x8d" + le(std::uint64_t{1} << 63, 8), "wants 9223372036854775808 bytes");
  expect_pickle_refusal("\x8d" + le(UINT64_MAX, 8), "wants 18446744073709551615 bytes");
  expect_pickle_refusal("X" + le(UINT32_MAX, 4) + "abc", "wants 4294967295 bytes");
  expect_pickle_refusal("\x8a\xff", "wants 255 bytes");
  expect_pickle_refusal("cos", "a name without an end");
  expect_refusal(torch_zip("\x80\x02}"), "wants 1 bytes where 0 are left");
  expect_refusal(torch_zip(""), "wants 1 bytes where 0 are left");
}

TEST(HostilePickle, KeepsItsStack) {
  expect_pickle_refusal("R", "without the value");
  expect_pickle_refusal("t", "without its mark");
  expect_pickle_refusal("((", "unfinished");
  expect_pickle_refusal("}}", "unfinished");
  expect_pickle_refusal("}(" + op::text("k") + "u", "a key without a value");
  expect_pickle_refusal("}(a", "without the value");
  expect_pickle_refusal("Na", "without the value");
  expect_pickle_refusal("NNa", "appended to None");
  expect_pickle_refusal("NNNs", "an item is set in None");
  expect_pickle_refusal("h\x05", "value 5 is used before");
  expect_pickle_refusal("j" + le(UINT32_MAX, 4), "value 4294967295 is used before");
  expect_pickle_refusal("X" + le(2, 4) + "\xc3\x28", "not UTF-8");
  expect_refusal(torch_zip("\x80\x09}."), "protocol 9");
}

TEST(HostilePickle, IsNeitherDeepNorEndless) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i)
    deep += "](";
  deep += "N";
  for (int i = 0; i < 100'000; ++i)
    deep += "e";
  expect_pickle_refusal(deep, "nested more than 32 levels");
  expect_pickle_refusal(
      "]q\x01h\x01"
      "a",
      "nested more than 32 levels");  // a list that contains itself
}

TEST(HostilePickle, RepeatsItselfOnlySoOften) {
  // Each list contains the previous one twice: 31 lists, 2^31 visits.
  std::string value = "(]q" + std::string(1, '\0');
  for (char i = 0; i < 30; ++i) {
    const std::string before(1, i), mine(1, static_cast<char>(i + 1));
    value += "]q" + mine + "(h" + before + "h" + before + "e";
  }
  expect_pickle_refusal(value + "t", "repeats its values without end");
}

TEST(HostilePickle, CostsMemoryInProportion) {
  // A tuple of 200,000 values that is passed to 200,000 calls: 160 GB if each kept a copy.
  std::string calls;
  for (int i = 0; i < 200'000; ++i)
    calls += "h\x01h" + std::string(1, '\0') + "R";
  const std::string whole = "(" + op::global("torch", "Size") + "q\x01(" +
                            std::string(200'000, 'N') + "tq" + std::string(1, '\0') + calls + "t";
  const files::TempDir dir;
  spill(dir.path() / "large.bin", torch_zip(pickle_of(whole)));

  EXPECT_TRUE(open_torch_file(dir.path() / "large.bin").empty());

  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(used.ru_maxrss, 1 << 20) << "kB";
}

TEST(HostileTensor, LiesInsideOfItsStorage) {
  const std::string longer = op::storage("FloatStorage", "0", 5);
  expect_tensor_refusal(op::tensor(longer, 0, {5}, {1}), "the file has 16 bytes of it");
  expect_tensor_refusal(op::tensor(op::storage("FloatStorage", "0", kMost), 0, {1}, {1}),
                        "the file has 16 bytes of it");
  expect_tensor_refusal(op::tensor(op::storage("FloatStorage", "0", kHuge), 0, {kHuge}, {1}),
                        "the file has 16 bytes of it");
  expect_tensor_refusal(op::tensor(op::storage("DoubleStorage", "0", 4), 0, {4}, {1}),
                        "the file has 16 bytes of it");
  expect_tensor_refusal(op::tensor(kFloats, 0, {5}, {1}), "reaches past the 4 elements");
  expect_tensor_refusal(op::tensor(kFloats, 1, {4}, {1}), "reaches past the 4 elements");
  expect_tensor_refusal(op::tensor(kFloats, 0, {2, 2}, {3, 1}), "reaches past the 4 elements");
  expect_tensor_refusal(op::tensor(kFloats, 5, {0}, {1}), "reaches past the 4 elements");
  expect_tensor_refusal(op::tensor(kFloats, kMost, {1}, {1}), "reaches past the 4 elements");
  expect_tensor_refusal(op::tensor(kFloats, kMost, {2, 2, 3}, {kMost, kMost, 1}), "reaches past");
}

TEST(HostileTensor, DoesNotCountPast64Bits) {
  // The last element has index 1 + 2 (2^63 - 1) = 2^64 - 1; one more overflows to 0.
  expect_tensor_refusal(op::tensor(kFloats, 1, {2, 2}, {kMost, kMost}), "reaches past the 4");
  // 3 + 2^62 + (2^63 - 1) + (2^62 - 3) = 2^64 - 1 as well.
  expect_tensor_refusal(op::tensor(kFloats, 3, {2, 2, 2}, {kHuge, kMost, kHuge - 3}),
                        "reaches past the 4");
  // 3 + 3 x 2^62 + (2^62 - 4) = 2^64 - 1; in bytes, 2^62 elements of four overflow to 0.
  expect_tensor_refusal(op::tensor(kFloats, 3, {2, 2, 2, 2}, {kHuge, kHuge, kHuge, kHuge - 4}),
                        "reaches past the 4");
}

TEST(HostileTensor, HasNumbersThatFit) {
  expect_tensor_refusal(op::tensor(kFloats, 0, {kHuge, 4}, {0, 0}), "overflows");
  expect_tensor_refusal(op::tensor(kFloats, 0, {kMost}, {0}), "overflows");
  expect_tensor_refusal(op::tensor(kFloats, 0, {0, kHuge, kHuge}, {1, 1, 1}), "overflows");
  expect_tensor_refusal(op::tensor(kFloats, 0, {2}, {kMost}), "reaches past");
  expect_tensor_refusal(op::tensor(kFloats, 0, {-1}, {1}), "a shape of -1");
  expect_tensor_refusal(op::tensor(kFloats, 0, {2}, {-1}), "strides of -1");
  expect_tensor_refusal(op::tensor(kFloats, -1, {1}, {1}), "an offset of -1");
  expect_tensor_refusal(op::tensor(op::storage("FloatStorage", "0", -1), 0, {1}, {1}),
                        "a storage of -1");
  expect_tensor_refusal(op::tensor(kFloats, 0, {2, 2}, {1}), "2 dims and 1 strides");
  expect_tensor_refusal(op::tensor(kFloats, 0, Shape(65, 1), Shape(65, 1)), "65 dims");
}

TEST(HostileTensor, IsDescribedAsTorchDoes) {
  const std::string rebuild = op::global("torch._utils", "_rebuild_tensor_v2");
  const auto big = "\x8a\x09" + std::string(8, '\x01') + "\x01";
  expect_tensor_refusal(rebuild + ")R", "built from 0 values");
  expect_tensor_refusal(rebuild + op::tuple({"N", "N", "N", "N"}) + "R", "refers to no storage");
  expect_tensor_refusal(rebuild + op::tuple({kFloats, "N", op::sizes({1}), op::sizes({1})}) + "R",
                        "an offset of None");
  expect_tensor_refusal(rebuild + op::tuple({kFloats, big, op::sizes({1}), op::sizes({1})}) + "R",
                        "more than 64 bits");
  expect_tensor_refusal(rebuild + op::tuple({kFloats, op::integer(0), "N", op::sizes({1})}) + "R",
                        "a shape of None");
  expect_tensor_refusal(op::tensor(op::tuple({op::text("storage")}) + "Q", 0, {1}, {1}),
                        "in an unknown way");
  expect_tensor_refusal(op::tensor(op::tuple({op::text("storage"),
                                              op::global("torch", "float32"),
                                              op::text("0"),
                                              op::text("cpu"),
                                              op::integer(4)}) +
                                       "Q",
                                   0,
                                   {1},
                                   {1}),
                        "storage of type torch.float32");
  expect_tensor_refusal(op::tensor(op::storage("FloatStorage", "../../etc/passwd", 4), 0, {1}, {1}),
                        "refers to missing storage");
  expect_tensor_refusal(op::global("torch._utils", "_rebuild_parameter") + "(NNNtR",
                        "a parameter without a tensor");
  const std::string good = op::tensor(kFloats, 0, {1}, {1});
  expect_pickle_refusal(op::dict({{"w", good}, {"w", good}}), "tensor \"w\" is there twice");
  expect_pickle_refusal("K\x05", "holds 5 where a dict of tensors is expected");
}

TEST(HostileZip, HasTheEntriesThatItClaims) {
  const ZipPart good{"m/data.pkl", pickle_of("}")};
  const auto lie = [&](auto change) {
    ZipPart part = good;
    change(part);
    return zip_of({part});
  };
  expect_refusal(lie([](auto& p) { p.stored = p.size = 0xFFFFFFF0; }), "claims 4294967280 bytes");
  expect_refusal(lie([](auto& p) {
                   p.stored = p.size = 0xFFFFFFFF;
                   p.central_extra = le(1, 2) + le(16, 2) + le(std::uint64_t{1} << 63, 8) +
                                     le(std::uint64_t{1} << 63, 8);
                 }),
                 "claims 9223372036854775808 bytes");
  expect_refusal(lie([](auto& p) { p.local = 0x7FFFFFFF; }), "does not begin at byte 2147483647");
  expect_refusal(lie([](auto& p) { p.local = 4; }), "does not begin at byte 4");
  expect_refusal(lie([](auto& p) { p.method = 8; }), "is compressed");
  expect_refusal(lie([](auto& p) { p.stored = 1; }), "is compressed");
  expect_refusal(lie([](auto& p) { p.flags = 1; }), "is encrypted");
  expect_refusal(lie([](auto& p) { p.local_name = "m/data.pkx"; }),
                 "another name in its own header");
}

TEST(HostileZip, LeadsNowhereElse) {
  for (const std::string name :
       {"../data.pkl", "m/../../data.pkl", "/etc/passwd", "m\\..\\data.pkl", "", "m/\x01"}) {
    expect_refusal(zip_of({{"m/data.pkl", pickle_of("}")}, {name, "x"}}), "leads elsewhere");
  }
}

TEST(HostileZip, HasOneDirectoryOfItsOwnEntries) {
  const ZipPart good{"m/data.pkl", pickle_of("}")};
  expect_refusal(zip_of({good}, {.entries = 0xFFFF}), "claims 65535 entries");
  expect_refusal(zip_of({good}, {.entries = 0}), "longer than its entries");
  expect_refusal(zip_of({good}, {.directory_bytes = 0xFFFFFFF0}), "past its own end record");
  expect_refusal(zip_of({good}, {.directory_begin = 0xFFFFFFF0}), "past its own end record");
  expect_refusal(zip_of({good}, {.directory_begin = 1}), "damaged");
  expect_refusal(
      zip_of({good}, {.before_end = "PK\x06\x07" + le(0, 4) + le(UINT64_MAX, 8) + le(1, 4)}),
      "zip64 record is not where");
  expect_refusal(zip_of({good}, {.before_end = "PK\x06\x07" + le(0, 4) + le(0, 8) + le(1, 4)}),
                 "zip64 record is not where");
  expect_refusal(zip_of({good, good}), "is there twice");
  expect_refusal(zip_of({good, {"n/data.pkl", pickle_of("}")}}), "two data.pkl");
  expect_refusal(zip_of({{"m/constants.pkl", "x"}}), "without data.pkl");
  expect_refusal("PK\x03\x04 and nothing more", "no directory at its end");
}

TEST(HostileZip, EntriesDoNotOverlap) {
  // The header of the second entry is inside the bytes of the first one.
  const std::string inner = zip_of({{"m/data/0", "0123456789abcdef"}});
  const std::string hidden = inner.substr(0, 30 + 8 + 16);
  ZipPart second{"m/data/0", "0123456789abcdef"};
  second.local = 30 + 10;
  const ZipPart first{"m/data/1", hidden};
  ZipPart pickle{"m/data.pkl", pickle_of("}")};
  second.local = static_cast<std::int64_t>(30 + std::string("m/data/1").size());
  expect_refusal(zip_of({first, second, pickle}), "lies inside of another one");
}

TEST(HostileZip, OfTheOtherByteOrderIsRefused) {
  expect_refusal(zip_of({{"m/data.pkl", pickle_of("}")}, {"m/byteorder", "big"}}),
                 "another byte order",
                 Error::Kind::Unsupported);
}

TEST(HostileLegacy, HasTheStoragesThatItClaims) {
  const std::string object = op::dict({{"w", op::tensor(kFloats, 0, {4}, {1})}});
  const std::string keys = "](" + op::text("0") + "e", floats(16, 'x');
  expect_refusal(torch_legacy(object, keys, le(std::uint64_t{1} << 63, 8) + floats),
                 "claims 9223372036854775808 elements");
  expect_refusal(torch_legacy(object, keys, le(UINT64_MAX, 8) + floats),
                 "claims 18446744073709551615");
  expect_refusal(torch_legacy(object, keys, le(5, 8) + floats), "claims 5 elements of 4 bytes");
  expect_refusal(torch_legacy(object, keys, le(3, 8) + floats.substr(4)),
                 "lies in a storage of 4 elements");
  expect_refusal(torch_legacy(object, keys, le(4, 8) + floats + "more"), "4 bytes follow");
  expect_refusal(torch_legacy(object, keys, "1234"), "ends before its storages");
  expect_refusal(torch_legacy(object, "]", ""), "refers to missing storage");
  expect_refusal(torch_legacy(object, "](" + op::text("1") + "e", le(4, 8) + floats),
                 "belongs to no tensor");
  expect_refusal(torch_legacy(object,
                              "](" + op::text("0") + op::text("0") + "e",
                              le(4, 8) + floats + le(4, 8) + floats),
                 "listed twice");
  expect_refusal(torch_legacy(object, "}", ""), "listed in no list");
  expect_refusal(torch_legacy(object, keys, le(4, 8) + floats, 1002), "protocol is 1002");
  expect_refusal(torch_legacy(object, keys, le(4, 8) + floats, 1001, op::kFalse),
                 "another byte order",
                 Error::Kind::Unsupported);
  expect_refusal(
      torch_legacy(op::dict({{"w", op::tensor(kFloats, 0, {4}, {1})},
                             {"v", op::tensor(op::storage("IntStorage", "0", 4), 0, {4}, {1})}}),
                   keys,
                   le(4, 8) + floats),
      "for another type");
  expect_refusal(torch_legacy(call("os", "system", "true"), keys, ""), "asks for \"os.system\"");
}

TEST(HostileFile, OfAnotherKindIsNamed) {
  expect_refusal("", "not a file of torch.save");
  expect_refusal("hello", "not a file of torch.save");
  expect_refusal(std::string(257, 'x') + "ustar" + std::string(200, 'x'),
                 "tar files",
                 Error::Kind::Unsupported);
  const files::TempDir dir;
  EXPECT_EQ(error_of([&] { open_torch_file(dir.path()); }).kind(), Error::Kind::Format);
  EXPECT_EQ(error_of([&] { open_torch_file(dir.path() / "absent"); }).kind(), Error::Kind::Format);
}

class Index : public ::testing::Test {
 protected:
  void write(const std::string& index) {
    const std::byte byte{};
    fs::remove(dir.path() / "a.safetensors");
    checkpoint::write_safetensors(
        dir.path() / "a.safetensors", {{"w", DType::U8, {1}, {&byte, 1}}}, {});
    spill(dir.path() / "model.safetensors.index.json", index);
  }
  void expect_refused(const std::string& map, const std::string& reason) {
    write("{\"metadata\": {}, \"weight_map\": " + map + "}");
    const Error error = error_of([&] { open_weights(dir.path()); });
    EXPECT_EQ(error.kind(), Error::Kind::Format) << map << error.text();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << map << error.text();
    EXPECT_FALSE(error.fix().empty());
  }
  files::TempDir dir;
};

TEST_F(Index, LeadsToFilesOfItsFolderOnly) {
  for (const char* path :
       {"../a.safetensors", "/etc/passwd", "..", ".", "", "x/../a.safetensors", "a.safetensors/"})
    expect_refused(std::string("{\"w\": \"") + path + "\"}", "the file of tensor \"w\" is");
  expect_refused("{\"w\": \"a.safetensors\\u0000\"}", "the file of tensor \"w\" is");
  expect_refused("{\"w\": 3}", "the file of tensor \"w\" is");
  expect_refused("{\"w\": \"b.safetensors\"}", "b.safetensors does not exist");
  expect_refused("{\"w\": \"a.safetensors\", \"v\": \"a.safetensors\"}", "places tensor \"v\"");
  expect_refused("[]", "no object \"weight_map\"");
  expect_refused("{}", "no object \"weight_map\"");
  expect_refused(std::string(100'000, '['), "model.safetensors.index.json");
}

TEST_F(Index, OfShardsThatRepeatATensorIsRefused) {
  const std::byte byte{};
  checkpoint::write_safetensors(
      dir.path() / "b.safetensors",
      {{"w", DType::U8, {1}, {&byte, 1}}, {"v", DType::U8, {1}, {&byte, 1}}},
      {});
  expect_refused("{\"w\": \"a.safetensors\", \"v\": \"b.safetensors\"}", "is in another file too");
}

TEST_F(Index, ThatIsRightIsRead) {
  write(R"({"weight_map": {"w": "a.safetensors"}})");

  EXPECT_EQ(open_weights(dir.path()).size(), 1U);
}

}  // namespace
}  // namespace tessera::interop::test
