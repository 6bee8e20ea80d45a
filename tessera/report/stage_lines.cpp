// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/stage_lines.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/simulate.h"

namespace tessera::report {
namespace {

/// "h.0 to h.3", the names of consecutive blocks.
std::string names_of(const nn::Model& model, std::pair<int, int> blocks) {
  const std::string& first = model.blocks[static_cast<std::size_t>(blocks.first)].name;
  const std::string& last = model.blocks[static_cast<std::size_t>(blocks.second) - 1].name;
  return blocks.second - blocks.first == 1 ? first : first + " to " + last;
}

/// "wte to h.1 and h.4 to head".
std::string blocks_of_stage(const parallel::StageLayout& stages,
                            const nn::Model& model,
                            int stage) {
  std::vector<std::string> names;
  for (int chunk = 0; chunk < stages.chunks; ++chunk) {
    names.push_back(
        names_of(model, stages.blocks(stage, chunk, static_cast<int>(model.blocks.size()))));
  }
  return text::join(names, " and ");
}

}  // namespace

double planned_waits(const parallel::Layout& layout) {
  const parallel::StageLayout& stages = layout.stages;
  if (stages.stages == 1) return 0.0;
  const parallel::PipelineSize size{
      stages.stages,
      stages.chunks,
      static_cast<int>(std::max<std::int64_t>(layout.accumulation, 1))};
  const double bubble = parallel::simulate(parallel::all_actions(layout.pipeline_schedule(), size),
                                           size,
                                           stages.placement,
                                           parallel::PassTimes())
                            .bubble();
  return bubble / (1 + bubble);
}

std::vector<std::string> stage_lines(const parallel::Layout& layout, const nn::Model& model) {
  std::vector<std::string> out;
  const int each = layout.ranks() / layout.stages.stages;
  for (int stage = 0; stage < layout.stages.stages; ++stage) {
    std::int64_t numel = 0;
    for (int chunk = 0; chunk < layout.stages.chunks; ++chunk) {
      const auto blocks = layout.stages.blocks(stage, chunk, static_cast<int>(model.blocks.size()));
      for (int b = blocks.first; b < blocks.second; ++b) {
        for (const auto& info : nn::declared_by(model.blocks[static_cast<std::size_t>(b)]))
          numel += info->numel();
      }
    }
    const std::string ranks =
        each == 1 ? fmt::format("rank {}", stage)
                  : fmt::format("ranks {}-{}", stage * each, (stage + 1) * each - 1);
    out.push_back(fmt::format("{} ({}): {}; {} parameters",
                              stage,
                              ranks,
                              blocks_of_stage(layout.stages, model, stage),
                              text::with_commas(numel)));
  }
  return out;
}

std::vector<std::string> build_lines(const parallel::Layout& layout,
                                     const nn::Model& model,
                                     int rank) {
  std::vector<std::string> out;
  const auto& blocks = model.blocks;
  const int all = static_cast<int>(blocks.size());
  const bool has_layers = std::any_of(blocks.begin(), blocks.end(), nn::is_layer);
  const auto layers_before = [&](int end) {
    return has_layers ? std::count_if(blocks.begin(), blocks.begin() + end, nn::is_layer) : end;
  };
  const int stage = layout.mesh().coordinate(rank, mesh::Axis::Pp);
  for (int chunk = 0; chunk < layout.stages.chunks; ++chunk) {
    const auto [begin, end] = layout.stages.blocks(stage, chunk, all);
    const auto first = layers_before(begin), last = layers_before(end);
    out.push_back(fmt::format("Rank{} build layer {}-{}, {}/{} layers",
                              rank,
                              first,
                              last,
                              last - first,
                              layers_before(all)));
  }
  return out;
}

std::vector<std::string> mesh_lines(const parallel::Layout& layout,
                                    const nn::Model& model,
                                    const std::string& host,
                                    std::size_t most) {
  constexpr std::size_t kMostOfHost = 16;
  const mesh::Mesh mesh = layout.mesh();
  const int ranks = layout.ranks();
  // Without the domain.
  const std::string short_host = host.substr(0, std::min(host.find('.'), kMostOfHost));
  const std::size_t width = std::max<std::size_t>(short_host.size(), 4);
  std::vector<std::string> out = {fmt::format("{:>4}  {:<{}}  {:>5}  {:>3} {:>3} {:>3} {:>3}  {}",
                                              "rank",
                                              "host",
                                              width,
                                              "stage",
                                              "pp",
                                              "dp",
                                              "cp",
                                              "tp",
                                              "blocks")};
  for (int rank = 0; rank < ranks; ++rank) {
    const bool last_free = out.size() + 1 >= most;
    if (last_free && rank + 1 < ranks) {
      out.push_back(fmt::format("{:>4}  more ranks", ranks - rank));
      return out;
    }
    const int stage = mesh.coordinate(rank, mesh::Axis::Pp);
    out.push_back(fmt::format("{:>4}  {:<{}}  {:>5}  {:>3} {:>3} {:>3} {:>3}  {}",
                              rank,
                              short_host,
                              width,
                              stage,
                              stage,
                              mesh.index(rank, mesh::AxisSet::dp()),
                              mesh.coordinate(rank, mesh::Axis::Cp),
                              mesh.index(rank, mesh::AxisSet::tp()),
                              blocks_of_stage(layout.stages, model, stage)));
  }
  return out;
}

}  // namespace tessera::report
