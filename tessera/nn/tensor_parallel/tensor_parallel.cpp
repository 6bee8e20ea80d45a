// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/tensor_parallel.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"

namespace tessera::nn {
namespace {

/// The role of a dim of a parameter.
enum class Part : std::uint8_t {
  Any,
  Outputs,   ///< output features of a matrix [outputs, inputs]
  Inputs,    ///< input features of it
  Rows,      ///< rows of a look-up table, which may also be the head's matrix
  Channels,  ///< channels of a table
  Vector     ///< the only dim with an axis name: norms, biases, matrices of adapters
};

constexpr std::optional<LogicalAxis> kAnyAxis = {};
constexpr mesh::AxisSet kDepth = {mesh::Axis::TpDepth}, kRow = {mesh::Axis::TpRow},
                        kCol = {mesh::Axis::TpCol};

struct Row {
  TensorMode mode;
  Part part;
  std::optional<LogicalAxis> axis;  ///< absent: any axis
  mesh::AxisSet over;
  mesh::AxisSet then = {};  ///< the parts of the first split are split over these again
};
/// The first row that matches applies. Axes without a row are replicated.
constexpr std::array kTable = {
    Row{TensorMode::OneD, Part::Any, LogicalAxis::Heads, mesh::AxisSet::tp()},
    // If there are more ranks than heads of keys and values, the ranks of a column have the same
    // ones.
    Row{TensorMode::OneD, Part::Any, LogicalAxis::KvHeads, kCol},
    Row{TensorMode::OneD, Part::Any, LogicalAxis::GroupedHeads, kCol, kRow},
    Row{TensorMode::OneD, Part::Any, LogicalAxis::Ffn, mesh::AxisSet::tp()},
    Row{TensorMode::OneD, Part::Any, LogicalAxis::Vocab, mesh::AxisSet::tp()},
    // Between layers, channels are split over the rows of the grid and samples over its columns.
    Row{TensorMode::TwoD, Part::Outputs, kAnyAxis, kRow},
    Row{TensorMode::TwoD, Part::Inputs, kAnyAxis, kCol},
    Row{TensorMode::TwoD, Part::Rows, kAnyAxis, kCol},
    Row{TensorMode::TwoD, Part::Channels, kAnyAxis, kRow},
    Row{TensorMode::TwoD, Part::Vector, kAnyAxis, kRow},
    // Channels are split over the rows of the cube between layers, and over its depth inside a pair
    // of layers.
    Row{TensorMode::ThreeD, Part::Vector, LogicalAxis::Embed, kRow},
    Row{TensorMode::ThreeD, Part::Any, LogicalAxis::Embed, kRow, kCol},
    Row{TensorMode::ThreeD, Part::Any, kAnyAxis, kDepth},
};

Part part_of(const ParamInfo& info, std::size_t dim) {
  const bool table = info.role == Role::TokenTable || info.role == Role::PositionTable;
  // One row is added to every token; a table of values per head is not a value between layers.
  if (info.role == Role::Vector ||
      (table && (info.shape.front() == 1 || info.axes.back() != LogicalAxis::Embed)))
    return Part::Vector;
  if (table) return dim == 0 ? Part::Rows : Part::Channels;
  return dim + 1 == info.axes.size() ? Part::Inputs : Part::Outputs;
}

const Row* row_of(const ParamInfo& info, std::size_t dim, TensorMode mode) {
  const Part part = part_of(info, dim);
  const LogicalAxis axis = info.axes[dim];
  if (axis == LogicalAxis::None && part != Part::Rows) return nullptr;
  const auto row = std::find_if(kTable.begin(), kTable.end(), [&](const Row& candidate) {
    return candidate.mode == mode && (candidate.part == Part::Any || candidate.part == part) &&
           (!candidate.axis || *candidate.axis == axis);
  });
  return row == kTable.end() ? nullptr : &*row;
}

}  // namespace

mesh::ShardSpec spec_of(const ParamInfo& info, TensorMode mode) {
  mesh::ShardSpec spec = info.spec;
  for (std::size_t d = 0; d < info.axes.size(); ++d) {
    const Row* const row = row_of(info, d, mode);
    if (row == nullptr) continue;
    // Heads stay whole; channels between layers may be split anywhere.
    const std::int64_t unit = info.axes[d] == LogicalAxis::Embed ? 1 : info.unit;
    spec.splits.push_back({.dim = static_cast<int>(d), .axes = row->over, .unit = unit});
    if (row->then.empty()) continue;
    const bool inner = mode == TensorMode::OneD && info.inner_unit > 0;
    spec.splits.push_back(
        {.dim = static_cast<int>(d), .axes = row->then, .unit = inner ? info.inner_unit : unit});
  }
  return spec;
}

mesh::ShardSpec expert_spec_of(const ParamInfo& info, const mesh::ExpertFold& fold) {
  mesh::ShardSpec spec = info.spec;
  if (!fold.ep.empty()) spec.splits.push_back({.dim = 0, .axes = fold.ep});
  if (fold.etp.empty()) return spec;
  ParamInfo of_matrix = info;
  of_matrix.axes.front() = LogicalAxis::None;
  of_matrix.spec = {};
  for (mesh::Split split : spec_of(of_matrix, TensorMode::OneD).splits) {
    split.axes = split.axes & fold.etp;
    if (!split.axes.empty()) spec.splits.push_back(split);
  }
  return spec;
}

void place(Param& param, const TensorParallel* tensor, const ExpertParallel* experts) {
  const ParamInfo& info = param.info();
  const bool stacked = info.stacked();
  comm::World* const world = stacked             ? experts != nullptr ? experts->world : nullptr
                             : tensor != nullptr ? tensor->world
                                                 : nullptr;
  if (world == nullptr) return;
  const mesh::ShardSpec spec =
      stacked ? expert_spec_of(info, experts->fold) : spec_of(info, tensor->mode);
  if (spec.splits.empty()) return;
  const mesh::Mesh& mesh = world->mesh();
  // The first rank has the largest part of every dim, and the last one the smallest.
  const mesh::Box first = mesh::local_box(info.shape, spec, mesh, 0);
  const mesh::Box last = mesh::local_box(info.shape, spec, mesh, mesh.size() - 1);
  TESSERA_REQUIRE(last.numel() > 0 || info.numel() == 0,
                  Config,
                  fmt::format("{} cannot be cut into {} parts", info.name, mesh.size(spec.axes())),
                  stacked ? "lower parallel.expert" : "lower parallel.tensor.size");
  param.place(spec,
              mesh::local_box(info.shape, spec, mesh, world->rank()),
              first.numel(),
              stacked ? first.end.front() : 0);
}

}  // namespace tessera::nn
