// SPDX-License-Identifier: Apache-2.0
// What an ONNX file says of itself, from bytes that follow onnx.proto3.
#include "tessera/interop/onnx/file.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::interop {
namespace {

/// A field with a length, and one with a number; both short.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

std::string small_model() {
  const std::string packed = field(1, 2) + field(2, 1) + field(8, "w") + field(9, "12345678"),
                    apart = field(1, std::string("\2\3")) + field(2, 99) + field(8, "v"),
                    graph = field(1, field(4, "Add")) + field(2, "g") + field(5, packed) +
                            field(5, apart) + field(11, field(1, "x")) + field(11, field(1, "w")) +
                            field(12, field(1, "y"));
  return field(1, 9) + field(2, "someone") + field(7, graph) + field(8, field(2, 17)) +
         field(8, field(1, "other") + field(2, 3));
}

OnnxFile read(const files::TempDir& dir, const std::string& bytes) {
  files::write_atomic(dir.path() / "m.onnx", bytes);
  return read_onnx(dir.path() / "m.onnx");
}

TEST(OnnxFiles, ReportTheirVersionsGraphAndTensors) {
  const files::TempDir dir;
  const OnnxFile read_back = read(dir, small_model());

  EXPECT_EQ(read_back.ir_version, 9);
  EXPECT_EQ(read_back.opset, 17);
  EXPECT_EQ(read_back.producer, "someone");
  EXPECT_EQ(read_back.graph, "g");
  EXPECT_EQ(read_back.nodes, 1);
  EXPECT_EQ(read_back.inputs, std::vector<std::string>{"x"});
  EXPECT_EQ(read_back.outputs, std::vector<std::string>{"y"});
  ASSERT_EQ(read_back.tensors.size(), 2U);
  EXPECT_EQ(read_back.tensors[0].name, "w");
  EXPECT_EQ(read_back.tensors[0].type, "FLOAT");
  EXPECT_EQ(read_back.tensors[0].shape, std::vector<std::int64_t>{2});
  EXPECT_EQ(read_back.tensors[0].bytes, 8U);
  EXPECT_EQ(read_back.tensors[1].type, "type 99");
  EXPECT_EQ(read_back.tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
}

TEST(OnnxFiles, CutAnywhereOrWithBitsFlippedAreReadOrRefused) {
  const files::TempDir dir;
  const std::string good = small_model();
  std::mt19937 random(3);
  for (std::size_t i = 0; i < 300; ++i) {
    std::string bad = i < good.size() ? good.substr(0, i) : good;
    if (i >= good.size()) bad[random() % bad.size()] ^= static_cast<char>(1U << random() % 8);
    try {
      (void)read(dir, bad);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Format) << error.text();
    }
  }
}

}  // namespace
}  // namespace tessera::interop
