// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/dropout_rows.h"

#include <algorithm>
#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"

namespace tessera::ops::cpu {
namespace {

std::int64_t width(Float type) {
  return type == kF32 ? 4 : 2;
}

}  // namespace

DropoutDraw::DropoutDraw(const DropoutKey& key)
    : key_(key), limit_(dropout_threshold(key.p)), scale_(dropout_scale(key.p)) {}

void DropoutDraw::operator()(Float type,
                             const void* from,
                             const void* plus,
                             void* to,
                             std::int64_t count,
                             std::int64_t sample,
                             std::int64_t first) const {
  kernels().dropout[type](
      from,
      plus,
      to,
      count,
      key_.key,
      static_cast<std::uint64_t>(key_.sample_ids[static_cast<std::size_t>(sample)]),
      static_cast<std::uint64_t>(key_.element_offset + first),
      limit_,
      scale_);
}

DropoutRows::DropoutRows(const DropoutKey& key, const DropoutWindow& window)
    : draw_(key), window_(window) {
  TESSERA_ASSERT(key.parts.empty());
  for (const Run& run : window.row_runs) {
    for (std::int64_t row = run.begin; row < run.end; ++row)
      row_numbers_.push_back(row);
  }
  for (const Run& run : window.column_runs)
    columns_ += run.end - run.begin;
}

void DropoutRows::draw(
    Float type, const void* from, void* to, std::int64_t count, const Place& place) const {
  const std::int64_t of_matrix = (window_.first_matrix + place.matrix) * window_.rows;
  const std::int64_t of_row =
      (of_matrix + row_numbers_[static_cast<std::size_t>(place.row)]) * window_.columns;
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  std::int64_t skip = place.column;
  for (const Run& run : window_.column_runs) {
    const std::int64_t length = run.end - run.begin;
    if (skip >= length) {
      skip -= length;
      continue;
    }
    if (count == 0) return;
    const std::int64_t here = std::min(count, length - skip);
    draw_(type, in, nullptr, out, here, place.sample, of_row + run.begin + skip);
    in += here * width(type);
    out += here * width(type);
    count -= here;
    skip = 0;
  }
}

}  // namespace tessera::ops::cpu
