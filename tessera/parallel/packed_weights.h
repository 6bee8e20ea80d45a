// SPDX-License-Identifier: Apache-2.0
// Frozen weights of one flat buffer in four or eight bits, which are unpacked while a block uses
// them. Source: Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs"; eight bits
// by row as in Dettmers et al. 2022, "LLM.int8()", without its outliers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

/// Nf4: 16 values, in blocks of 64 numbers with one scale each. Int8: integers, with a scale for
/// each row of a parameter (its last dim). None: weights are not packed.
enum class Packing : std::uint8_t { None, Nf4, Int8 };

struct PackingOptions {
  Packing packing = Packing::None;
  /// With Nf4: the scales are stored in eight bits, in blocks of 256 around their mean: 4.13 bits
  /// per weight instead of 4.5.
  bool double_scales = false;
};

/// Reads the elements [begin, end) of a whole parameter, which other ranks may hold, as fp32.
using ReadWhole = std::function<void(std::int64_t begin, std::int64_t end, float* out)>;

/// Returns the bytes of a packed buffer. Throws Error{Unsupported} for parameters that ranks share
/// in such a way that the blocks of Nf4 of one rank are not blocks of the whole parameter.
std::int64_t packed_bytes(const FlatLayout& layout, const PackingOptions& options);

/// Memory: packed_bytes(). Used only on the rank's own thread.
class PackedWeights {
 public:
  /// The layout must outlive this object. Throws as packed_bytes().
  PackedWeights(const FlatLayout& layout, PackingOptions options);

  /// Packs the values of segment `index`: contiguous fp32, as many as the segment has. If ranks
  /// share the parameter, the result is this rank's part of the packed whole parameter: scales that
  /// depend on the parts of other ranks are computed from `whole`, which is then read once, in
  /// pieces. Throws Error{Numeric} for a value that is not finite.
  void pack(std::size_t index, const at::Tensor& values, const ReadWhole& whole);
  /// Writes all segments into `whole`, [layout.numel()] in fp32, bf16 or fp16, bypassing autograd;
  /// gaps between segments are not written.
  void unpack(const at::Tensor& whole) const;

 private:
  struct Part {
    Segment segment;
    at::Tensor codes;  ///< uint8 [blocks * 32], or int8 [rows, columns]
    /// Fp32, one for each block or row; undefined if scales are stored in eight bits.
    at::Tensor scales;
    // These fields are used if scales are stored in eight bits. `scale_scales` are those of the
    // whole parameter, also if ranks share it.
    at::Tensor scale_codes, scale_scales;
    float scale_mean = 0.0F;
  };
  void pack_int8(Part& part, const at::Tensor& values, const ReadWhole& whole) const;
  [[nodiscard]] at::Tensor scales_of(const Part& part) const;

  PackingOptions options_;
  std::vector<Part> parts_;
};

}  // namespace tessera::parallel
