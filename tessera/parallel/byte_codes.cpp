// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/byte_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/int8_rows.h"

namespace tessera::parallel {
namespace {

/// Blocks per thread that are worth starting a thread.
constexpr std::int64_t kBlockGrain = 64;
/// Values that are widened or decoded at a time.
constexpr std::int64_t kSlice = 1 << 16;

constexpr float kLargestCode = 127.0F;
/// Adding and subtracting it rounds a small number to the nearest integer, ties to even.
constexpr float kRounder = 0x1.8p23F;

void encode_block(const float* values, std::int8_t* codes, float* scale) {
  float largest = 0.0F, sum = 0.0F;
  for (std::int64_t i = 0; i < kByteBlock; ++i) {
    largest = std::max(largest, std::abs(values[i]));
    sum += values[i] * 0.0F;  // not a number if any value is non-finite
  }
  if (sum != 0.0F) {
    *scale = sum;
    std::fill_n(codes, kByteBlock, std::int8_t{1});
    return;
  }
  *scale = largest / kLargestCode;
  // A block of zeros has scale 0; any other divisor gives its zeros.
  const float divisor = *scale > 0.0F ? *scale : 1.0F;
  for (std::int64_t i = 0; i < kByteBlock; ++i) {
    const float code = values[i] / divisor + kRounder - kRounder;
    codes[i] = static_cast<std::int8_t>(std::clamp(code, -kLargestCode, kLargestCode));
  }
}

/// Encodes a block with error feedback.
void encode_block(const float* values,
                  c10::BFloat16* residual,
                  const ErrorFeedback& feedback,
                  std::int8_t* codes,
                  float* scale) {
  std::array<float, kByteBlock> sums = {};
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] = values[i] + feedback.scale * static_cast<float>(residual[i]);
  encode_block(sums.data(), codes, scale);
  if (!std::isfinite(*scale)) return;
  const float learned = (1.0F - feedback.beta) / feedback.scale;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float lost = sums[i] - *scale * static_cast<float>(codes[i]);
    residual[i] = feedback.beta * static_cast<float>(residual[i]) + learned * lost;
  }
}

struct Parts {
  at::Tensor codes, scales;
};
Parts parts_of(const at::Tensor& bytes, std::int64_t numel) {
  TESSERA_ASSERT(bytes.is_cpu() && bytes.is_contiguous() && numel % kByteBlock == 0 &&
                 bytes.numel() == byte_codes(numel));
  return {bytes.narrow(0, 0, numel).view(at::kChar),
          bytes.narrow(0, numel, bytes.numel() - numel).view(at::kFloat)};
}

ops::Int8Rows rows_of(const Parts& parts, std::int64_t begin, std::int64_t numel) {
  return {parts.codes.narrow(0, begin, numel).view({-1, kByteBlock}),
          parts.scales.narrow(0, begin / kByteBlock, numel / kByteBlock)};
}

}  // namespace

namespace {

/// Calls encode(values, index of the first one, codes, scale) for every block.
template <class Encode>
void encode_blocks(const at::Tensor& values, const at::Tensor& bytes, const Encode& encode) {
  const std::int64_t numel = values.numel();
  const Parts parts = parts_of(bytes, numel);
  auto* const codes = parts.codes.data_ptr<std::int8_t>();
  auto* const scales = parts.scales.data_ptr<float>();
  for (std::int64_t begin = 0; begin < numel; begin += kSlice) {
    const std::int64_t count = std::min(kSlice, numel - begin);
    const at::Tensor wide = values.narrow(0, begin, count).to(at::kFloat);
    const float* const from = wide.const_data_ptr<float>();
    at::parallel_for(
        0, count / kByteBlock, kBlockGrain, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t block = first; block < last; ++block) {
            const std::int64_t at = begin + block * kByteBlock;
            encode(from + block * kByteBlock, at, codes + at, scales + at / kByteBlock);
          }
        });
  }
}

}  // namespace

void encode_bytes(const at::Tensor& values, const at::Tensor& bytes) {
  encode_blocks(
      values, bytes, [](const float* from, std::int64_t /*at*/, std::int8_t* codes, float* scale) {
        encode_block(from, codes, scale);
      });
}

void encode_bytes(const at::Tensor& values,
                  const at::Tensor& bytes,
                  const at::Tensor& residual,
                  const ErrorFeedback& feedback) {
  TESSERA_ASSERT(residual.is_contiguous() && residual.numel() == values.numel());
  auto* const kept = residual.data_ptr<c10::BFloat16>();
  encode_blocks(
      values, bytes, [&](const float* from, std::int64_t at, std::int8_t* codes, float* scale) {
        encode_block(from, kept + at, feedback, codes, scale);
      });
}

void decode_bytes(const at::Tensor& bytes, const at::Tensor& out) {
  ops::from_int8(rows_of(parts_of(bytes, out.numel()), 0, out.numel()), out.view({-1, kByteBlock}));
}

void add_bytes(const at::Tensor& bytes, const at::Tensor& out) {
  TESSERA_ASSERT(out.scalar_type() == at::kFloat);
  const Parts parts = parts_of(bytes, out.numel());
  const at::Tensor decoded = at::empty({std::min(kSlice, out.numel())}, out.options());
  for (std::int64_t begin = 0; begin < out.numel(); begin += kSlice) {
    const std::int64_t count = std::min(kSlice, out.numel() - begin);
    const at::Tensor slice = decoded.narrow(0, 0, count);
    ops::from_int8(rows_of(parts, begin, count), slice.view({-1, kByteBlock}));
    out.narrow(0, begin, count).add_(slice);
  }
}

}  // namespace tessera::parallel
