// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/four_bits.h"

#include <algorithm>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

/// Numbers per thread that are worth starting a thread.
constexpr std::int64_t kGrainOfFourBits = 16384;

template <class T>
std::span<T> part_of(const at::Tensor& x, std::int64_t begin, std::int64_t end) {
  return {x.data_ptr<std::remove_const_t<T>>() + begin, static_cast<std::size_t>(end - begin)};
}

/// encode_four_bits() by operations of a device.
void to_four_bits_there(const at::Tensor& values,
                        std::int64_t block,
                        const FourBitMap& map,
                        const at::Tensor& codes_out,
                        const at::Tensor& scales_out) {
  const std::int64_t numel = values.numel(), blocks = scales_out.numel();
  at::Tensor whole = at::zeros({blocks * block}, values.options());
  whole.narrow(0, 0, numel).copy_(values);
  const at::Tensor scales = whole.view({blocks, block}).abs().amax(1).clamp_min(kFourBitLeastScale);
  const at::Tensor shares = whole.view({blocks, block}).div(scales.unsqueeze(1)).view({-1});
  const auto& middles = map.bounds();
  const at::Tensor bounds =
      on_device(at::tensor(at::ArrayRef<float>(middles.data(), middles.size())), values.device());
  // The number of bounds that are not above a number.
  at::Tensor codes = at::bucketize(shares, bounds, /*out_int32=*/true, /*right=*/true);
  if (numel % 2 != 0) codes.narrow(0, numel, 1).zero_();
  codes = codes.narrow(0, 0, (numel + 1) / 2 * 2).view({-1, 2});
  codes_out.copy_(codes.select(1, 0) * 16 + codes.select(1, 1));
  scales_out.copy_(scales);
}

}  // namespace

void to_four_bits(const at::Tensor& values,
                  std::int64_t block,
                  const FourBitMap& map,
                  const at::Tensor& codes_out,
                  const at::Tensor& scales_out,
                  bool again) {
  const std::int64_t numel = values.numel(), blocks = (numel + block - 1) / block;
  TESSERA_ASSERT(values.is_contiguous() && codes_out.numel() == (numel + 1) / 2 &&
                 scales_out.numel() == blocks);
  if (!values.is_cpu() && !again)
    return to_four_bits_there(values, block, map, codes_out, scales_out);
  if (!values.is_cpu()) {
    // The search for the codes of loaded numbers, which is rare.
    const at::Tensor codes = at::empty({codes_out.numel()}, at::kByte),
                     scales = at::empty({blocks}, at::kFloat);
    to_four_bits(values.cpu(), block, map, codes, scales, again);
    codes_out.copy_(codes);
    scales_out.copy_(scales);
    return;
  }
  at::parallel_for(
      0, blocks, std::max<std::int64_t>(1, kGrainOfFourBits / block), [&](auto first, auto last) {
        const std::int64_t begin = first * block, end = std::min(numel, last * block);
        const Codes4 to = {part_of<std::uint8_t>(codes_out, begin / 2, (end + 1) / 2),
                           part_of<float>(scales_out, first, last)};
        (again ? encode_four_bits_again : encode_four_bits)(
            part_of<const float>(values, begin, end), static_cast<std::size_t>(block), map, to);
      });
}

void from_four_bits(const at::Tensor& codes,
                    const at::Tensor& scales,
                    std::int64_t block,
                    const FourBitMap& map,
                    const at::Tensor& out) {
  const std::int64_t numel = out.numel(), blocks = (numel + block - 1) / block;
  TESSERA_ASSERT(out.is_contiguous() && codes.numel() == (numel + 1) / 2 &&
                 scales.numel() == blocks);
  if (!out.is_cpu()) {
    const at::Tensor table = on_device(
        at::tensor(at::ArrayRef<float>(map.values().data(), map.values().size())), out.device());
    const at::Tensor wide = codes.to(at::kLong);
    const at::Tensor both =
        at::stack({wide.div(16, "floor"), wide.remainder(16)}, 1).view({-1}).narrow(0, 0, numel);
    const at::Tensor of_numbers =
        scales.unsqueeze(1).expand({-1, block}).reshape({-1}).narrow(0, 0, numel);
    out.copy_(table.index_select(0, both).mul_(of_numbers));
    return;
  }
  at::parallel_for(
      0, blocks, std::max<std::int64_t>(1, kGrainOfFourBits / block), [&](auto first, auto last) {
        const std::int64_t begin = first * block, end = std::min(numel, last * block);
        decode_four_bits(part_of<const std::uint8_t>(codes, begin / 2, (end + 1) / 2),
                         part_of<const float>(scales, first, last),
                         static_cast<std::size_t>(block),
                         map.values(),
                         part_of<float>(out, begin, end));
      });
}

}  // namespace tessera::ops
