// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/tensor_rules.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/tensor_mode.h"

namespace tessera::parallel {

void check_grid(const TensorOptions& tensor,
                config::Problems& problems,
                const config::Origins& origins) {
  if (problems.concern("parallel.tensor.mode")) return;  // its requirements are unknown
  const TensorLayout mode = tensor.layout();
  const auto add = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (tensor.depth.value_or(1) != 1 && mode != TensorLayout::TwoAndAHalfD) {
    add("parallel.tensor.depth",
        fmt::format("mode {} has no depth", tensor.name()),
        "remove it, or set parallel.tensor.mode to \"2.5d\"");
  }
  if (mode == TensorLayout::OneD || problems.concern("parallel.tensor.size") ||
      problems.concern("parallel.tensor.depth"))
    return;
  const std::int64_t depth = mode == TensorLayout::TwoAndAHalfD ? tensor.depth.value_or(1) : 1;
  std::int64_t below = 0, above = 0;
  for (std::int64_t side = 1; above == 0; ++side) {
    const std::int64_t size = depth * side * side * (mode == TensorLayout::ThreeD ? side : 1);
    if (size == tensor.size) return;
    (size < tensor.size ? below : above) = size;
  }
  add("parallel.tensor.size",
      fmt::format("{} ranks are not {}",
                  tensor.size,
                  mode == TensorLayout::TwoD     ? "a square"
                  : mode == TensorLayout::ThreeD ? "a cube"
                                                 : fmt::format("{} squares of one size", depth)),
      below > 0 ? fmt::format("set it to {} or {}", below, above)
                : fmt::format("set it to {}", above));
}

namespace {

// The sizes of a model that ranks split, by their option keys.
struct CutAxis {
  LogicalAxis axis;
  const char* key;
  const char* name;
};
constexpr std::array kCutAxes = {
    CutAxis{LogicalAxis::Heads, "num_heads", "heads"},
    CutAxis{LogicalAxis::KvHeads, "num_kv_heads", "heads of keys and values"},
    CutAxis{LogicalAxis::GroupedHeads, "num_heads", "heads"},
    CutAxis{LogicalAxis::Ffn, "ffn_hidden_size", "features of the MLP"},
    CutAxis{LogicalAxis::Vocab, "vocab_size", "tokens of the vocabulary"},
    CutAxis{LogicalAxis::Embed, "hidden_size", "channels"},
    CutAxis{LogicalAxis::None, "max_positions", "positions"}};

mesh::Mesh mesh_of(const TensorOptions::Grid& grid) {
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  return mesh::Mesh({.tp_depth = of(grid.depth), .tp_row = of(grid.row), .tp_col = of(grid.col)});
}

// The number of parts into which a dim is split.
std::int64_t parts_of(const ParamInfo& info,
                      std::size_t dim,
                      nn::TensorMode mode,
                      const mesh::Mesh& mesh) {
  std::int64_t parts = 1;
  for (const mesh::Split& split : nn::spec_of(info, mode).splits) {
    if (split.dim == static_cast<int>(dim)) parts *= mesh.size(split.axes);
  }
  return parts;
}

// The largest size of the mode, at most that of `tensor`, whose grid has at most `most` parts along
// the axes that split into `parts`.
std::int64_t nearest_grid(const TensorOptions& tensor, std::int64_t parts, std::int64_t most) {
  const TensorOptions::Grid grid = tensor.grid();
  if (mode_of(tensor.layout()) == nn::TensorMode::OneD) return most;
  std::int64_t side = grid.row;
  // In 3d, channels are split twice.
  const auto parts_at = [&](std::int64_t s) { return parts > grid.row ? s * s : s; };
  while (side > 1 && parts_at(side) > most)
    --side;
  return side * side * (tensor.layout() == TensorLayout::ThreeD ? side : grid.depth);
}

}  // namespace

void check_cuts(const TensorOptions& tensor,
                const nn::Model& model,
                const std::function<bool(const char* key)>& knows,
                config::Problems& problems,
                const config::Origins& origins) {
  constexpr const char* kSize = "parallel.tensor.size";
  const nn::TensorMode mode = mode_of(tensor.layout());
  const mesh::Mesh mesh = mesh_of(tensor.grid());
  const auto parameters = nn::parameters_of(model);
  for (const CutAxis& cut : kCutAxes) {
    if (!knows(cut.key)) continue;
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), parts = 1;
    for (const auto& info : parameters) {
      if (info->stacked()) continue;  // divide_experts() checks these
      for (std::size_t dim = 0; dim < info->axes.size(); ++dim) {
        if (info->axes[dim] != cut.axis) continue;
        const std::int64_t here = parts_of(*info, dim, mode, mesh);
        if (here == 1) continue;
        // Channels between layers do not depend on heads.
        const std::int64_t unit = info->axes[dim] == LogicalAxis::Embed ? 1
                                  : info->inner_unit > 0                ? info->inner_unit
                                                                        : info->unit;
        parts = std::max(parts, here);
        least = std::min(least, info->shape[dim] / unit);
      }
    }
    if (least >= parts) continue;
    problems.add(
        origins.place(kSize),
        kSize,
        fmt::format("{} ranks cannot share {} {}: each needs at least one", parts, least, cut.name),
        fmt::format("set it to at most {}, or raise model.{}",
                    nearest_grid(tensor, parts, least),
                    cut.key));
  }
}

