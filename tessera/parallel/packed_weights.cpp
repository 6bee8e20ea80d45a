// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/packed_weights.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/nf4.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

/// Scales that share a scale themselves if they are stored in eight bits.
constexpr std::int64_t kScaleBlock = 256;

std::int64_t blocks_in(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}

/// What a segment is a part of: a whole parameter, or one whole matrix of a stacked parameter. It
/// is packed as if no ranks shared it, so that ranks that divide the matrices have the same bits.
struct PackedWhole {
  Shape shape;
  mesh::Box box;           ///< the segment's part
  bool cut = false;        ///< ranks share it
  std::int64_t first = 0;  ///< its first element in the parameter
  [[nodiscard]] std::int64_t numel() const { return mesh::whole(shape).numel(); }
};

PackedWhole whole_of(const Segment& segment) {
  const ParamInfo& info = *segment.info;
  PackedWhole out;
  out.shape = info.shape;
  out.box = segment.box();
  out.cut = info.cut();
  if (segment.matrix < 0) return out;
  out.shape.erase(out.shape.begin());
  out.box.begin.erase(out.box.begin.begin());
  out.box.end.erase(out.box.end.begin());
  out.cut = !info.axes_of_matrix().empty();
  out.first = segment.matrix * out.numel();
  return out;
}

/// The number of scales that have a scale in common, of the whole.
std::int64_t groups_of_scales(const Segment& segment) {
  return blocks_in(blocks_in(whole_of(segment).numel(), ops::kNf4Block), kScaleBlock);
}

std::int64_t columns_of(const Segment& segment) {
  return segment.info->local_shape().back();
}

/// The rows of the whole [.., columns] that this rank's rows are, in order: int64 [rows].
at::Tensor rows_in_whole(const PackedWhole& of) {
  at::Tensor rows = at::zeros({1}, at::kLong);
  for (std::size_t d = 0; d + 1 < of.shape.size(); ++d) {
    const at::Tensor own = at::arange(of.box.begin[d], of.box.end[d], at::kLong);
    rows = (rows.unsqueeze(1) * of.shape[d] + own).flatten();
  }
  return rows;
}

/// The blocks of the whole that this rank's blocks are, in order: int64 [blocks].
at::Tensor blocks_in_whole(const PackedWhole& of) {
  const at::Tensor columns = at::arange(
      of.box.begin.back() / ops::kNf4Block, of.box.end.back() / ops::kNf4Block, at::kLong);
  const std::int64_t blocks_of_row = of.shape.back() / ops::kNf4Block;
  return (rows_in_whole(of).unsqueeze(1) * blocks_of_row + columns).flatten();
}

/// Calls `take` with pieces of the whole, which consist of complete units of `unit` elements (the
/// last one may be shorter).
void for_each_piece(const PackedWhole& of,
                    std::int64_t unit,
                    const ReadWhole& read,
                    const std::function<void(std::int64_t begin, const at::Tensor& values)>& take) {
  constexpr std::int64_t kElements = 1 << 20;
  TESSERA_ASSERT(read != nullptr);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / unit) * unit;
  for (std::int64_t begin = 0; begin < of.numel(); begin += step) {
    const at::Tensor values = at::empty({std::min(step, of.numel() - begin)}, at::kFloat);
    const std::int64_t from = of.first + begin;
    read(from, from + values.numel(), values.data_ptr<float>());
    take(begin, values);
  }
}

/// The scales of all blocks of the whole, as to_nf4() computes them.
at::Tensor scales_of_whole(const PackedWhole& of, const ReadWhole& read) {
  const at::Tensor scales = at::empty({blocks_in(of.numel(), ops::kNf4Block)}, at::kFloat);
  for_each_piece(of, ops::kNf4Block, read, [&](std::int64_t begin, const at::Tensor& values) {
    const std::int64_t blocks = blocks_in(values.numel(), ops::kNf4Block);
    ops::to_nf4(values,
                at::empty({blocks * (ops::kNf4Block / 2)}, at::kByte),
                scales.narrow(0, begin / ops::kNf4Block, blocks));
  });
  return scales;
}

