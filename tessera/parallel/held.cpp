// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/held.h"

#include <algorithm>
#include <vector>

#include "tessera/checkpoint/geometry.h"
#include "tessera/parallel/weight_tiles.h"

namespace tessera::parallel {
namespace {

/// Rows shorter than this are read together with the gaps between them.
constexpr std::int64_t kLongRow = 1 << 12;
constexpr std::int64_t kMostAtOnce = 1 << 20;

}  // namespace

void fill_held(const FillRange& source,
               const Segment& segment,
               std::int64_t begin,
               std::int64_t end,
               float* out) {
  const ParamInfo& info = *segment.info;
  if (!info.cut() && !info.stacked() && !is_tile(info)) return source(info, begin, end, out);
  checkpoint::SharedRuns rows({segment.box(), begin, end},
                              {mesh::whole(info.shape), 0, info.numel()});
  std::vector<checkpoint::SharedRuns::Run> waiting;
  std::vector<float> values;
  const auto read = [&] {
    if (waiting.empty()) return;
    const std::int64_t first = waiting.front().b, last = waiting.back().b + waiting.back().count;
    values.resize(static_cast<std::size_t>(last - first));
    source(info, first, last, values.data());
    for (const auto& row : waiting)
      std::copy_n(values.data() + (row.b - first), row.count, out + row.a);
    waiting.clear();
  };
  while (const auto row = rows.next()) {
    if (row->count >= kLongRow) {
      source(info, row->b, row->b + row->count, out + row->a);
      continue;
    }
    if (!waiting.empty() && row->b + row->count - waiting.front().b > kMostAtOnce) read();
    waiting.push_back(*row);
  }
  read();
}

}  // namespace tessera::parallel
