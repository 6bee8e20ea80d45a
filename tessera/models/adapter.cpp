// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/adapter_merge.h"
#include "tessera/models/expert_adapter.h"
#include "tessera/models/expert_weights.h"
#include "tessera/models/objective.h"
#include "tessera/tensor/init.h"

namespace tessera::models {
namespace {

constexpr std::string_view kWeight = ".weight", kBias = ".bias";

/// Output modules that PEFT trains as a whole in a classifier.
constexpr std::array<std::string_view, 2> kClassifiers = {"classifier", "score"};

std::string module_of(const std::string& tensor) {
  const std::size_t dot = tensor.rfind('.');
  return dot == std::string::npos ? "" : tensor.substr(0, dot);
}

std::int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// A parameter of the model: the blocks that declare it, and its composition.
struct Place {
  std::shared_ptr<const ParamInfo> info;
  bool in_head = false;  ///< the objective declares it
  int homes = 0;         ///< number of declaring blocks in the trunk
  std::vector<std::string> tensors;
};

std::vector<Place> places_in(const nn::Model& model, const WeightMap& map) {
  std::vector<Place> out;
  std::map<std::string, std::size_t> known;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const bool head = b + 1 == model.blocks.size();
    for (const auto& info : nn::declared_by(model.blocks[b])) {
      const auto [at, fresh] = known.emplace(info->name, out.size());
      if (fresh) {
        out.push_back({.info = info, .tensors = {}});
        const Composition composition = map.compose(*info);
        for (const Composition::Part& part : composition.parts()) {
          std::vector<std::string>& tensors = out.back().tensors;
          if (std::find(tensors.begin(), tensors.end(), part.tensor) == tensors.end())
            tensors.push_back(part.tensor);
        }
      }
      if (head) {
        out[at->second].in_head = true;
      } else {
        ++out[at->second].homes;
      }
    }
  }
  return out;
}

/// True if the tensor lies in one of the modules that are trained whole. As in PEFT, a name means
/// every module whose path ends with it, also within a word: "classifier" includes DistilBERT's
/// pre_classifier.
bool is_in(const std::vector<std::string>& modules, const std::string& tensor) {
  for (std::string module = module_of(tensor); !module.empty(); module = module_of(module)) {
    if (std::any_of(modules.begin(), modules.end(), [&](const std::string& name) {
          return module.ends_with(name);
        }))
      return true;
  }
  return false;
}

/// Records for each row of the parameter (`to`) the row of the tensor (`from`).
void note_rows(std::span<const StridedCopy::Dim> dims,
               std::int64_t to,
               std::int64_t from,
               std::vector<std::int64_t>& rows) {
  if (dims.empty()) {
    rows[static_cast<std::size_t>(to)] = from;
    return;
  }
  for (std::int64_t i = 0; i < dims.front().size; ++i)
    note_rows(dims.subspan(1), to + i * dims.front().to, from + i * dims.front().from, rows);
}

/// The weight's row for row `row` of the module's box.
std::int64_t row_of_box(const AdapterModule& module, std::int64_t row) {
  const Shape& shape = module.weight->shape;
  std::int64_t out = 0, stride = 1;
  for (std::size_t d = module.part.sizes.size(); d-- > 0;) {
    out += (module.part.begin[d] + row % module.part.sizes[d]) * stride;
    row /= module.part.sizes[d];
    stride *= shape[d];
  }
  return out;
}

/// The module with the weight `tensor`, which is a part of the parameter or all of it; nothing if
/// it is not a matrix.
std::optional<AdapterModule> module_in(const Place& place,
                                       const std::string& tensor,
                                       const WeightMap& map) {
  const ParamInfo& info = *place.info;
  AdapterModule out;
  out.weight = place.info;
  out.part.module = module_of(tensor);
  out.inputs = info.shape.back();
  // One column suffices to distinguish the rows.
  ParamInfo column = info;
  column.shape.back() = 1;
  column.matrix_shape.back() = 1;
  const Composition whole = map.compose(info);
  Shape begin, end;
  std::int64_t covered = 0;
  for (const Composition::Part& part : whole.parts()) {
    if (part.tensor != tensor) continue;
    if (part.tensor_shape.size() != 2 || part.sizes.back() != out.inputs) return std::nullopt;
    out.transposed = part.strides.back() != 1 && part.tensor_shape.front() == out.inputs;
    out.outputs = part.tensor_shape[out.transposed ? 1 : 0];
    for (std::size_t d = 0; d + 1 < part.begin.size(); ++d) {
      const std::int64_t last = part.begin[d] + part.sizes[d];
      if (begin.size() <= d) {
        begin.push_back(part.begin[d]);
        end.push_back(last);
      } else {
        begin[d] = std::min(begin[d], part.begin[d]);
        end[d] = std::max(end[d], last);
      }
    }
    covered += product(part.sizes) / part.sizes.back();
  }
  out.part.begin = begin;
  for (std::size_t d = 0; d < begin.size(); ++d)
    out.part.sizes.push_back(end[d] - begin[d]);
  if (covered != product(out.part.sizes) || covered != out.outputs) return std::nullopt;
  Composition box = map.compose(column);
  for (std::size_t d = 0; d < begin.size(); ++d)
    box = box.slice(d, begin[d], end[d]);
  out.rows.assign(static_cast<std::size_t>(out.outputs), 0);
  for (const Composition::Part& part : box.parts()) {
    if (part.tensor != tensor) return std::nullopt;
    const StridedCopy copy = box.copy_of(part);
    note_rows(copy.dims, copy.to, copy.from, out.rows);
  }
  bool same = true;
  for (std::size_t row = 0; row < out.rows.size() && same; ++row)
    same = out.rows[row] == static_cast<std::int64_t>(row);
  if (same) out.rows.clear();
  return out;
}

/// True for the output matrix of a head, which no adapter may replace.
bool is_output_layer(const Place& place, const std::string& module) {
  if (place.info->role == Role::OutputHead) return true;
  if (place.homes > 0) return false;
  if (place.info->role == Role::TokenTable) return true;
  return std::any_of(kClassifiers.begin(), kClassifiers.end(), [&](std::string_view name) {
    return means_module(name, module);
  });
}

bool is_table(const ParamInfo& info) {
  return info.role == Role::TokenTable || info.role == Role::PositionTable;
}

/// True if a layer multiplies by it.
bool is_matrix(const ParamInfo& info) {
  return info.role == Role::Matrix && info.matrix_shape.size() == 2;
}

/// True if the tensor is the matrix of a linear layer, also where it is a part of the parameter.
/// The kernel of a convolution has more dims.
bool is_linear(const Place& place, const std::string& tensor, const WeightMap& map) {
  if (!is_matrix(*place.info) || is_router(*place.info)) return false;
  const Composition whole = map.compose(*place.info);
  return std::any_of(whole.parts().begin(), whole.parts().end(), [&](const auto& part) {
    return part.tensor == tensor && part.tensor_shape.size() == 2;
  });
}

[[noreturn]] void refuse_target(const std::string& module, const std::string& why) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("adapter.targets: {} {}", module, why),
              "leave it out with adapter.exclude, or train it whole with adapter.modules_to_save");
}

