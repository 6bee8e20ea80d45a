// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/quantization_aware.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/models/quantization_aware.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

void plan_quantization_aware(const TrainConfig& config,
                             const NamedModel& model,
                             std::vector<std::string>& notes,
                             config::Problems& problems,
                             const config::Origins& origins) {
  const models::QatOptions& options = config.qat;
  bool refused = false;
  const auto refuse = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
    refused = true;
  };
  if (!options.enabled()) {
    for (const char* const key : {"qat.activations", "qat.group_size", "qat.after_steps"}) {
      if (origins.given(key)) refuse(key, "has no effect without qat.weights", "set qat.weights");
    }
    return;
  }
  if (model.resolved.model.blocks.empty()) return;
  if (origins.given("qat.group_size") && options.weights != "int4")
    refuse("qat.group_size",
           fmt::format("{} has groups of its own size", options.weights),
           "remove it");
  if (model.resolved.description.find("family") == nullptr)
    refuse("qat.weights", "the program's own model has no names for its layers", "remove it");
  static constexpr std::array<std::string_view, 3> kObjectives = {
      "causal_lm", "prefix_lm", "seq2seq"};
  const std::string& objective = model.resolved.objective.name;
  if (std::ranges::find(kObjectives, objective) == kObjectives.end())
    refuse("qat.weights",
           fmt::format("not built: quantization-aware training of the objective {}", objective),
           "use it with the tasks pretrain, sft and seq2seq");
  if (model.adapted)
    refuse("qat.weights",
           "an adapter's base is not trained",
           "remove the section adapter, or use adapter.quantize_base");
  if (!config.tiling.is_null())
    refuse("qat.weights", "not built: weights in tiles", "remove tiling");
  if (config.parallel.tensor.size > 1)
    refuse("qat.weights",
           "not built: layers that tensor-parallel ranks share",
           "set parallel.tensor to 1, and zero_optimization.stage to 3 if memory is short");
  const bool shares = config.parallel.context.size > 1;
  if (options.activations == "nvfp4" && shares)
    refuse("qat.activations",
           "nvfp4 has a scale of all tokens of a micro-batch, and ranks share them",
           "set parallel.context to 1, or activations to mxfp4");
  if (refused) return;
  std::int64_t count = 0;
  model.resolved.model = models::quantization_aware(
      model.resolved.model, models::families().get(model.family).weight_map, options, count);
  notes.push_back(fmt::format(
      "qat: {} matrices are rounded to {}{}{}",
      count,
      options.weights,
      options.activations == "none" ? "" : ", their inputs to " + options.activations,
      options.after_steps > 0 ? fmt::format(", after {} updates", options.after_steps) : ""));
}

}  // namespace tessera::planner
