// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/weight_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace tessera::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Element i of tensor number n is 1000 n + i.
at::Tensor numbered(const Shape& shape, int number) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape)
    numel *= size;
  return (at::arange(numel, at::kFloat) + 1000.0 * number).view(shape);
}

ReadFloats reader_of(const at::Tensor& tensor) {
  const at::Tensor held = tensor.contiguous();
  return [held](std::int64_t begin, std::int64_t end, float* out) {
    TORCH_CHECK(begin >= 0 && begin < end && end <= held.numel());
    std::copy(held.data_ptr<float>() + begin, held.data_ptr<float>() + end, out);
  };
}

/// Elements [begin, end) of the array, -1 where no part has them.
at::Tensor imported(const Composition& array,
                    const Tensors& tensors,
                    std::int64_t begin,
                    std::int64_t end) {
  at::Tensor out = at::full({end - begin}, -1.0F);
  for (const Composition::Part& part : array.parts()) {
    copy_range(
        array.copy_of(part), begin, end, reader_of(tensors.at(part.tensor)), out.data_ptr<float>());
  }
  return out;
}

/// Every range of the array is that of `expected`, which another library computed.
void expect_every_range(const Composition& array,
                        const Tensors& tensors,
                        const at::Tensor& expected) {
  ASSERT_EQ(array.shape(), expected.sizes().vec());
  const at::Tensor flat = expected.contiguous().view({-1});
  for (std::int64_t begin = 0; begin < flat.numel(); ++begin) {
    for (std::int64_t end = begin + 1; end <= flat.numel(); ++end) {
      ASSERT_TRUE(at::equal(imported(array, tensors, begin, end), flat.slice(0, begin, end)))
          << begin << " " << end;
    }
  }
}

TEST(Compositions, OfATensorAreTheTensor) {
  const Tensors tensors = {{"a", numbered({3, 4}, 1)}};

  expect_every_range(Composition::of("a", {3, 4}), tensors, tensors.at("a"));
}

TEST(Compositions, Transpose) {
  const Tensors tensors = {{"a", numbered({3, 5}, 1)}};

  expect_every_range(Composition::of("a", {3, 5}).transposed(), tensors, tensors.at("a").t());
}

// The matrix has more lines than are read at a time.
TEST(Compositions, TransposeLargeMatrices) {
  const Tensors tensors = {{"a", numbered({37, 3}, 1)}};

  expect_every_range(Composition::of("a", {37, 3}).transposed(), tensors, tensors.at("a").t());
}

TEST(Compositions, PermuteDims) {
  const Tensors tensors = {{"a", numbered({2, 3, 4}, 1)}};
  for (const std::vector<std::size_t>& dims :
       {std::vector<std::size_t>{0, 2, 1}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}}) {
    const std::vector<std::int64_t> theirs(dims.begin(), dims.end());

    expect_every_range(
        Composition::of("a", {2, 3, 4}).permuted(dims), tensors, tensors.at("a").permute(theirs));
  }
}

TEST(Compositions, ConcatenateAlongAnyDim) {
  const Tensors tensors = {{"a", numbered({2, 3}, 1)}, {"b", numbered({2, 3}, 2)}};
  for (const std::size_t dim : {0U, 1U}) {
    expect_every_range(
        Composition::concat({Composition::of("a", {2, 3}), Composition::of("b", {2, 3})}, dim),
        tensors,
        at::cat({tensors.at("a"), tensors.at("b")}, static_cast<std::int64_t>(dim)));
  }
}

TEST(Compositions, SliceAcrossParts) {
  const Tensors tensors = {{"a", numbered({4, 3}, 1)}, {"b", numbered({2, 3}, 2)}};
  const Composition both =
      Composition::concat({Composition::of("a", {4, 3}), Composition::of("b", {2, 3})}, 0);
  const at::Tensor whole = at::cat({tensors.at("a"), tensors.at("b")}, 0);

  expect_every_range(both.slice(0, 1, 3), tensors, whole.slice(0, 1, 3));
  expect_every_range(both.slice(0, 3, 6), tensors, whole.slice(0, 3, 6));
  expect_every_range(both.slice(1, 1, 2), tensors, whole.slice(1, 1, 2));
}