/// Finds the adapters of one parameter.
void find_modules(const Place& place,
                  const AdapterRules& rules,
                  const std::vector<std::string>& saved,
                  const WeightMap& map,
                  AdapterUse use,
                  Adapter& out) {
  const AdapterOptions& options = out.options;
  if (place.info->stacked()) {
    for (AdapterModule& module : find_expert_adapters(place.info, rules, options, map))
      out.modules.push_back(std::move(module));
    return;
  }
  for (const std::string& tensor : place.tensors) {
    if (!tensor.ends_with(kWeight) || is_in(saved, tensor)) continue;
    const std::string module = module_of(tensor);
    const bool output = is_output_layer(place, module);
    const ParamInfo& info = *place.info;
    if (!rules.targets(module, !output && is_linear(place, tensor, map))) continue;
    if (output && use == AdapterUse::Computed)
      refuse_target(module,
                    "is the output layer, which is not computed together with an adapter; an "
                    "adapter that has one can be merged (tessera adapter merge)");
    const bool table = !output && is_table(info);
    const bool matrix = is_matrix(info) || (output && info.matrix_shape.size() == 2);
    if (!table && !matrix) refuse_target(module, "is neither a linear layer nor an embedding");
    auto found = module_in(place, tensor, map);
    if (!found) refuse_target(module, "is stored in a way that no adapter fits");
    if (table && (info.axes.back() != LogicalAxis::Embed || options.has_magnitude()))
      refuse_target(module, "is a table, which this adapter is not built for");
    if (place.homes > 1) refuse_target(module, "is used by several parts of the model");
    found->table = table;
    found->tied = table && place.in_head;
    found->part.rank = rules.rank(module);
    found->part.scale = options.scale(found->part.rank, rules.alpha(module));
    found->part.dropout = options.dropout;
    found->part.magnitude = options.has_magnitude();
    if (!table) (void)nn::part_dim(info, found->part);
    out.modules.push_back(std::move(*found));
  }
}