/// Checks that each rank's blocks of Nf4 are blocks of the whole.
void require_same_blocks(const Segment& segment, const PackingOptions& options) {
  const PackedWhole of = whole_of(segment);
  if (!of.cut || options.packing != Packing::Nf4) return;
  const bool same = columns_of(segment) % ops::kNf4Block == 0 &&
                    of.shape.back() % ops::kNf4Block == 0 &&
                    of.box.begin.back() % ops::kNf4Block == 0;
  TESSERA_REQUIRE(same,
                  Unsupported,
                  fmt::format("adapter.quantize_base: {} is shared by ranks, and a rank's part of "
                              "its rows is not a multiple of the {} weights of a block",
                              segment.info->name,
                              ops::kNf4Block),
                  "set parallel.tensor.size to a smaller divisor of the layer's sizes, or "
                  "adapter.quantize_base to int8");
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
             (options.double_scales ? blocks + 4 * groups_of_scales(segment) : 4 * blocks);
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
        part.scale_scales = floats(groups_of_scales(segment));
      } else {
        part.scales = floats(blocks);
      }
    }
    parts_.push_back(std::move(part));
  }
}

void PackedWeights::pack_int8(Part& part, const at::Tensor& values, const ReadWhole& whole) const {
  const PackedWhole of = whole_of(part.segment);
  const at::Tensor rows = values.view(part.codes.sizes());
  const std::int64_t all_columns = of.shape.back();
  at::Tensor of_whole;  // the scale belongs to the whole row
  if (rows.size(1) != all_columns) {
    const at::Tensor largest = at::empty({of.numel() / all_columns}, at::kFloat);
    for_each_piece(of, all_columns, whole, [&](std::int64_t begin, const at::Tensor& piece) {
      const at::Tensor of_rows = ops::largest_of_rows(piece.view({-1, all_columns}));
      largest.narrow(0, begin / all_columns, of_rows.numel()).copy_(of_rows);
    });
    of_whole = largest.index_select(0, rows_in_whole(of));
  }
  const ops::Int8Rows packed = ops::to_int8(rows, of_whole);
  part.codes.copy_(packed.rows_OI);
  part.scales.copy_(packed.scales_O);
}

namespace {

/// Moves what is packed to the memory of a device.
template <class Part>
void move_to(c10::Device device, Part& part) {
  for (at::Tensor* const values :
       {&part.codes, &part.scales, &part.scale_codes, &part.scale_scales}) {
    if (values->defined()) *values = values->to(device);
  }
}

}  // namespace

void PackedWeights::pack(std::size_t index, const at::Tensor& values, const ReadWhole& whole) {
  Part& part = parts_.at(index);
  TESSERA_ASSERT(values.numel() == part.segment.numel);
  // Weights of a device are packed on the host, which has read them.
  const at::Tensor on_host = host_values(values);
  move_to(at::kCPU, part);
  if (options_.packing == Packing::Int8) {
    pack_int8(part, on_host, whole);
    return move_to(values.device(), part);
  }
  const PackedWhole of = whole_of(part.segment);
  const std::int64_t blocks = blocks_in(part.segment.numel, ops::kNf4Block);
  const at::Tensor own = options_.double_scales ? at::empty({blocks}, at::kFloat) : part.scales;
  ops::to_nf4(on_host, part.codes, own);
  if (!options_.double_scales) return move_to(values.device(), part);
  const at::Tensor scales = of.cut ? scales_of_whole(of, whole) : own;
  const at::Tensor codes = of.cut ? at::empty({scales.numel()}, at::kByte) : part.scale_codes;
  part.scale_mean = static_cast<float>(scales.mean(at::kDouble).item<double>());
  ops::to_codes8(
      scales - part.scale_mean, kScaleBlock, DynamicMap::both(), codes, part.scale_scales);
  if (of.cut) part.scale_codes.copy_(codes.index_select(0, blocks_in_whole(of)));
  move_to(values.device(), part);
}

at::Tensor PackedWeights::scales_of(const Part& part) const {
  if (part.scales.defined()) return part.scales;
  const PackedWhole of = whole_of(part.segment);
  const at::Tensor out =
      at::empty({part.scale_codes.numel()}, part.scale_codes.options().dtype(at::kFloat));
  if (of.cut) {
    const at::Tensor groups =
        on_device(blocks_in_whole(of).floor_divide_(kScaleBlock), out.device());
    ops::from_codes8(part.scale_codes,
                     part.scale_scales.index_select(0, groups),
                     /*block=*/1,
                     DynamicMap::both(),
                     out);
  } else {
    ops::from_codes8(part.scale_codes, part.scale_scales, kScaleBlock, DynamicMap::both(), out);
  }
  return out.add_(part.scale_mean);
}

void PackedWeights::unpack(const at::Tensor& whole_tensor) const {
  // Autograd must not count this as a change, by whatever operations it is made.
  const at::Tensor whole = whole_tensor.variable_data();
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
