// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/tiling.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fnmatch.h>

#include "tessera/base/text.h"
#include "tessera/nn/block.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/weight_tiles.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::planner {
namespace {

constexpr const char* kTiling = "tiling";
constexpr std::int64_t kMostTiles = 1'000'000'000;  // the product of two is a number too

// "lm_head" names lm_head.weight too; * stands for any characters.
bool names(const std::string& pattern, const std::string& parameter) {
  return ::fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0 ||
         ::fnmatch((pattern + ".weight").c_str(), parameter.c_str(), 0) == 0;
}

// Names that a message can list, without the ending that need not be written.
std::vector<std::string> names_of(const nn::ParamInfos& parameters) {
  std::vector<std::string> out;
  for (const auto& info : parameters) {
    if (!parallel::tile_obstacle(*info).empty()) continue;
    std::string name = info->name;
    if (name.ends_with(".weight")) name.erase(name.size() - std::string(".weight").size());
    out.push_back(std::move(name));
  }
  return out;
}

// The integer that a value is, if it is one.
std::optional<std::int64_t> integer_of(const json::Value& value) {
  return value.is_number() ? value.as_integer() : std::nullopt;
}

class Reader {
 public:
  Reader(const nn::ParamInfos& parameters,
         const optim::Rule& rule,
         const ModelPlan& model,
         config::Problems& problems,
         const config::Origins& origins)
      : parameters_(parameters),
        rule_(rule),
        model_(model),
        problems_(problems),
        place_(origins.place(kTiling)) {}

  // The number of tiles by the names of parameters.
  std::map<std::string, std::int64_t> read(const json::Value& tiling) {
    if (const auto most = integer_of(tiling)) {
      read_size(*most);
    } else if (tiling.is_object() && !tiling.members().empty()) {
      for (const auto& [pattern, value] : tiling.members())
        read_name(pattern, value);
    } else {
      wrong(kTiling,
            fmt::format("it is {}", tiling.dump()),
            "write {\"lm_head\": [1, 8]}, or a number of elements");
    }
    return std::move(counts_);
  }

 private:
  void wrong(const std::string& path, std::string what, std::string fix) {
    problems_.add(place_, path, std::move(what), std::move(fix));
  }

  // Why the parameter cannot be divided in this training, as the end of a sentence.
  std::string obstacle(const ParamInfo& info) const {
    if (std::string of_itself = parallel::tile_obstacle(info); !of_itself.empty()) return of_itself;
    if (model_.rules.packed && model_.rules.packed(info.name))
      return "is stored in fewer bits, of which all ranks have all";
    const bool frozen = !info.trainable || (model_.rules.frozen && model_.rules.frozen(info.name));
    if (!frozen && rule_.scope(parallel::facts_of(info)) != optim::Scope::Elementwise)
      return "has an optimizer that reads the whole weight at once";
    return "";
  }

  void read_size(std::int64_t most) {
    if (most < kChunk) {
      wrong(kTiling,
            fmt::format("{} elements are fewer than a chunk of {}", most, kChunk),
            "write 16777216, say");
      return;
    }
    for (const auto& info : parameters_) {
      if (info->numel() > most && obstacle(*info).empty())
        counts_[info->name] = (info->numel() + most - 1) / most;
    }
    if (counts_.empty()) {
      wrong(kTiling,
            fmt::format("no weight that can be divided has more than {} elements", most),
            "remove it, or write a smaller number");
    }
  }

