// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/layer_decay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::parallel {

std::map<std::string, std::int64_t> layer_depths(const nn::Model& model) {
  const auto layers = std::count_if(model.blocks.begin(), model.blocks.end(), nn::is_layer);
  std::map<std::string, std::int64_t> out;
  std::int64_t passed = 0;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const nn::BlockSpec& block = model.blocks[b];
    if (nn::is_layer(block)) ++passed;
    std::int64_t depth = nn::is_layer(block) || passed == 0 ? passed : passed + 1;
    if (b + 1 == model.blocks.size()) depth = layers + 2;
    for (const auto& info : nn::declared_by(block))
      out.try_emplace(info->name, depth);
  }
  return out;
}

std::map<std::string, double> layer_factors(const nn::Model& model, double decay) {
  const auto layers = std::count_if(model.blocks.begin(), model.blocks.end(), nn::is_layer);
  std::map<std::string, double> out;
  for (const auto& [name, depth] : layer_depths(model))
    out[name] = std::pow(decay, static_cast<double>(layers + 2 - depth));
  return out;
}

void check_layers(const char* path,
                  const nn::Model& model,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const auto& blocks = model.blocks;
  if (blocks.empty() || std::any_of(blocks.begin(), blocks.end(), nn::is_layer)) return;
  problems.add(origins.place(path),
               path,
               "the model has no layers: none of its blocks has a number, as in \"layers.0\"",
               "remove it, or name the layers so");
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
  check_layers(kPath, model, problems, origins);
}

}  // namespace tessera::parallel
