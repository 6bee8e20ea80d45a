// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/tensor_parallel.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"

namespace tessera::nn {
namespace {

struct Row {
  TensorMode mode;
  std::string_view axis;
  mesh::AxisSet over;
};
/// Axes that are not here are replicated.
constexpr std::array kTable = {
    Row{TensorMode::OneD, "heads", mesh::AxisSet::tp()},
    Row{TensorMode::OneD, "ffn", mesh::AxisSet::tp()},
    Row{TensorMode::OneD, "vocab", mesh::AxisSet::tp()},
};

}  // namespace

mesh::ShardSpec spec_of(const ParamInfo& info, TensorMode mode) {
  mesh::ShardSpec spec = info.spec;
  for (std::size_t d = 0; d < info.axes.size(); ++d) {
    const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const Row& candidate) {
      return candidate.mode == mode && candidate.axis == info.axes[d];
    });
    if (row == kTable.end()) continue;
    spec.splits.push_back({.dim = static_cast<int>(d), .axes = row->over, .unit = info.unit});
  }
  return spec;
}

void place(Param& param, const TensorParallel& tensor) {
  const ParamInfo& info = param.info();
  const mesh::ShardSpec spec = spec_of(info, tensor.mode);
  if (spec.splits.empty()) return;
  const mesh::Mesh& mesh = tensor.world->mesh();
  // The first rank has the largest part of every dim, the last one the smallest.
  const mesh::Box first = mesh::local_box(info.shape, spec, mesh, tensor.group->ranks.front());
  const mesh::Box last = mesh::local_box(info.shape, spec, mesh, tensor.group->ranks.back());
  TESSERA_REQUIRE(last.numel() > 0 || info.numel() == 0,
                  Config,
                  fmt::format("{} cannot be cut into {} parts", info.name, tensor.group->size()),
                  "lower parallel.tensor.size");
  param.place(spec, mesh::local_box(info.shape, spec, mesh, tensor.world->rank()), first.numel());
}

}  // namespace tessera::nn
