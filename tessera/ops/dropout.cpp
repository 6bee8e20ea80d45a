// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <algorithm>
#include <cstddef>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/dropout_rows.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 4096, kRowGrain = 16;

/// The number of samples.
std::int64_t check(const at::Tensor& x, const DropoutKey& key) {
  TESSERA_REQUIRE(
      key.p <= 1.0, Config, "dropout of " + std::to_string(key.p), "choose from 0 to 1");
  const std::int64_t samples = static_cast<std::int64_t>(key.sample_ids.size());
  TESSERA_REQUIRE(x.dim() > 0 && x.size(0) == samples,
                  Shape,
                  "dropout of " + cpu::shape(x) + " with " + std::to_string(samples) + " samples",
                  "give one sample id for each index of the first dimension");
  return samples;
}

OpWork work_of(const at::Tensor& x, double passes) {
  return {.bytes = passes * static_cast<double>(x.nbytes()), .shape = cpu::shape(x)};
}

/// plus + dropout(x); `plus` undefined: 0.
at::Tensor drawn(const at::Tensor& x, const at::Tensor& plus, const DropoutKey& key) {
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  if (x.is_meta()) return y;
  const OpScope scope("dropout", [&] { return work_of(x, plus.defined() ? 3.0 : 2.0); });
  const std::int64_t samples = check(x, key);
  if (x.numel() == 0) return y;
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

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  return key.active() ? drawn(x, {}, key) : x;
}

at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const DropoutKey& key) {
  TESSERA_REQUIRE(x.sizes() == branch.sizes() && x.scalar_type() == branch.scalar_type(),
                  Shape,
                  "add_dropout of " + cpu::shape(x) + " and " + cpu::shape(branch),
                  "give both one shape and dtype");
  return key.active() ? drawn(branch, x, key) : x + branch;
}

at::Tensor dropout(const at::Tensor& x_BMRC, const DropoutKey& key, const DropoutWindow& window) {
  if (!key.active()) return x_BMRC;
  at::Tensor y = at::empty_like(x_BMRC, x_BMRC.options(), at::MemoryFormat::Contiguous);
  if (x_BMRC.is_meta()) return y;
  const OpScope scope("dropout", [&] { return work_of(x_BMRC, 2.0); });
  check(x_BMRC, key);
  const cpu::DropoutRows rows(key, window);
  TESSERA_REQUIRE(
      x_BMRC.dim() == 4 && x_BMRC.size(2) == rows.rows() && x_BMRC.size(3) == rows.columns(),
      Shape,
      "dropout of " + cpu::shape(x_BMRC) + " with a window of " + std::to_string(rows.rows()) +
          " rows and " + std::to_string(rows.columns()) + " columns",
      "");
  const at::Tensor from = x_BMRC.contiguous();
  const cpu::Float type = cpu::float_of(from);
  const auto* in = static_cast<const std::byte*>(from.data_ptr());
  auto* out = static_cast<std::byte*>(y.data_ptr());
  const std::int64_t M = x_BMRC.size(1), R = x_BMRC.size(2), C = x_BMRC.size(3);
  const auto width = C * static_cast<std::int64_t>(from.element_size());
  cpu::parallel(x_BMRC.size(0) * M * R, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      rows.draw(type,
                in + row * width,
                out + row * width,
                C,
                {.sample = row / (M * R), .matrix = row / R % M, .row = row % R, .column = 0});
    }
  });
  return y;
}

}  // namespace tessera::ops
