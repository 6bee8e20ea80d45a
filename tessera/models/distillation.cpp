// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/distillation.h"

#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/model_source.h"
#include "tessera/nn/block.h"

namespace tessera::models {
namespace {

constexpr const char* kLayers = "distill.layers";

std::vector<const nn::BlockSpec*> layers_of(const nn::Model& model) {
  std::vector<const nn::BlockSpec*> out;
  for (const nn::BlockSpec& block : model.blocks) {
    if (nn::is_layer(block)) out.push_back(&block);
  }
  return out;
}

/// The name in the full model of each parameter of the trained model's layers.
std::map<std::string, std::string> names_in_full(const Resolved& full,
                                                 const Resolved& trained,
                                                 const std::vector<std::int64_t>& layers) {
  const std::vector<const nn::BlockSpec*> all = layers_of(full.model),
                                          kept = layers_of(trained.model);
  TESSERA_REQUIRE(std::ssize(all) == full.num_layers && kept.size() == layers.size(),
                  Unsupported,
                  "not built: layers of a model that has an encoder and a decoder",
                  "remove distill.layers");
  TESSERA_REQUIRE(layers.back() < std::ssize(all),
                  Config,
                  fmt::format("distill.layers names layer {}, and the teacher has {} layers",
                              layers.back(),
                              all.size()),
                  fmt::format("layers are counted from 0 to {}", all.size() - 1));
  std::map<std::string, std::string> out;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const nn::ParamInfos from = nn::declared_by(*all[static_cast<std::size_t>(layers[i])]);
    const nn::ParamInfos to = nn::declared_by(*kept[i]);
    bool alike = from.size() == to.size();
    for (std::size_t p = 0; alike && p < to.size(); ++p) {
      alike = from[p]->shape == to[p]->shape;
      out[to[p]->name] = from[p]->name;
    }
    TESSERA_REQUIRE(alike,
                    Unsupported,
                    fmt::format("layer {} of the model has other parameters than layer {} of the "
                                "teacher",
                                i,
                                layers[i]),
                    "choose layers of one kind");
  }
  return out;
}

}  // namespace

void DistillOptions::describe(config::Fields& f) {
  f.field("teacher",
          teacher,
          {.text = "Run, checkpoint or Hugging Face folder of the model whose predictions are "
                   "learned. Every rank holds all of it, in the training's working type."});
  f.field("temperature",
          temperature,
          {.text = "Divisor of both models' logits; the term is multiplied by its square.",
           .min = 0,
           .max = 1e3,
           .above_min = true});
  f.field("alpha",
          alpha,
          {.text = "Weight of the teacher's predictions. 0: the teacher only gives its layers.",
           .min = 0,
           .max = 1});
  f.field("label_weight",
          label_weight,
          {.text = "Weight of the labels.", .min = 0, .max = 1e6, .default_text = "1 - alpha"});
  f.field(
      "layers",
      layers,
      {.text = "Numbers of the teacher's layers, from 0, with which the model begins; it has as "
               "many layers, and all else is the teacher's. Replaces model.from.",
       .default_text = "null (none)",
       .type = "list of integers"});
}

std::vector<std::int64_t> teacher_layers(const DistillOptions& options,
                                         config::Problems& problems) {
  std::vector<std::int64_t> out;
  if (options.layers.is_null()) return out;
  bool good = options.layers.is_array() && !options.layers.items().empty();
  for (std::size_t i = 0; good && i < options.layers.items().size(); ++i) {
    const json::Value& item = options.layers.items()[i];
    const auto number = item.is_number() ? item.as_integer() : std::nullopt;
    good = number && *number >= 0 && (out.empty() || *number > out.back());
    if (good) out.push_back(*number);
  }
  if (good) return out;
  problems.add(options.layers.place,
               kLayers,
               fmt::format("expected ascending numbers of layers, found {}", options.layers.dump()),
               "layers are counted from 0: [0, 2, 4]");
  return {};
}

WeightSource weights_of_layers(const ModelSource& source,
                               const std::vector<std::int64_t>& layers,
                               const Resolved& trained,
                               std::uint64_t seed,
                               std::vector<std::string>& notes) {
  config::Problems problems;
  const Resolved full =
      resolve(source.model, trained.tokenizer_size, std::nullopt, problems, {}, trained.objective);
  problems.raise();
  std::map<std::string, std::string> names = names_in_full(full, trained, layers);
  return [weights = first_weights(source, full, seed, notes), names = std::move(names)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    const auto found = names.find(info.name);
    if (found == names.end()) return weights(info, begin, end, out);
    ParamInfo named = info;
    named.name = found->second;
    weights(named, begin, end, out);
  };
}

}  // namespace tessera::models
