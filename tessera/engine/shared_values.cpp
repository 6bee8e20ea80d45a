// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/shared_values.h"

#include <algorithm>
#include <cstddef>

namespace tessera::engine {

namespace {

void share(comm::World& world,
           const comm::Group& group,
           std::vector<double>& values,
           const char* what) {
  constexpr std::size_t kAtOnce = 4096;
  for (std::size_t first = 0; first < values.size(); first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, values.size() - first);
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<double> summed =
        world.all_reduce(group,
                         std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(count)),
                         comm::Op::Sum,
                         TESSERA_HERE(what));
    std::ranges::copy(summed, begin);
  }
}

}  // namespace

void share_values(comm::World& world, std::vector<double>& values, const char* what) {
  share(world, world.group(mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet::tokens()), values, what);
}

void share_with_all(comm::World& world, std::vector<double>& values, const char* what) {
  share(world, world.everyone(), values, what);
}

}  // namespace tessera::engine
