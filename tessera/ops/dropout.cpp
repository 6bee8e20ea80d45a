// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kGrain = 4096, kRowGrain = 16;

/// uniform_float(word) >= p holds exactly where the word's upper 24 bits reach this number.
std::uint32_t threshold(double p) {
  return static_cast<std::uint32_t>(std::ceil(p * 0x1.0p24));
}

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

/// Draws for neighbouring elements of contiguous tensors.
class Draw {
 public:
  Draw(const at::Tensor& from, const at::Tensor& to, const DropoutKey& key)
      : from_(static_cast<const char*>(from.data_ptr())),
        to_(static_cast<char*>(to.data_ptr())),
        bytes_(static_cast<std::int64_t>(from.element_size())),
        kernel_(cpu::kernels().dropout[cpu::float_of(from)]),
        key_(key),
        limit_(threshold(key.p)),
        scale_(static_cast<float>(1.0 / (1.0 - key.p))) {}
  /// Elements [at, at + count), of which the first is element `first` of the sample.
  void operator()(std::int64_t at,
                  std::int64_t count,
                  std::int64_t sample,
                  std::int64_t first) const {
    kernel_(from_ + at * bytes_,
            to_ + at * bytes_,
            count,
            key_.key,
            static_cast<std::uint64_t>(key_.sample_ids[static_cast<std::size_t>(sample)]),
            static_cast<std::uint64_t>(key_.element_offset + first),
            limit_,
            scale_);
  }

 private:
  const char* from_;
  char* to_;
  std::int64_t bytes_;
  std::remove_extent_t<decltype(cpu::Kernels::dropout)> kernel_;
  const DropoutKey& key_;
  std::uint32_t limit_;
  float scale_;
};

OpWork work_of(const at::Tensor& x) {
  return {.bytes = 2.0 * static_cast<double>(x.nbytes()), .shape = cpu::shape(x)};
}

std::vector<std::int64_t> numbers_of(const std::vector<Run>& runs) {
  std::vector<std::int64_t> out;
  for (const Run& run : runs) {
    for (std::int64_t i = run.begin; i < run.end; ++i)
      out.push_back(i);
  }
  return out;
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  if (!key.active()) return x;
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  if (x.is_meta()) return y;
  const OpScope scope("dropout", [&] { return work_of(x); });
  const std::int64_t samples = check(x, key);
  if (x.numel() == 0) return y;
  const auto parts = static_cast<std::int64_t>(key.parts.size());
  const at::Tensor from = x.contiguous();
  const std::int64_t each = x.numel() / samples, length = parts == 0 ? each : each / parts;
  // Elements that follow each other in the sample.
  const std::int64_t run = key.columns > 1 ? x.size(-1) : length;
  TESSERA_REQUIRE((parts == 0 || length * parts == each) && length % run == 0,
                  Shape,
                  "dropout of " + cpu::shape(x) + " in " + std::to_string(parts) + " equal parts",
                  "");
  const Draw draw(from, y, key);
  cpu::parallel(x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t in_part = begin % each % length, first = in_part % run;
      const std::int64_t here = std::min(end - begin, run - first);
      const std::int64_t before =
          parts == 0 ? 0 : key.parts[static_cast<std::size_t>(begin % each / length)] * length;
      // Of each run before it the sample has `columns`.
      const std::int64_t runs = (before + in_part) / run * key.columns + key.column;
      draw(begin, here, begin / each, runs * run + first);
      begin += here;
    }
  });
  return y;
}

at::Tensor dropout(const at::Tensor& x_BMRC, const DropoutKey& key, const DropoutWindow& window) {
  if (!key.active()) return x_BMRC;
  at::Tensor y = at::empty_like(x_BMRC, x_BMRC.options(), at::MemoryFormat::Contiguous);
  if (x_BMRC.is_meta()) return y;
  const OpScope scope("dropout", [&] { return work_of(x_BMRC); });
  check(x_BMRC, key);
  TESSERA_ASSERT(key.parts.empty());
  const std::vector<std::int64_t> rows = numbers_of(window.row_runs);
  std::int64_t columns = 0;
  for (const Run& run : window.column_runs)
    columns += run.end - run.begin;
  TESSERA_REQUIRE(
      x_BMRC.dim() == 4 && x_BMRC.size(2) == std::ssize(rows) && x_BMRC.size(3) == columns,
      Shape,
      "dropout of " + cpu::shape(x_BMRC) + " with a window of " + std::to_string(rows.size()) +
          " rows and " + std::to_string(columns) + " columns",
      "");
  const at::Tensor from = x_BMRC.contiguous();
  const std::int64_t M = x_BMRC.size(1), R = x_BMRC.size(2);
  const Draw draw(from, y, key);
  cpu::parallel(x_BMRC.size(0) * M * R, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t matrix = window.first_matrix + row / R % M;
      const std::int64_t of_sample =
          (matrix * window.rows + rows[static_cast<std::size_t>(row % R)]) * window.columns;
      std::int64_t at = row * columns;
      for (const Run& run : window.column_runs) {
        draw(at, run.end - run.begin, row / (M * R), of_sample + run.begin);
        at += run.end - run.begin;
      }
    }
  });
  return y;
}

}  // namespace tessera::ops