bool knows_cut(const TensorOptions& tensor, const config::Problems& problems) {
  return tensor.grid().size() == tensor.size && !problems.concern("parallel.tensor.mode") &&
         !problems.concern("parallel.tensor.size") && !problems.concern("parallel.tensor.depth");
}

const nn::BlockSpec* block_of_all_tokens(const nn::Model& model) {
  const auto found =
      std::find_if(model.blocks.begin(), model.blocks.end(), [](const nn::BlockSpec& spec) {
        return !spec.make()->works_by_token();
      });
  return found == model.blocks.end() ? nullptr : &*found;
}
std::string needs_all_tokens(const nn::BlockSpec& block) {
  return fmt::format("block {} may need all tokens of a sample between its layers", block.name);
}
const nn::BlockSpec* block_off_grid(const nn::Model& model, std::string& obstacle) {
  for (const nn::BlockSpec& spec : model.blocks) {
    obstacle = spec.make()->grid_obstacle();
    if (!obstacle.empty()) return &spec;
  }
  return nullptr;
}

std::set<std::int64_t> heads_of(const nn::Model& model) {
  std::set<std::int64_t> out;
  for (const auto& info : nn::parameters_of(model)) {
    for (std::size_t dim = 0; dim < info->axes.size(); ++dim) {
      if (info->axes[dim] == LogicalAxis::Heads) out.insert(info->shape[dim] / info->unit);
    }
  }
  return out;
}

std::int64_t ranks_that_share_a_head(const nn::Model& model, std::int64_t size) {
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;  // (heads, queries per head)
  for (const auto& info : nn::parameters_of(model)) {
    const bool fused = info->shape.size() > 1 && info->axes.front() == LogicalAxis::KvHeads;
    if (fused) shapes.insert({info->shape[0], info->shape[1] - 2});
  }
  if (shapes.size() != 1) return 1;
  const auto [heads, queries] = *shapes.begin();
  if (size <= heads || size % heads != 0 || size / heads > queries) return 1;
  return size / heads;
}

TensorOptions::Grid ranks_in_a_row(const nn::Model& model, std::int64_t size) {
  TensorOptions tensor;
  tensor.size = size;
  tensor.share_head = ranks_that_share_a_head(model, size);
  return tensor.grid();
}

void check_shared_layers(const TensorOptions& tensor,
                         const nn::Model& model,
                         config::Problems& problems) {
  check_cuts(
      tensor, model, [](const char* /*key*/) { return true; }, problems, config::Origins());
}

void check_shared_gradients(const optim::OptimizerOptions& optimizer,
                            config::Problems& problems,
                            const config::Origins& origins) {
  if (problems.concern("optimizer") || !optim::exchange_needs(optimizer).compressed) return;
  problems.add(origins.place("optimizer.type"),
               "optimizer.type",
               fmt::format("{} compresses whole gradients, and tensor-parallel ranks hold parts of "
                           "them (parallel.tensor)",
                           optimizer.type),
               "use AdamW, or set parallel.tensor.size to 1");
}

}  // namespace tessera::parallel
