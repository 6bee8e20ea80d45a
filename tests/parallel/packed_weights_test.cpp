// SPDX-License-Identifier: Apache-2.0
// Packed weights are unpacked to the values of their codes, whichever rank has which part.
#include "tessera/parallel/packed_weights.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/nf4.h"

namespace tessera::parallel {
namespace {

constexpr PackingOptions kNf4{.packing = Packing::Nf4}, kDouble{Packing::Nf4, true},
    kInt8{.packing = Packing::Int8};

std::shared_ptr<const ParamInfo> param(const std::string& name, Shape shape) {
  ParamInfo info;
  info.name = name;
  info.shape = std::move(shape);
  info.axes.assign(info.shape.size(), LogicalAxis::None);
  info.matrix_shape = info.shape;
  info.trainable = false;
  return std::make_shared<const ParamInfo>(std::move(info));
}

/// Two matrices; the second one ends within a block of 64 and within a chunk.
FlatLayout layout() {
  return {"block", {param("a", {40, 128}), param("b", {7, 30})}, 1};
}

at::Tensor values(std::int64_t numel, std::uint64_t seed) {
  at::Tensor out = at::empty({numel}, at::kFloat);
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto words = Philox{seed}(static_cast<std::uint64_t>(i));
    out.data_ptr<float>()[i] = (uniform_float(words[0]) - 0.5F) * uniform_float(words[1]);
  }
  return out;
}

at::Tensor through_nf4(const at::Tensor& x, at::ScalarType dtype) {
  const std::int64_t blocks = (x.numel() + 63) / 64;
  const at::Tensor codes = at::empty({blocks * 32}, at::kByte),
                   scales = at::empty({blocks}, at::kFloat), out = at::empty({x.numel()}, dtype);
  ops::to_nf4(x, codes, scales);
  ops::from_nf4(codes, scales, out);
  return out;
}

/// The contents of the buffer of both matrices after packing, [numel of the layout].
at::Tensor unpacked(const PackingOptions& options, at::ScalarType dtype) {
  const FlatLayout flat = layout();
  PackedWeights packed(flat, options);
  for (std::size_t i = 0; i < 2; ++i)
    packed.pack(i, values(flat.segments()[i].numel, i), {});
  at::Tensor whole = at::zeros({flat.numel()}, dtype);
  packed.unpack(whole);
  return whole;
}

TEST(PackedWeights, AreEachParametersOwnBlocks) {
  const FlatLayout flat = layout();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor four = unpacked(kNf4, dtype), eight = unpacked(kInt8, dtype);
    for (std::size_t i = 0; i < 2; ++i) {
      const Segment& segment = flat.segments()[i];
      const at::Tensor x = values(segment.numel, i);
      EXPECT_TRUE(at::equal(four.narrow(0, segment.begin, segment.numel), through_nf4(x, dtype)));
      EXPECT_TRUE(
          at::equal(eight.narrow(0, segment.begin, segment.numel),
                    ops::from_int8(ops::to_int8(x.view(segment.info->shape)), dtype).view({-1})));
    }
    EXPECT_TRUE((four.narrow(0, 5120 + 210, 1024 - 210) == 0).all().item<bool>())
        << "nothing is written behind a parameter";
  }
}

TEST(PackedWeights, KeepTheirScalesInEightBitsNearlyAsWell) {
  const at::Tensor exact = unpacked(kNf4, at::kFloat), narrow = unpacked(kDouble, at::kFloat);
  const FlatLayout flat = layout();
  for (std::size_t i = 0; i < 2; ++i) {
    const Segment& segment = flat.segments()[i];
    const at::Tensor x = values(segment.numel, i);
    const std::int64_t blocks = (segment.numel + 63) / 64;
    const at::Tensor codes = at::empty({blocks * 32}, at::kByte),
                     scales = at::empty({blocks}, at::kFloat);
    ops::to_nf4(x, codes, scales);
    // Half of the largest gap of the eight-bit table around the mean.
    const float off = (scales - scales.mean()).abs().max().item<float>() * 0.9F / 128 + 1e-6F;
    const at::Tensor error = (exact - narrow).narrow(0, segment.begin, segment.numel).abs();
    EXPECT_LE(error.max().item<float>(), off);
    EXPECT_GT(error.max().item<float>(), 0.0F);
  }
}

