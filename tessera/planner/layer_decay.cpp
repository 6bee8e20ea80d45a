// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/layer_decay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tessera/planner/stages.h"

namespace tessera::planner {

std::map<std::string, double> layer_factors(const nn::Model& model, double decay) {
  const auto layers = std::count_if(model.blocks.begin(), model.blocks.end(), is_layer);
  const auto top = static_cast<double>(layers) + 2.0;
  std::map<std::string, double> out;
  double passed = 0.0;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const nn::BlockSpec& block = model.blocks[b];
    if (is_layer(block)) passed += 1.0;
    double depth = is_layer(block) || passed == 0.0 ? passed : passed + 1.0;
    if (b + 1 == model.blocks.size()) depth = top;
    for (const auto& info : nn::declared_by(block))
      out.try_emplace(info->name, std::pow(decay, top - depth));
  }
  return out;
}

void check_layer_decay(double decay,
                       const nn::Model& model,
                       const optim::Rule& rule,
                       config::Problems& problems,
                       const config::Origins& origins) {
  constexpr const char* kPath = "optimizer.layer_decay";
  if (decay == 1.0) return;
  if (rule.makes_lr()) {
    problems.add(origins.place(kPath),
                 kPath,
                 "the optimizer makes its rate by itself, for all parameters",
                 "remove it, or give optimizer.params a lr (Adafactor: \"relative_step\": false)");
  }
  const auto& blocks = model.blocks;
  if (!blocks.empty() && std::none_of(blocks.begin(), blocks.end(), is_layer)) {
    problems.add(origins.place(kPath),
                 kPath,
                 "the model has no layers: none of its blocks has a number, as in \"layers.0\"",
                 "remove it, or name the layers so");
  }
}

}  // namespace tessera::planner
