// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/nf4.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Blocks per thread that are worth starting a thread.
constexpr std::int64_t kGrainNf4Blocks = 512;
static_assert(kNf4Block == kNf4Numbers);

}  // namespace

void CpuBackend::widen_nf4(const at::Tensor& codes,
                           const at::Tensor& scales,
                           const at::Tensor& out) const {
  const auto kernel = kernels().widen_nf4[float_of(out)];
  const std::int64_t whole = out.numel() / kNf4Block;
  const Nf4Widening all{.codes = codes.const_data_ptr<std::uint8_t>(),
                        .scales = scales.const_data_ptr<float>(),
                        .table = kNf4Values.data(),
                        .to = out.data_ptr()};
  parallel(whole, kGrainNf4Blocks, [&](std::int64_t begin, std::int64_t end) {
    kernel(all, begin, end);
  });
  const std::int64_t rest = out.numel() - whole * kNf4Block;
  if (rest == 0) return;
  const at::Tensor last = at::empty({kNf4Block}, out.options());
  kernel({.codes = all.codes + whole * (kNf4Block / 2),
          .scales = all.scales + whole,
          .table = all.table,
          .to = last.data_ptr()},
         0,
         1);
  const std::size_t width = out.element_size();
  std::memcpy(static_cast<std::byte*>(all.to) + static_cast<std::size_t>(whole * kNf4Block) * width,
              last.data_ptr(),
              static_cast<std::size_t>(rest) * width);
}

void CpuBackend::narrow_nf4(const at::Tensor& values,
                            const at::Tensor& codes_out,
                            const at::Tensor& scales_out) const {
  const auto kernel = kernels().narrow_nf4;
  const std::int64_t whole = values.numel() / kNf4Block;
  const Nf4Narrowing all{.from = values.const_data_ptr<float>(),
                         .midpoints = kNf4Midpoints.data(),
                         .codes = codes_out.data_ptr<std::uint8_t>(),
                         .scales = scales_out.data_ptr<float>()};
  parallel(whole, kGrainNf4Blocks, [&](std::int64_t begin, std::int64_t end) {
    kernel(all, begin, end);
  });
  const std::int64_t rest = values.numel() - whole * kNf4Block;
  if (rest == 0) return;
  std::array<float, kNf4Block> last{};
  std::copy_n(all.from + whole * kNf4Block, rest, last.begin());
  kernel({.from = last.data(),
          .midpoints = all.midpoints,
          .codes = all.codes + whole * (kNf4Block / 2),
          .scales = all.scales + whole},
         0,
         1);
}

}  // namespace tessera::ops::cpu
