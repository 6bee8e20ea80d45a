// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/dropout_rows.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 4096;

OpWork work_of(const at::Tensor& x, double passes) {
  return {.bytes = passes * static_cast<double>(x.nbytes()), .shape = cpu::shape(x)};
}

/// plus + dropout(x); `plus` undefined: 0.
at::Tensor drawn(const at::Tensor& x, const at::Tensor& plus, const DropoutKey& key) {
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  if (x.is_meta()) return y;
  const OpScope scope("dropout", [&] { return work_of(x, plus.defined() ? 3.0 : 2.0); });
  check_dropout(x, key);
  if (x.numel() == 0) return y;
  const std::int64_t samples = x.size(0);
  const auto parts = static_cast<std::int64_t>(key.parts.size());
  const at::Tensor from = x.contiguous(), onto = plus.defined() ? plus.contiguous() : at::Tensor();
  const std::int64_t each = x.numel() / samples, length = parts == 0 ? each : each / parts;
  // Elements that follow each other in the sample.
  const std::int64_t run = key.columns > 1 ? x.size(-1) : length;
  TESSERA_REQUIRE((parts == 0 || length * parts == each) && length % run == 0,
                  Shape,
                  "dropout of " + cpu::shape(x) + " in " + std::to_string(parts) + " equal parts",
                  "");
  const cpu::DropoutDraw draw(key);
  const cpu::Float type = cpu::float_of(from);
  const auto* in = static_cast<const std::byte*>(from.data_ptr());
  const auto* add = onto.defined() ? static_cast<const std::byte*>(onto.data_ptr()) : nullptr;
  auto* out = static_cast<std::byte*>(y.data_ptr());
  const auto width = static_cast<std::int64_t>(from.element_size());
  cpu::parallel(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t in_part = begin % each % length, first = in_part % run;
      const std::int64_t here = std::min(end - begin, run - first), at = begin * width;
      const std::int64_t before =
          parts == 0 ? 0 : key.parts[static_cast<std::size_t>(begin % each / length)] * length;
      // Of each run before it the sample has `columns`.
      const std::int64_t runs = (before + in_part) / run * key.columns + key.column;
      draw(type,
           in + at,
           add == nullptr ? nullptr : add + at,
           out + at,
           here,
           begin / each,
           runs * run + first);
      begin += here;
    }
  });
  return y;
}

}  // namespace

void check_dropout(const at::Tensor& x, const DropoutKey& key) {
  TESSERA_REQUIRE(key.p <= 1.0, Config, fmt::format("dropout of {}", key.p), "choose from 0 to 1");
  TESSERA_REQUIRE(
      x.dim() > 0 && x.size(0) == std::ssize(key.sample_ids),
      Shape,
      fmt::format("dropout of {} with {} samples", cpu::shape(x), key.sample_ids.size()),
      "give one sample id for each index of the first dimension");
}

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  return key.active() ? drawn(x, {}, key) : x;
}

void check_residual(const at::Tensor& x, const at::Tensor& branch) {
  TESSERA_REQUIRE(x.sizes() == branch.sizes() && x.scalar_type() == branch.scalar_type(),
                  Shape,
                  "add_dropout of " + cpu::shape(x) + " and " + cpu::shape(branch),
                  "give both one shape and dtype");
}

at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const DropoutKey& key) {
  check_residual(x, branch);
  return key.active() ? drawn(branch, x, key) : x + branch;
}

}  // namespace tessera::ops