TEST(Compositions, ViewUnderOtherShapes) {
  const Tensors tensors = {{"a", numbered({4, 6}, 1)}};
  const Composition array = Composition::of("a", {4, 6});
  for (const Shape& shape : {Shape{24}, {2, 2, 6}, {4, 2, 3}, {8, 3}, {2, 12}, {1, 4, 1, 6, 1}}) {
    expect_every_range(array.viewed(shape), tensors, tensors.at("a").view(shape));
    expect_every_range(
        array.transposed().viewed(shape), tensors, tensors.at("a").t().reshape(shape));
  }
}

TEST(Compositions, ViewPartsThatDoNotFitTheRows) {
  const Tensors tensors = {{"a", numbered({5, 2}, 1)}, {"b", numbered({7, 2}, 2)}};
  const Composition both =
      Composition::concat({Composition::of("a", {5, 2}), Composition::of("b", {7, 2})}, 0);

  expect_every_range(both.viewed({4, 3, 2}),
                     tensors,
                     at::cat({tensors.at("a"), tensors.at("b")}, 0).view({4, 3, 2}));
}

/// A family that stores its projections separately, and whose heads are interleaved in our
/// parameter.
constexpr std::int64_t kGroups = 2, kGroup = 3, kChannels = 4, kWidth = 5, kInner = 6;

Composition compose(const ParamInfo& info) {
  const Shape& shape = info.shape;
  if (info.name == "h.0.qkv.weight") {
    const std::int64_t G = shape[0], group = shape[1] - 2, K = shape[2], C = shape[3];
    const auto heads = [&](const char* name, std::int64_t each) {
      return Composition::of(std::string("model.layers.0.") + name, {G * each * K, C})
          .viewed({G, each, K, C});
    };
    return Composition::concat({heads("q", group), heads("k", 1), heads("v", 1)}, 1);
  }
  if (info.name == "h.0.gate_up.weight") {
    const Shape each = {shape[1], shape[2]}, one = {1, shape[1], shape[2]};
    return Composition::concat({Composition::of("model.layers.0.gate", each).viewed(one),
                                Composition::of("model.layers.0.up", each).viewed(one)},
                               0);
  }
  if (info.name == "h.0.first" || info.name == "h.0.second") {
    const std::int64_t rows = shape[0];
    const bool second = info.name == "h.0.second";
    return Composition::of("model.layers.0.fused", {2 * rows, shape[1]})
        .slice(0, second ? rows : 0, second ? 2 * rows : rows);
  }
  if (info.name == "h.0.out.weight")
    return Composition::of("model.layers.0.out", {shape[1], shape[0]}).transposed();
  return Composition::of("model." + info.name, shape);
}

const WeightMap& map() {
  static const WeightMap out = {.compose = compose,
                                .base = "model.",
                                .ties = {{"lm_head.weight", "model.table"}},
                                .anchor = "model.table"};
  return out;
}

std::shared_ptr<const ParamInfo> param(std::string name, Shape shape) {
  ParamInfo info;
  info.name = std::move(name);
  info.matrix_shape = shape;
  info.shape = std::move(shape);
  return std::make_shared<const ParamInfo>(std::move(info));
}

Parameters parameters() {
  return {param("table", {7, kWidth}),
          param("h.0.qkv.weight", {kGroups, kGroup + 2, kChannels, kWidth}),
          param("h.0.out.weight", {kWidth, 3}),
          param("h.0.gate_up.weight", {2, kInner, kWidth}),
          param("h.0.first", {3, kWidth}),
          param("h.0.second", {3, kWidth})};
}

Tensors their_numbered_tensors() {
  Tensors out;
  for (const TheirTensor& tensor : their_tensors(map(), parameters()))
    out[tensor.name] = numbered(tensor.shape, static_cast<int>(out.size()));
  return out;
}