  void read_name(const std::string& pattern, const json::Value& value) {
    const std::string path = fmt::format("{}.{}", kTiling, pattern);
    const std::optional<std::int64_t> count = count_of(path, value);
    if (!count) return;
    bool found = false;
    for (const auto& info : parameters_) {
      if (!names(pattern, info->name)) continue;
      // A pattern such as *.mlp.* matches vectors too.
      const bool one = pattern.find('*') == std::string::npos;
      const std::string why = obstacle(*info);
      if (!why.empty()) {
        if (one || info->matrix_shape.size() >= 2)
          wrong(path, fmt::format("{} {}, and is not divided", info->name, why), "remove it");
        found = true;
        continue;
      }
      found = true;
      if (*count > info->shape.front()) {
        wrong(path,
              fmt::format("{} has {} rows, and {} tiles are asked for",
                          info->name,
                          info->shape.front(),
                          *count),
              "write a smaller number of tiles");
        continue;
      }
      if (one && *count > 1 && parallel::tiles_of(info, *count).size() == 1) {
        wrong(path,
              fmt::format("{} is not divided: tiles are whole rows, and all but the last one "
                          "multiples of {} elements",
                          info->name,
                          kChunk),
              "remove it");
        continue;
      }
      counts_[info->name] = *count;
    }
    if (!found) {
      wrong(path,
            "the model has no weight of this name",
            text::suggestion(pattern, names_of(parameters_)));
    }
  }

  // The number of tiles of outputs.
  std::optional<std::int64_t> count_of(const std::string& path, const json::Value& value) {
    const bool pair = value.is_array() && value.items().size() == 2;
    const std::optional<std::int64_t> inputs = pair ? integer_of(value.items()[0]) : 1,
                                      outputs =
                                          pair ? integer_of(value.items()[1]) : integer_of(value);
    const auto is_number = [](const std::optional<std::int64_t>& tiles) {
      return tiles && *tiles >= 1 && *tiles <= kMostTiles;
    };
    if (!is_number(inputs) || !is_number(outputs)) {
      wrong(path,
            fmt::format("it is {}", value.dump()),
            "write the number of tiles, 8, or as [in_splits, out_splits]: [1, 8]");
      return std::nullopt;
    }
    if (*inputs > 1) {
      wrong(
          path,
          fmt::format("not built: in_splits {}; products of tiles of the inputs have to be summed, "
                      "which rounds every output otherwise",
                      *inputs),
          fmt::format("write [1, {}]: as many tiles of the outputs need no more memory",
                      *inputs * *outputs));
      return std::nullopt;
    }
    return outputs;
  }

  const nn::ParamInfos& parameters_;
  const optim::Rule& rule_;
  const ModelPlan& model_;
  config::Problems& problems_;
  json::Place place_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace

void plan_tiling(const TrainConfig& config,
                 bool gathers,
                 ModelPlan& model,
                 config::Problems& problems,
                 const config::Origins& origins) {
  if (config.tiling.is_null() || model.resolved.model.blocks.empty()) return;
  const auto refuse = [&](const std::string& with, std::string why, std::string fix) {
    problems.add(origins.place(kTiling),
                 kTiling,
                 fmt::format("not built yet with {}: {}", with, why),
                 std::move(fix));
  };
  if (config.parallel.ranks_per_model() > config.parallel.context.size) {
    refuse("ranks that share the layers or stages of the model",
           "these have parts of the weights already",
           "remove it, or set parallel.tensor.size and parallel.pipeline.size to 1");
  }
  if (gathers) {
    refuse("stage 3 in the memory of several data-parallel ranks, or on GPUs",
           "layers fetch the tiles, and a rank whose micro-batch has no samples, or fewer parts, "
           "would not take part in these gathers",
           "set zero_optimization.offload_param.device to \"nvme\", or stage to 2");
  }
  if (config.sparse_gradients)
    refuse("sparse_gradients", "tables in tiles have dense gradients", "remove one of them");
  if (optim::exchange_needs(config.optimizer).compressed)
    refuse(config.optimizer.type, "its ranks exchange whole parameters", "use AdamW");
  config::Problems elsewhere;  // check_rule() reports them
  const auto rule = optim::make_rule(config.optimizer, origins.place("optimizer"), elsewhere);
  if (!elsewhere.empty()) return;
  const nn::ParamInfos parameters = nn::parameters_of(model.resolved.model);
  auto counts = Reader(parameters, *rule, model, problems, origins).read(config.tiling);
  if (counts.empty()) return;
  model.rules.tiles = [counts = std::move(counts)](const ParamInfo& info) -> std::int64_t {
    const auto found = counts.find(info.name);
    return found == counts.end() ? 1 : found->second;
  };
}

}  // namespace tessera::planner