constexpr const char* kApart =
    "leave it out; or, for a folder of PEFT, name this folder itself as the model, or merge it "
    "(tessera adapter merge), which keeps a table and a head apart";

/// Adds the parameter to those trained as a whole if `chosen` is true for its tensors; it must be
/// true for all of them or for none.
template <class Chosen>
void train_whole(const Place& place, const char* key, const Chosen& chosen, Adapter& out) {
  const auto count = std::count_if(place.tensors.begin(), place.tensors.end(), chosen);
  if (count == 0) return;
  TESSERA_REQUIRE(count == std::ssize(place.tensors),
                  Unsupported,
                  fmt::format("adapter.{}: {} are one parameter here, and only some are meant",
                              key,
                              text::join(place.tensors, ", ")),
                  "name all of them or none");
  TESSERA_REQUIRE(!place.info->tied,
                  Unsupported,
                  fmt::format("adapter.{}: {} is used in several places of the model, which it "
                              "would change together",
                              key,
                              place.tensors.front()),
                  kApart);
  out.trained.insert(place.info->name);
}

void train_biases(const std::vector<Place>& places, Adapter& out) {
  if (out.options.bias == AdapterBias::None) return;
  std::set<std::string> adapted;
  for (const AdapterModule& module : out.modules)
    adapted.insert(module.part.module);
  const bool all = out.options.bias == AdapterBias::All;
  for (const Place& place : places) {
    train_whole(
        place,
        "bias",
        [&](const std::string& tensor) {
          return tensor.ends_with(kBias) && (all || adapted.contains(module_of(tensor)));
        },
        out);
  }
}

/// Finds the matrices that are stored in fewer bits: as in bitsandbytes, those of linear layers
/// and of experts, except output layers and routers.
void find_quantized(const std::vector<Place>& places, Adapter& out) {
  if (out.options.quantize_base == QuantizedBase::None) return;
  for (const Place& place : places) {
    const ParamInfo& info = *place.info;
    if (!is_matrix(info) || is_router(info) || info.tied || out.trained.contains(info.name))
      continue;
    const bool output = std::any_of(place.tensors.begin(), place.tensors.end(), [&](const auto& t) {
      return is_output_layer(place, module_of(t));
    });
    if (!output) out.quantized.insert(info.name);
  }
}

void require_saved_modules(const std::vector<Place>& places,
                           const WeightMap& map,
                           const std::vector<std::string>& asked) {
  const auto is_tied = [&](const std::string& name) {
    return std::any_of(
        map.ties.begin(), map.ties.end(), [&](const Tie& tie) { return is_in({name}, tie.alias); });
  };
  for (const std::string& name : asked) {
    const bool found = std::any_of(places.begin(), places.end(), [&](const Place& place) {
      return std::any_of(place.tensors.begin(), place.tensors.end(), [&](const auto& tensor) {
        return is_in({name}, tensor);
      });
    });
    // Modules that PEFT adds to every classifier by itself.
    const bool expected =
        std::find(kClassifiers.begin(), kClassifiers.end(), name) != kClassifiers.end();
    TESSERA_REQUIRE(found || expected,
                    Config,
                    fmt::format("adapter.modules_to_save: the model has no module {} with weights "
                                "of its own",
                                name),
                    is_tied(name)
                        ? std::string(kApart)
                        : fmt::format("its weights are called like {}",
                                      places.empty() ? "" : places.back().tensors.front()));
  }
}