TEST(WeightMaps, InterleaveTheHeadsOfTensorsThatAreStoredApart) {
  const Tensors theirs = their_numbered_tensors();
  const auto heads = [&](const char* name, std::int64_t each) {
    return theirs.at(std::string("model.layers.0.") + name)
        .view({kGroups, each, kChannels, kWidth});
  };

  expect_every_range(compose(*parameters()[1]),
                     theirs,
                     at::cat({heads("q", kGroup), heads("k", 1), heads("v", 1)}, 1));
}

TEST(WeightMaps, StackTensorsThatAreStoredApart) {
  const Tensors theirs = their_numbered_tensors();

  expect_every_range(
      compose(*parameters()[3]),
      theirs,
      at::stack({theirs.at("model.layers.0.gate"), theirs.at("model.layers.0.up")}, 0));
}

TEST(WeightMaps, SplitTensorsThatAreStoredTogether) {
  const Tensors theirs = their_numbered_tensors();

  expect_every_range(
      compose(*parameters()[5]), theirs, theirs.at("model.layers.0.fused").slice(0, 3, 6));
}

TEST(WeightMaps, ExportWhatTheyImport) {
  const Tensors theirs = their_numbered_tensors();
  Tensors ours;
  for (const auto& info : parameters())
    ours[info->name] = imported(compose(*info), theirs, 0, info->numel());

  std::vector<std::string> names;
  for (const TheirTensor& tensor : their_tensors(map(), parameters())) {
    names.push_back(tensor.name);
    const at::Tensor expected = theirs.at(tensor.name).view({-1});
    for (std::int64_t begin = 0; begin < expected.numel(); ++begin) {
      for (std::int64_t end = begin + 1; end <= expected.numel(); end += 2) {
        at::Tensor out = at::full({end - begin}, -1.0F);
        for (const TheirTensor::Part& part : tensor.parts) {
          const bool meets = part.copy.meets(begin, end);
          const at::Tensor before = out.clone();
          copy_range(
              part.copy, begin, end, reader_of(ours.at(part.info->name)), out.data_ptr<float>());
          EXPECT_TRUE(meets || at::equal(before, out));
        }
        ASSERT_TRUE(at::equal(out, expected.slice(0, begin, end)))
            << tensor.name << " " << begin << " " << end;
      }
    }
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"model.table",
                                      "model.layers.0.q",
                                      "model.layers.0.k",
                                      "model.layers.0.v",
                                      "model.layers.0.out",
                                      "model.layers.0.gate",
                                      "model.layers.0.up",
                                      "model.layers.0.fused"}));
}

TEST(WeightMaps, LeaveOutTensorsThatTheParametersDoNotCover) {
  Parameters some = parameters();
  some.pop_back();

  for (const TheirTensor& tensor : their_tensors(map(), some))
    EXPECT_NE(tensor.name, "model.layers.0.fused");
}

TEST(WeightMaps, TieAnAliasUnlessAParameterHasItsName) {
  EXPECT_EQ(their_tensors(map(), parameters()).front().aliases,
            (std::vector<std::string>{"lm_head.weight"}));

  const WeightMap untied = {
      .compose = [](const ParamInfo& info) { return Composition::of(info.name, info.shape); },
      .ties = {{"lm_head.weight", "table"}}};
  const Parameters both = {param("table", {2, 2}), param("lm_head.weight", {2, 2})};

  EXPECT_TRUE(ties_of(untied, both).empty());
  for (const TheirTensor& tensor : their_tensors(untied, both))
    EXPECT_TRUE(tensor.aliases.empty());
}

TEST(WeightMaps, ReadFewElementsOfATransposedTensorForARange) {
  const Composition array = Composition::of("a", {100, 50}).transposed();
  const at::Tensor tensor = numbered({100, 50}, 0);
  std::int64_t elements = 0;
  const ReadFloats read = [&](std::int64_t begin, std::int64_t end, float* out) {
    elements += end - begin;
    reader_of(tensor)(begin, end, out);
  };
  std::vector<float> out(100);

  // A row of our parameter is a column of theirs.
  copy_range(array.copy_of(array.parts().front()), 700, 800, read, out.data());

  EXPECT_EQ(elements, 100);
}

}  // namespace
}  // namespace tessera::models
