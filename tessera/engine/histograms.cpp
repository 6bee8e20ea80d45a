// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/histograms.h"

#include <map>
#include <span>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/parallel/weight_tiles.h"

namespace tessera::engine {
namespace {

struct Distribution {
  report::BucketCounts weights, gradients;
};

std::span<const float> values_of(const at::Tensor& values) {
  return {values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel())};
}

/// Makes the counts of one parameter those of all ranks.
void add_over_ranks(comm::World& world, report::BucketCounts& counts) {
  counts.sums() = world.all_reduce(
      world.everyone(), std::move(counts.sums()), comm::Op::Sum, TESSERA_HERE("histograms"));
  counts.extremes() = world.all_reduce(
      world.everyone(), std::move(counts.extremes()), comm::Op::Max, TESSERA_HERE("histograms"));
}

}  // namespace

std::vector<report::NamedHistogram> trained_histograms(TrainState& state, double loss_scale) {
  std::map<std::string, Distribution> mine;
  state.visit_trained(
      [&](const ParamInfo& info, const at::Tensor& weights, const at::Tensor& gradient) {
        Distribution& one = mine[info.name];
        one.weights.add(values_of(weights));
        if (gradient.defined()) one.gradients.add(values_of(gradient), 1.0 / loss_scale);
      });
  std::vector<report::NamedHistogram> out;
  comm::World& world = state.world();
  // Every rank knows all parameters, so all ranks make the same reductions.
  for (const parallel::ParamPlace& place : state.model().places()) {
    // The values of all tiles of a parameter are those of its first one.
    const bool later_tile = parallel::is_tile(*place.info) && place.info->box.begin.front() > 0;
    if (!place.info->trainable || later_tile) continue;
    Distribution& one = mine[place.info->name];
    add_over_ranks(world, one.weights);
    add_over_ranks(world, one.gradients);
    if (!world.is_leader()) continue;
    for (const auto& [kind, counts] :
         {std::pair<const char*, const report::BucketCounts*>("weights/", &one.weights),
          std::pair<const char*, const report::BucketCounts*>("gradients/", &one.gradients)}) {
      report::Histogram histogram = counts->histogram();
      // Frozen parameters and gradients that are not known have no values.
      if (histogram.num > 0) out.push_back({kind + place.info->name, std::move(histogram)});
    }
  }
  return out;
}

}  // namespace tessera::engine