TEST(PackedWeights, TakeWhatIsPlanned) {
  // 80 blocks, and 4 for the 210 numbers.
  EXPECT_EQ(packed_bytes(layout(), kNf4), (80 + 4) * (32 + 4));
  EXPECT_EQ(packed_bytes(layout(), kDouble), (80 + 4) * (32 + 1) + 2 * 4);
  EXPECT_EQ(packed_bytes(layout(), kInt8), 40 * 128 + 7 * 30 + 4 * (40 + 7));
}

/// A buffer of one matrix of which this rank holds a box.
FlatLayout cut(Shape global, mesh::Box box) {
  ParamInfo info = *param("w", std::move(global));
  info.spec.splits.push_back({});
  info.box = std::move(box);
  return {"block", {std::make_shared<const ParamInfo>(std::move(info))}, 1};
}

// Three heads of queries, keys and values, of which ranks hold rows, columns or both.
TEST(PackedWeights, OfARankAreItsPartOfThePackedWhole) {
  const Shape shape = {3, 60, 256};
  const std::int64_t numel = 3 * 60 * 256;
  const at::Tensor x = values(numel, 3);
  const ReadWhole read = [&](std::int64_t begin, std::int64_t end, float* out) {
    std::copy_n(x.const_data_ptr<float>() + begin, end - begin, out);
  };
  for (const PackingOptions& options : {kNf4, kDouble, kInt8}) {
    const FlatLayout all("block", {param("w", shape)}, 1);
    PackedWeights packed(all, options);
    packed.pack(0, x, {});
    at::Tensor whole = at::zeros({all.numel()}, at::kFloat);
    packed.unpack(whole);
    for (const mesh::Box& box : {mesh::Box{{0, 0, 0}, {3, 20, 256}},
                                 mesh::Box{{0, 20, 0}, {3, 60, 256}},
                                 mesh::Box{{0, 0, 64}, {3, 60, 128}},
                                 mesh::Box{{0, 30, 192}, {3, 60, 256}}}) {
      const auto part_of = [&](const at::Tensor& of) {
        return of.narrow(0, 0, numel)
            .view(shape)
            .narrow(1, box.begin[1], box.end[1] - box.begin[1])
            .narrow(2, box.begin[2], box.end[2] - box.begin[2])
            .contiguous();
      };
      const FlatLayout own = cut(shape, box);
      PackedWeights part(own, options);
      at::Tensor out = at::zeros({own.numel()}, at::kFloat);

      part.pack(0, part_of(x).flatten(), read);
      part.unpack(out);

      EXPECT_TRUE(at::equal(out.narrow(0, 0, box.numel()), part_of(whole).flatten()))
          << static_cast<int>(options.packing) << " from " << box.begin[1] << " " << box.begin[2];
    }
  }
}

TEST(PackedWeights, AreRefusedWhereTheBlocksOfARankAreNotThoseOfAll) {
  const FlatLayout rows = cut({40, 128}, {{0, 0}, {20, 128}}),
                   uneven = cut({40, 96}, {{0, 0}, {40, 48}});

  EXPECT_EQ(packed_bytes(rows, kNf4), 40 * (32 + 4));
  EXPECT_EQ(packed_bytes(rows, kDouble), 40 * (32 + 1) + 4) << "one scale of all 80 scales";
  EXPECT_EQ(packed_bytes(rows, kInt8), 20 * (128 + 4));
  EXPECT_THROW((void)packed_bytes(uneven, kNf4), Error);
  EXPECT_EQ(packed_bytes(uneven, kInt8), 40 * (48 + 4));
}

}  // namespace
}  // namespace tessera::parallel
