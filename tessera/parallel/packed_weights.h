// SPDX-License-Identifier: Apache-2.0
// Frozen weights of one flat buffer in four or eight bits, which are widened while a block uses
// them. Source: Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs"; eight bits
// by row as in Dettmers et al. 2022, "LLM.int8()", without its outliers.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

/// Nf4: 16 values, in blocks of 64 numbers with a scale each. Int8: whole numbers, with a scale for
/// each row of a parameter (its last dim). None: weights stay as they are.
enum class Packing : std::uint8_t { None, Nf4, Int8 };

struct PackingOptions {
  Packing packing = Packing::None;
  /// Nf4: the scales are kept in eight bits themselves, in blocks of 256 around their mean: 4.13
  /// bits a weight in place of 4.5.
  bool double_scales = false;
};

/// What a buffer takes. Error{Unsupported} for parameters that ranks share in a way that the blocks
/// of one rank were not those of all.
std::int64_t packed_bytes(const FlatLayout& layout, const PackingOptions& options);

/// Memory: packed_bytes(). Threads: the rank's own.
class PackedWeights {
 public:
  /// The layout must outlive this. Errors as packed_bytes().
  PackedWeights(const FlatLayout& layout, PackingOptions options);

  /// Takes the values of segment `index`: contiguous fp32, as many as the segment has.
  /// Error{Numeric} for what is not finite.
  void pack(std::size_t index, const at::Tensor& values);
  /// Writes all segments into `whole`, [layout.numel()] in fp32, bf16 or fp16, past autograd; what
  /// lies between them is not written.
  void unpack(const at::Tensor& whole) const;

 private:
  struct Part {
    Segment segment;
    at::Tensor codes;   ///< uint8 [blocks * 32], or int8 [rows, columns]
    at::Tensor scales;  ///< fp32 of each block or row; undefined where they are kept in eight bits
    // In eight bits:
    at::Tensor scale_codes, scale_scales;
    float scale_mean = 0.0F;
  };
  [[nodiscard]] at::Tensor scales_of(const Part& part) const;

  PackingOptions options_;
  std::vector<Part> parts_;
};

}  // namespace tessera::parallel
