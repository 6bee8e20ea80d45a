// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 4096;

/// uniform_float(word) >= p holds exactly where the word's upper 24 bits reach this number.
std::uint32_t threshold(double p) {
  return static_cast<std::uint32_t>(std::ceil(p * 0x1.0p24));
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  if (!key.active()) return x;
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  if (x.is_meta()) return y;
  TESSERA_REQUIRE(
      key.p <= 1.0, Config, "dropout of " + std::to_string(key.p), "choose from 0 to 1");
  const std::int64_t samples = static_cast<std::int64_t>(key.sample_ids.size());
  TESSERA_REQUIRE(x.dim() > 0 && x.size(0) == samples,
                  Shape,
                  "dropout of " + cpu::shape(x) + " with " + std::to_string(samples) + " samples",
                  "give one sample id for each index of the first dimension");
  if (x.numel() == 0) return y;
  const at::Tensor from = x.contiguous();
  const std::int64_t each = x.numel() / samples;
  const std::int64_t bytes = static_cast<std::int64_t>(x.element_size());
  const auto kernel = cpu::kernels().dropout[cpu::float_of(x)];
  const std::uint32_t limit = threshold(key.p);
  const float scale = static_cast<float>(1.0 / (1.0 - key.p));
  // Elements that follow each other in the sample, and from one such run to the next.
  const std::int64_t run = key.columns > 1 ? x.size(-1) : each;
  const std::int64_t next = run * key.columns;
  const std::int64_t offset = key.element_offset + key.part * each * key.columns + key.column * run;
  cpu::parallel(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t sample = begin / each, first = begin % each % run;
      const std::int64_t here = std::min(end - begin, run - first);
      kernel(static_cast<const char*>(from.data_ptr()) + begin * bytes,
             static_cast<char*>(y.data_ptr()) + begin * bytes,
             here,
             key.key,
             static_cast<std::uint64_t>(key.sample_ids[static_cast<std::size_t>(sample)]),
             static_cast<std::uint64_t>(offset + begin % each / run * next + first),
             limit,
             scale);
      begin += here;
    }
  });
  return y;
}

}  // namespace tessera::ops