/// Examples of module names, for the message that no module matches.
std::string some_modules(const std::vector<Place>& places) {
  std::vector<std::string> out;
  for (const Place& place : places) {
    for (const std::string& tensor : place.tensors) {
      if (is_matrix(*place.info) && tensor.ends_with(kWeight)) out.push_back(module_of(tensor));
    }
  }
  return text::join_some(out, ", ");
}

}  // namespace

std::string AdapterModule::a() const {
  return part.module + (table ? ".lora_embedding_A" : ".lora_A.weight");
}

std::string AdapterModule::b() const {
  return part.module + (table ? ".lora_embedding_B" : ".lora_B.weight");
}

bool Adapter::trains(const std::string& name) const {
  return parameters.contains(name);
}

Adapter find_adapter(const AdapterOptions& options,
                     const Resolved& model,
                     const WeightMap& map,
                     AdapterUse use) {
  Adapter out;
  out.options = options;
  const AdapterRules rules(options);
  const std::vector<Place> places = places_in(model.model, map);
  require_saved_modules(places, map, options.modules_to_save);
  std::vector<std::string> saved = options.modules_to_save;
  if (has_new_head(model.objective.name))
    saved.insert(saved.end(), kClassifiers.begin(), kClassifiers.end());
  for (const Place& place : places) {
    train_whole(
        place,
        "modules_to_save",
        [&](const std::string& tensor) { return is_in(saved, tensor); },
        out);
    if (!out.trained.contains(place.info->name)) find_modules(place, rules, saved, map, use, out);
  }
  TESSERA_REQUIRE(
      !out.modules.empty(),
      Config,
      fmt::format("adapter.targets: no layer of the model is called {}", options.targets.dump()),
      "its layers are " + some_modules(places));
  train_biases(places, out);
  find_quantized(places, out);
  for (const auto& info : nn::parameters_of(adapted(model.model, out))) {
    if (info->trainable) out.parameters.emplace(info->name, info);
  }
  return out;
}

nn::Model adapted(const nn::Model& model, const Adapter& adapter) {
  struct Rules {
    std::map<std::string, std::vector<AdapterModule>> modules;  ///< by the weight's name
    std::set<std::string> trained;
  };
  auto rules = std::make_shared<Rules>();
  rules->trained = adapter.trained;
  for (const AdapterModule& module : adapter.modules)
    rules->modules[module.weight->name].push_back(module);
  nn::Model out = model;
  for (std::size_t b = 0; b < out.blocks.size(); ++b) {
    const bool head = b + 1 == out.blocks.size();
    out.blocks[b].declared.reset();
    out.blocks[b].adapt = [rules, head](nn::Params& params) {
      const auto declared = params.list();
      for (const auto& param : declared) {
        if (!rules->trained.contains(param->info().name)) param->freeze();
        const auto found = rules->modules.find(param->info().name);
        if (found == rules->modules.end()) continue;
        const std::vector<AdapterModule>& modules = found->second;
        if (modules.front().table) {
          // A head that shares the table multiplies by the unadapted table.
          if (!head) nn::add_low_rank_table(params, *param, modules.front().part);
          continue;
        }
        if (modules.front().experts > 0) {
          adapt_experts(params, *param, modules);
          continue;
        }
        std::vector<nn::LowRankPart> parts;
        for (const AdapterModule& module : modules)
          parts.push_back(module.part);
        nn::add_low_rank(params, *param, std::move(parts));
      }
    };
  }
  nn::declare_all(out);
  return out;
}

WeightSource first_adapter_weights(const Adapter& adapter, WeightSource base, std::uint64_t seed) {
  auto own = std::make_shared<const Adapter>(adapter);
  return [own, base = std::move(base), seed](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    if (!own->trains(info.name) || own->trained.contains(info.name))
      return base(info, begin, end, out);
    const auto module =
        std::find_if(own->modules.begin(), own->modules.end(), [&](const AdapterModule& one) {
          return one.part.magnitude && one.magnitude() == info.name;
        });
    if (module == own->modules.end())
      return initialize_range(info, seed, begin, at::from_blob(out, {end - begin}, at::kFloat));
    std::vector<float> row(static_cast<std::size_t>(module->inputs));
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t from = row_of_box(*module, at) * module->inputs;
      base(*module->weight, from, from + module->inputs, row.data());
      out[at - begin] = static_cast<float>(norm_of(row.data(), row.size()));
    }
  };
}

}  // namespace tessera::models
