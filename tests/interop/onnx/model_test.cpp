// SPDX-License-Identifier: Apache-2.0
// ONNX files: what is written, and what is refused. tests/golden/onnx_test.cpp runs them.
#include "tessera/interop/onnx/model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/ops/linear.h"

namespace tessera::interop {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A message of protobuf's wire format: the values of each field, in order; integers as text.
class Message {
 public:
  explicit Message(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::uint64_t key = varint(bytes);
      const auto field = static_cast<int>(key >> 3);
      if ((key & 7) == 0) {
        fields_[field].push_back(std::to_string(static_cast<std::int64_t>(varint(bytes))));
        continue;
      }
      const std::uint64_t size = (key & 7) == 2 ? varint(bytes) : (key & 7) == 5 ? 4 : 8;
      fields_[field].emplace_back(bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
  }
  [[nodiscard]] const std::vector<std::string>& all(int field) const {
    static const std::vector<std::string> none;
    const auto found = fields_.find(field);
    return found == fields_.end() ? none : found->second;
  }
  [[nodiscard]] std::string one(int field) const {
    EXPECT_EQ(all(field).size(), 1U) << "field " << field;
    return all(field).empty() ? "" : all(field).front();
  }
  [[nodiscard]] Message in(int field) const { return Message(one(field)); }
  [[nodiscard]] std::vector<Message> each(int field) const {
    std::vector<Message> out;
    for (const std::string& bytes : all(field))
      out.emplace_back(bytes);
    return out;
  }

 private:
  static std::uint64_t varint(std::string_view& bytes) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::map<int, std::vector<std::string>> fields_;
};

using Model = std::function<at::Tensor(const at::Tensor& x_BTC)>;

const at::Tensor& weight_OC() {
  static const at::Tensor weight = at::arange(12, at::kFloat).view({4, 3});
  return weight;
}

OnnxGraph graph_of(const Model& model) {
  OnnxTraced traced{.axes = {{"batch_size", 2, 3, 5}, {"sequence_length", 7, 11, 17}},
                    .inputs = {"x", "unread"},
                    .output = "y",
                    .parameters = {{"weight", weight_OC()}}};
  std::vector<std::unique_ptr<ops::OpTrace>> traces;
  for (const auto& [samples, tokens] :
       {std::pair(2, 7), std::pair(3, 7), std::pair(2, 11), std::pair(3, 11), std::pair(5, 17)}) {
    const at::Tensor x = at::rand({samples, tokens, 3}) + static_cast<double>(traces.size());
    traces.push_back(std::make_unique<ops::OpTrace>());
    const at::Tensor y = model(x);
    const int output = traces.back()->value_of(y);
    traces.back()->stop();
    traced.runs.push_back({traces.back().get(), {x, at::zeros({samples})}, output});
  }
  return onnx_graph(traced);
}

std::string refusal_of(const Model& model) {
  try {
    (void)graph_of(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    return error.what();
  }
  return "nothing was refused";
}

/// The names, or numbers, of the dimensions of an input or output; "?" for any size.
std::vector<std::string> dims_of(const Message& value) {
  std::vector<std::string> out;
  for (const Message& dim : value.in(2).in(1).in(2).each(1)) {
    const auto &number = dim.all(1), &name = dim.all(2);
    out.push_back(!number.empty() ? number[0] : !name.empty() ? name[0] : "?");
  }
  return out;
}

std::string bytes_of(const OnnxGraph& graph) {
  const files::TempDir folder;
  std::uint64_t told = 0;
  graph.write(folder.path() / "x.onnx", [&](std::uint64_t bytes) { told += bytes; });
  std::string bytes = files::read(folder.path() / "x.onnx");
  EXPECT_EQ(bytes.size(), graph.bytes());
  EXPECT_EQ(bytes.size(), told);
  return bytes;
}

TEST(Onnx, AFileHasTheFieldsOfItsSchema) {
  const std::string bytes = bytes_of(graph_of([](const at::Tensor& x_BTC) {
    const at::Tensor y = ops::linear(x_BTC.reshape({-1, 3}), weight_OC(), at::Tensor());
    return (y * 2.0 + 1.0).view({x_BTC.size(0), x_BTC.size(1), 4});
  }));
  const Message file(bytes), graph = file.in(7);

  EXPECT_TRUE(bytes.starts_with(onnx_mark()));
  EXPECT_EQ(file.one(1), "8");
  EXPECT_EQ(file.one(2), "tessera");
  EXPECT_EQ(file.in(8).one(2), "17");
  ASSERT_EQ(graph.each(11).size(), 1U) << "an input that nothing reads is left out";
  EXPECT_EQ(graph.in(11).one(1), "x");
  EXPECT_THAT(dims_of(graph.in(11)), ElementsAre("batch_size", "sequence_length", "3"));
  EXPECT_EQ(graph.in(12).one(1), "y");
  EXPECT_THAT(dims_of(graph.in(12)), ElementsAre("batch_size", "sequence_length", "4"));
  std::vector<std::string> ops;
  for (const Message& node : graph.each(1))
    ops.push_back(node.one(4));
  for (const char* op : {"Shape", "Concat", "Reshape", "Gemm", "Mul", "Add"})
    EXPECT_THAT(ops, Contains(op));
  bool found = false;
  for (const Message& constant : graph.each(5)) {
    if (constant.one(8) != "weight") continue;
    found = true;
    EXPECT_EQ(constant.one(2), "1");  // float
    EXPECT_THAT(constant.all(1), ElementsAre("4", "3"));
    ASSERT_EQ(constant.one(9).size(), weight_OC().nbytes());
    EXPECT_EQ(
        std::memcmp(constant.one(9).data(), weight_OC().const_data_ptr(), weight_OC().nbytes()), 0);
  }
  EXPECT_TRUE(found);
}

TEST(Onnx, EveryNodeReadsWhatIsMadeBeforeIt) {
  const Message graph = Message(bytes_of(graph_of([](const at::Tensor& x_BTC) {
                          const at::Tensor places = at::arange(x_BTC.size(1), at::kLong);
                          const at::Tensor seen = places.unsqueeze(0).lt(places.unsqueeze(1));
                          return x_BTC.sum(2).unsqueeze(1).masked_fill(seen, 0.0).cumsum(2);
                        }))).in(7);
  std::vector<std::string> known = {""};
  for (const Message& input : graph.each(11))
    known.push_back(input.one(1));
  for (const Message& constant : graph.each(5))
    known.push_back(constant.one(8));
  for (const Message& node : graph.each(1)) {
    for (const std::string& name : node.all(1))
      EXPECT_THAT(known, Contains(name));
    for (const std::string& name : node.all(2)) {
      EXPECT_THAT(known, Not(Contains(name)));
      known.push_back(name);
    }
  }
  EXPECT_THAT(known, Contains("y"));
  EXPECT_THAT(dims_of(graph.in(12)),
              ElementsAre("batch_size", "sequence_length", "sequence_length"));
}

TEST(Onnx, WhatDependsOnNoInputIsOneConstant) {
  const auto of_weight = [](const at::Tensor& x_BTC) {
    return x_BTC * weight_OC().sin().sum(0);  // sin has no translation
  };
  const OnnxGraph graph = graph_of(of_weight);
  EXPECT_EQ(graph.constants(), 1U);
}

TEST(Onnx, SizesMayBeAnyPolynomialOfTheInputs) {
  const Message graph =
      Message(bytes_of(graph_of([](const at::Tensor& x_BTC) {
        const std::int64_t B = x_BTC.size(0), T = x_BTC.size(1);
        return at::zeros({2 * T - 1, B * T + 3}) + x_BTC.sum(2).sum(1).sum(0, true);
      }))).in(7);
  EXPECT_THAT(dims_of(graph.in(12)), ElementsAre("?", "?"));
}

TEST(Onnx, WhatCannotBeWrittenIsNamed) {
  EXPECT_THAT(refusal_of([](const at::Tensor& x) { return x.sin(); }), HasSubstr("aten::sin"));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) { return x.narrow(1, 0, x.size(1) / 2); }),
              HasSubstr("not a polynomial"));
  EXPECT_THAT(
      refusal_of([](const at::Tensor& x) { return x * (1.0 / static_cast<double>(x.size(1))); }),
      HasSubstr("a number that depends on the size"));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) { return x.size(1) > 10 ? x + 1.0 : x.exp(); }),
              HasSubstr("operations depend on the number"));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) {
                const at::Tensor first = at::empty({1});
                *first.data_ptr<float>() = *x.const_data_ptr<float>();
                return x + first;
              }),
              HasSubstr("not recorded"));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) {
                const at::Tensor y = x.exp();
                y.select(1, 0).zero_();
                return y + 1.0;
              }),
              HasSubstr("changed through one view"));
}

}  // namespace
}  // namespace tessera::interop
