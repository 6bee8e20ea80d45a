// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/nf4.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

/// Numbers per thread that are worth starting a thread.
constexpr std::int64_t kGrain8 = 16384;

std::int64_t nf4_blocks(std::int64_t numbers) {
  return (numbers + kNf4Block - 1) / kNf4Block;
}

void require_nf4(const at::Tensor& codes, const at::Tensor& scales, std::int64_t blocks) {
  TESSERA_REQUIRE(codes.scalar_type() == at::kByte && codes.is_contiguous() &&
                      codes.numel() == blocks * (kNf4Block / 2) &&
                      scales.scalar_type() == at::kFloat && scales.is_contiguous() &&
                      scales.numel() == blocks,
                  Shape,
                  "NF4 codes of " + shape(codes) + " with scales of " + shape(scales),
                  fmt::format("expected {} bytes and {} scales", blocks * (kNf4Block / 2), blocks));
}

template <class T>
std::span<T> elements(const at::Tensor& x, std::int64_t begin, std::int64_t end) {
  return {x.data_ptr<std::remove_const_t<T>>() + begin, static_cast<std::size_t>(end - begin)};
}

/// The scale of each block for each of its `numel` numbers.
at::Tensor for_numbers(const at::Tensor& of_blocks, std::int64_t block, std::int64_t numel) {
  return of_blocks.unsqueeze(1).expand({-1, block}).reshape({-1}).narrow(0, 0, numel);
}

/// encode_blocks() by operations of a device.
void to_codes8_there(const at::Tensor& values,
                     std::int64_t block,
                     const DynamicMap& map,
                     const at::Tensor& codes_out,
                     const at::Tensor& scales_out) {
  const std::int64_t numel = values.numel(), blocks = scales_out.numel();
  at::Tensor whole = at::zeros({blocks * block}, values.options());
  whole.narrow(0, 0, numel).copy_(values);
  const at::Tensor largest = whole.view({blocks, block}).abs().amax(1);
  // The smallest scale is that of base/quant_codes.cpp.
  const at::Tensor inverse = largest.clamp_min(1e-38F).reciprocal();
  const at::Tensor shares =
      (whole.view({blocks, block}) * inverse.unsqueeze(1)).clamp_(-1.0, 1.0).view({-1});
  const auto middles = midpoints(map.values());
  const at::Tensor bounds =
      on_device(at::tensor(at::ArrayRef<float>(middles.data(), middles.size())), values.device());
  codes_out.copy_(at::bucketize(shares.narrow(0, 0, numel), bounds));
  scales_out.copy_(largest);
}

}  // namespace

void to_nf4(const at::Tensor& values, const at::Tensor& codes_out, const at::Tensor& scales_out) {
  TESSERA_ASSERT(values.scalar_type() == at::kFloat && values.is_contiguous());
  require_nf4(codes_out, scales_out, nf4_blocks(values.numel()));
  const std::int64_t bad = first_nonfinite(values.data_ptr<float>(), values.numel());
  TESSERA_REQUIRE(bad < 0 || bad >= values.numel(),
                  Numeric,
                  fmt::format("element {} of a weight is not finite", bad),
                  "look for it with: tessera inspect");
  backend(values.device()).narrow_nf4(values, codes_out, scales_out);
}

void from_nf4(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& out) {
  TESSERA_ASSERT(out.is_contiguous());
  require_nf4(codes, scales, nf4_blocks(out.numel()));
  backend(out.device()).widen_nf4(codes, scales, out);
}

void to_codes8(const at::Tensor& values,
               std::int64_t block,
               const DynamicMap& map,
               const at::Tensor& codes_out,
               const at::Tensor& scales_out,
               bool again) {
  const std::int64_t numel = values.numel(), blocks = (numel + block - 1) / block;
  TESSERA_ASSERT(values.is_contiguous() && codes_out.numel() == numel &&
                 scales_out.numel() == blocks);
  if (!values.is_cpu() && !again) return to_codes8_there(values, block, map, codes_out, scales_out);
  if (!values.is_cpu()) {
    // The search for the codes of loaded numbers, which is rare.
    const at::Tensor codes = at::empty({numel}, at::kByte),
                     scales = at::empty({blocks}, at::kFloat);
    to_codes8(values.cpu(), block, map, codes, scales, again);
    codes_out.copy_(codes);
    scales_out.copy_(scales);
    return;
  }
  at::parallel_for(
      0, blocks, std::max<std::int64_t>(1, kGrain8 / block), [&](auto first, auto last) {
        const std::int64_t begin = first * block, end = std::min(numel, last * block);
        const Codes8 to = {elements<std::uint8_t>(codes_out, begin, end),
                           elements<float>(scales_out, first, last)};
        (again ? encode_blocks_again : encode_blocks)(
            elements<const float>(values, begin, end), static_cast<std::size_t>(block), map, to);
      });
}

void from_codes8(const at::Tensor& codes,
                 const at::Tensor& scales,
                 std::int64_t block,
                 const DynamicMap& map,
                 const at::Tensor& out) {
  const std::int64_t numel = out.numel(), blocks = (numel + block - 1) / block;
  TESSERA_ASSERT(out.is_contiguous() && codes.numel() == numel && scales.numel() == blocks);
  if (!out.is_cpu()) {
    const at::Tensor table = on_device(
        at::tensor(at::ArrayRef<float>(map.values().data(), map.values().size())), out.device());
    out.copy_(table.index_select(0, codes.to(at::kLong)).mul_(for_numbers(scales, block, numel)));
    return;
  }
  at::parallel_for(
      0, blocks, std::max<std::int64_t>(1, kGrain8 / block), [&](auto first, auto last) {
        const std::int64_t begin = first * block, end = std::min(numel, last * block);
        decode_blocks(elements<const std::uint8_t>(codes, begin, end),
                      elements<const float>(scales, first, last),
                      static_cast<std::size_t>(block),
                      map.values(),
                      elements<float>(out, begin, end));
      });
}

}  // namespace tessera::ops
