// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fake_quantize.h"

#include <array>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"

// Legend: N rows, I numbers of a row, G groups, S numbers of a group.
namespace tessera::ops {
namespace {

constexpr double kLargestFp4 = 6.0, kLargestFp8 = 448.0;
constexpr double kLeastFp8Scale = 0.015625;  // the smallest normal float8 e4m3
constexpr double kLeastInt4Range = 1e-6;     // torchao's eps of groups
constexpr double kLeastPowerOfTwo = 0x1p-126;
constexpr double kLeastInt8Scale = 1.1920929e-7;  // of float32

/// The nearest numbers among 0, 0.5, 1, 1.5, 2, 3, 4 and 6, the even one of two, with their sign.
at::Tensor to_fp4(const at::Tensor& x) {
  const at::Tensor size = x.abs().clamp_max(kLargestFp4);
  const at::Tensor small = (size * 2).round() / 2, middle = size.round(),
                   large = (size / 2).round() * 2;
  const at::Tensor rounded = at::where(size < 2, small, at::where(size < 4, middle, large));
  return rounded * x.sign();
}

at::Tensor to_fp8(const at::Tensor& x) {
  return x.clamp(-kLargestFp8, kLargestFp8).to(at::kFloat8_e4m3fn).to(at::kFloat);
}

at::Tensor rounded_int8_rows(const at::Tensor& x_NI) {
  const at::Tensor least = x_NI.amin(-1, true).clamp_max(0),
                   most = x_NI.amax(-1, true).clamp_min(0);
  const at::Tensor scale = ((most - least) / 255.0).clamp_min(kLeastInt8Scale);
  const at::Tensor zero = (-128 - (least / scale).round()).clamp(-128, 127);
  const at::Tensor steps = ((x_NI * scale.reciprocal()).round() + zero).clamp(-128, 127);
  return (steps - zero) * scale;
}

at::Tensor int4_groups(const at::Tensor& x_NGS) {
  const at::Tensor least = x_NGS.amin(-1, true), most = x_NGS.amax(-1, true);
  const at::Tensor scale = (most - least).clamp_min(kLeastInt4Range) / 15.0;
  const at::Tensor steps = ((x_NGS - least) / scale).round().clamp(0, 15) - 8;
  return steps * scale + (least + scale * 8);
}

at::Tensor fp8_rows(const at::Tensor& x_NI) {
  const at::Tensor largest = x_NI.abs().amax(-1, true);
  // A row of zeros has no scale.
  const at::Tensor scale = at::where(largest > 0, largest / kLargestFp8, at::ones_like(largest));
  return to_fp8(x_NI / scale) * scale;
}

at::Tensor mxfp4_groups(const at::Tensor& x_NGS) {
  const at::Tensor wanted = x_NGS.abs().amax(-1, true) / kLargestFp4;
  // The least power of two that is not below it: a fraction carries into the exponent.
  const at::Tensor bits = wanted.clamp_min(kLeastPowerOfTwo).view(at::kInt);
  const at::Tensor scale = (bits + 0x007fffff).bitwise_and(0x7f800000).view(at::kFloat);
  return to_fp4(x_NGS / scale) * scale;
}

/// `largest`: of the part to which a row belongs, [N, 1, 1] or [].
at::Tensor nvfp4_groups(const at::Tensor& x_NGS, const at::Tensor& largest) {
  const at::Tensor of_part = largest / (kLargestFp8 * kLargestFp4);
  const at::Tensor divisor = at::where(of_part > 0, of_part, at::ones_like(of_part));
  const at::Tensor wanted = x_NGS.abs().amax(-1, true) / kLargestFp4;
  const at::Tensor scale = to_fp8((wanted / divisor).clamp(kLeastFp8Scale, kLargestFp8));
  const at::Tensor shares = x_NGS * (divisor.reciprocal() / scale);
  return to_fp4(shares) * (scale * divisor);
}

}  // namespace

std::int64_t fake_group(FakeFormat format, std::int64_t group_size) {
  switch (format) {
    case FakeFormat::Int8Row:
    case FakeFormat::Fp8Row:
      return 0;
    case FakeFormat::Int4Group:
      return group_size;
    case FakeFormat::Mxfp4:
      return 32;
    case FakeFormat::Nvfp4:
      return 16;
  }
  return 0;
}

at::Tensor fake_quantized(const at::Tensor& x_NI,
                          FakeFormat format,
                          std::int64_t group_size,
                          const at::Tensor& part_N) {
  const at::AutoGradMode no_gradient(false);
  if (x_NI.numel() == 0) return x_NI;
  const std::int64_t group = fake_group(format, group_size);
  TESSERA_ASSERT(x_NI.dim() == 2 && (group == 0 || x_NI.size(1) % group == 0));
  if (x_NI.is_meta()) {
    // Memory is measured with tensors that have no values, for which few operations exist: what
    // follows holds up to as many copies at a time.
    std::array<at::Tensor, 6> copies;
    for (at::Tensor& copy : copies)
      copy = at::empty(x_NI.sizes(), x_NI.options().dtype(at::kFloat));
    return at::empty_like(x_NI);
  }
  const at::Tensor wide_NI = x_NI.detach().to(at::kFloat);
  if (group == 0)
    return (format == FakeFormat::Int8Row ? rounded_int8_rows(wide_NI) : fp8_rows(wide_NI))
        .to(x_NI.scalar_type());
  const at::Tensor wide_NGS = wide_NI.reshape({x_NI.size(0), -1, group});
  at::Tensor out;
  if (format == FakeFormat::Int4Group) {
    out = int4_groups(wide_NGS);
  } else if (format == FakeFormat::Mxfp4) {
    out = mxfp4_groups(wide_NGS);
  } else {
    at::Tensor largest = wide_NI.abs().amax();
    if (part_N.defined()) {
      const at::Tensor of_rows = wide_NI.abs().amax(1);
      largest = at::zeros({part_N.max().item<std::int64_t>() + 1}, of_rows.options())
                    .scatter_reduce(0, part_N, of_rows, "amax")
                    .index_select(0, part_N)
                    .view({-1, 1, 1});
    }
    out = nvfp4_groups(wide_NGS, largest);
  }
  return out.reshape(x_NI.sizes()).to(x_NI.scalar_type());
}

}  // namespace tessera::ops
