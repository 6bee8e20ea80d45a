// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/packed_weights.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/nf4.h"

namespace tessera::parallel {
namespace {

/// Scales that share a scale themselves if they are stored in eight bits.
constexpr std::int64_t kScaleBlock = 256;

std::int64_t blocks_in(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}

std::int64_t columns_of(const Segment& segment) {
  return segment.info->local_shape().back();
}

/// Checks that each rank's blocks are blocks of the whole parameter.
void require_same_blocks(const Segment& segment, const PackingOptions& options) {
  const ParamInfo& info = *segment.info;
  if (!info.cut()) return;
  const auto refuse = [&](const char* what, const char* fix) {
    throw Error(Error::Kind::Unsupported,
                fmt::format("adapter.quantize_base: {} is shared by ranks, {}", info.name, what),
                fix);
  };
  if (options.packing == Packing::Int8)
    refuse("and a row in int8 has one scale", "set adapter.quantize_base to nf4");
  if (options.double_scales)
    refuse("and the scales of nf4 have one mean", "set adapter.double_quantization to false");
  if (columns_of(segment) % ops::kNf4Block != 0) {
    refuse("and a rank's part of its rows is no multiple of the 64 weights of a block",
           "set parallel.tensor.size to a smaller divisor of the layer's sizes");
  }
}

}  // namespace

std::int64_t packed_bytes(const FlatLayout& layout, const PackingOptions& options) {
  std::int64_t bytes = 0;
  for (const Segment& segment : layout.segments()) {
    require_same_blocks(segment, options);
    if (options.packing == Packing::Int8) {
      bytes += segment.numel + 4 * (segment.numel / columns_of(segment));
      continue;
    }
    const std::int64_t blocks = blocks_in(segment.numel, ops::kNf4Block);
    bytes += blocks * (ops::kNf4Block / 2) +
             (options.double_scales ? blocks + 4 * blocks_in(blocks, kScaleBlock) : 4 * blocks);
  }
  return bytes;
}

PackedWeights::PackedWeights(const FlatLayout& layout, PackingOptions options) : options_(options) {
  TESSERA_ASSERT(options_.packing != Packing::None);
  (void)packed_bytes(layout, options_);
  const memory::ScopedTag tag(memory::Tag::Parameters);
  const auto bytes = [](std::int64_t count) { return at::zeros({count}, at::kByte); };
  const auto floats = [](std::int64_t count) { return at::zeros({count}, at::kFloat); };
  for (const Segment& segment : layout.segments()) {
    Part part;
    part.segment = segment;
    if (options_.packing == Packing::Int8) {
      const std::int64_t rows = segment.numel / columns_of(segment);
      part.codes = at::zeros({rows, columns_of(segment)}, at::kChar);
      part.scales = floats(rows);
    } else {
      const std::int64_t blocks = blocks_in(segment.numel, ops::kNf4Block);
      part.codes = bytes(blocks * (ops::kNf4Block / 2));
      if (options_.double_scales) {
        part.scale_codes = bytes(blocks);
        part.scale_scales = floats(blocks_in(blocks, kScaleBlock));
      } else {
        part.scales = floats(blocks);
      }
    }
    parts_.push_back(std::move(part));
  }
}

void PackedWeights::pack(std::size_t index, const at::Tensor& values) {
  Part& part = parts_.at(index);
  TESSERA_ASSERT(values.numel() == part.segment.numel);
  if (options_.packing == Packing::Int8) {
    const ops::Int8Rows rows = ops::to_int8(values.view(part.codes.sizes()));
    part.codes.copy_(rows.rows_OI);
    part.scales.copy_(rows.scales_O);
    return;
  }
  const std::int64_t blocks = blocks_in(part.segment.numel, ops::kNf4Block);
  const at::Tensor scales = options_.double_scales ? at::empty({blocks}, at::kFloat) : part.scales;
  ops::to_nf4(values, part.codes, scales);
  if (!options_.double_scales) return;
  part.scale_mean = static_cast<float>(scales.mean(at::kDouble).item<double>());
  ops::to_codes8(scales - part.scale_mean,
                 kScaleBlock,
                 DynamicMap::both(),
                 part.scale_codes,
                 part.scale_scales);
}

at::Tensor PackedWeights::scales_of(const Part& part) const {
  if (part.scales.defined()) return part.scales;
  const at::Tensor out = at::empty({part.scale_codes.numel()}, at::kFloat);
  ops::from_codes8(part.scale_codes, part.scale_scales, kScaleBlock, DynamicMap::both(), out);
  return out.add_(part.scale_mean);
}

void PackedWeights::unpack(const at::Tensor& whole) const {
  for (const Part& part : parts_) {
    const at::Tensor out = whole.narrow(0, part.segment.begin, part.segment.numel);
    if (options_.packing == Packing::Int8) {
      ops::from_int8({part.codes, part.scales}, out.view(part.codes.sizes()));
    } else {
      ops::from_nf4(part.codes, scales_of(part), out);
    }
  }
}

}  // namespace tessera::parallel
