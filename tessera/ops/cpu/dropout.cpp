// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <algorithm>
#include <cstddef>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/dropout_rows.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

constexpr std::int64_t kDropoutGrain = 4096;

}  // namespace

void CpuBackend::dropout(const at::Tensor& x,
                         const at::Tensor& plus,
                         const DropoutKey& key,
                         const at::Tensor& y) const {
  const DropoutRuns runs = dropout_runs(x, key);
  const at::Tensor from = x.contiguous(), onto = plus.defined() ? plus.contiguous() : at::Tensor();
  const DropoutDraw draw(key);
  const Float type = float_of(from);
  const auto* in = static_cast<const std::byte*>(from.data_ptr());
  const auto* add = onto.defined() ? static_cast<const std::byte*>(onto.data_ptr()) : nullptr;
  auto* out = static_cast<std::byte*>(y.data_ptr());
  const auto width = static_cast<std::int64_t>(from.element_size());
  parallel(x.numel(), kDropoutGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t in_part = begin % runs.each % runs.length, first = in_part % runs.run;
      const std::int64_t here = std::min(end - begin, runs.run - first), at = begin * width;
      const std::int64_t before =
          key.parts.empty()
              ? 0
              : key.parts[static_cast<std::size_t>(begin % runs.each / runs.length)] * runs.length;
      // For each previous run the sample has `columns` runs.
      const std::int64_t runs_before = (before + in_part) / runs.run * key.columns + key.column;
      draw(type,
           in + at,
           add == nullptr ? nullptr : add + at,
           out + at,
           here,
           begin / runs.each,
           runs_before * runs.run + first);
      begin += here;
    }
  });
}

}  // namespace tessera::ops::cpu
