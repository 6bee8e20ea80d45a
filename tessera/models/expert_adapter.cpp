// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/expert_adapter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/expert_low_rank.h"

namespace tessera::models {
namespace {

constexpr std::string_view kWeight = ".weight", kExperts = ".experts.";
constexpr const char* kNoMagnitude = "is a matrix of experts, which DoRA does not cover";

std::string without(const std::string& name, std::string_view end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : name;
}

[[noreturn]] void refuse(const std::string& module, const std::string& why) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("adapter.targets: {} {}", module, why),
              "leave it out with adapter.exclude");
}
// As in PEFT, adapter.exclude is about layers.
[[noreturn]] void refuse_parameter(const std::string& name, const std::string& why) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("adapter.target_parameters: {} {}", name, why),
              "remove it from adapter.target_parameters");
}

std::int64_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
}

/// What a stacked parameter consists of in files: for each range of an expert's rows, a matrix for
/// each expert; or one tensor.
struct Stored {
  std::map<Shape, std::vector<std::string>> split;  ///< by the box's begin, without the expert
  std::set<std::string> whole;
};

Stored stored_in(const ParamInfo& info, const Composition& composition) {
  Stored out;
  for (const Composition::Part& part : composition.parts()) {
    if (part.tensor_shape.size() == 2 && part.sizes.front() == 1 && info.shape.front() > 1) {
      Shape begin = part.begin;
      begin.front() = 0;
      out.split[begin].push_back(part.tensor);
    } else {
      out.whole.insert(part.tensor);
    }
  }
  return out;
}

/// The names by which target_parameters may mean the parameter: that of transformers 5, which
/// stacks the experts of all families, and that of files with one tensor.
std::vector<std::string> names_of(const ParamInfo& info, const Stored& stored) {
  std::vector<std::string> out;
  if (stored.whole.empty()) out.push_back("model." + without(info.name, kWeight));
  if (stored.whole.size() == 1) out.push_back(*stored.whole.begin());
  return out;
}

/// The module without the number of its expert.
std::string common_name(const std::string& module) {
  const std::size_t at = module.find(kExperts);
  if (at == std::string::npos) return module;
  const std::size_t number = at + kExperts.size(), end = module.find('.', number);
  return end == std::string::npos ? module : module.substr(0, number) + module.substr(end + 1);
}

AdapterModule module_for(const std::shared_ptr<const ParamInfo>& info,
                         const AdapterRules& rules,
                         const AdapterOptions& options,
                         std::string name,
                         std::vector<std::string> stored) {
  AdapterModule out;
  out.weight = info;
  out.experts = info->shape.front();
  out.inputs = info->shape.back();
  out.part.module = std::move(name);
  out.part.rank = rules.rank(stored.front());
  out.part.scale = options.scale(out.part.rank, rules.alpha(stored.front()));
  for (const std::string& one : stored) {
    if (rules.rank(one) != out.part.rank || rules.alpha(one) != rules.alpha(stored.front()))
      refuse(one, "has another rank or alpha than other experts of its layer");
  }
  out.stored = std::move(stored);
  return out;
}

void set_box(AdapterModule& module, Shape begin, Shape sizes) {
  module.outputs = product(sizes.begin() + 1, sizes.end());
  module.part.begin = std::move(begin);
  module.part.sizes = std::move(sizes);
}

/// The row of the stored matrix for each row of an expert's; empty: the same.
std::vector<std::int64_t> rows_in(const Composition& composition, const ParamInfo& info) {
  const Composition::Part& part = composition.parts().front();
  if (info.shape.size() != 4) return {};
  // A step along the outputs of a stored matrix: 1 in [inputs, outputs], else the inputs.
  const std::int64_t unit = part.strides[3] == 1 ? info.shape[3] : 1;
  std::vector<std::int64_t> out;
  bool same = true;
  for (std::int64_t g = 0; g < info.shape[1]; ++g) {
    for (std::int64_t f = 0; f < info.shape[2]; ++f) {
      out.push_back((g * part.strides[1] + f * part.strides[2]) / unit);
      same = same && out.back() + 1 == std::ssize(out);
    }
  }
  return same ? std::vector<std::int64_t>() : out;
}

/// Where PEFT keeps the adapter of a parameter: in the module that has the parameter. If a module
/// has two adapted parameters, the wrapper of the first one is within that of the second.
std::string wrapper_of(const ParamInfo& info,
                       const AdapterRules& rules,
                       const std::string& parameter) {
  if (parameter.ends_with(kWeight)) return without(parameter, kWeight);
  const std::size_t dot = parameter.rfind('.');
  const std::string module = parameter.substr(0, dot);
  const bool first = info.name.ends_with(".gate_up_proj.weight");
  return first && rules.targets_parameter(module + ".down_proj") ? module + ".base_layer" : module;
}

}  // namespace

std::vector<AdapterModule> find_expert_adapters(const std::shared_ptr<const ParamInfo>& info,
                                                const AdapterRules& rules,
                                                const AdapterOptions& options,
                                                const WeightMap& map) {
  std::vector<AdapterModule> out;
  if (!info->name.ends_with(kWeight)) return out;
  const Composition composition = map.compose(*info);
  const Stored stored = stored_in(*info, composition);
  const Shape outputs(info->shape.begin(), info->shape.end() - 1);
  for (const auto& [begin, tensors] : stored.split) {
    std::vector<std::string> modules;
    for (const std::string& tensor : tensors) {
      const std::string module = without(tensor, kWeight);
      if (rules.targets(module, false)) modules.push_back(module);
    }
    if (modules.empty()) continue;
    if (modules.size() != tensors.size())
      refuse(modules.front(), "has an adapter, and some experts of its layer have none");
    if (options.has_magnitude()) refuse(common_name(modules.front()), kNoMagnitude);
    AdapterModule module = module_for(info, rules, options, common_name(modules.front()), modules);
    const auto part = std::find_if(composition.parts().begin(),
                                   composition.parts().end(),
                                   [&](const auto& one) { return one.tensor == tensors.front(); });
    Shape from(begin.begin(), begin.end() - 1), sizes(part->sizes.begin(), part->sizes.end() - 1);
    sizes.front() = info->shape.front();
    set_box(module, std::move(from), std::move(sizes));
    out.push_back(std::move(module));
  }
  for (const std::string& name : names_of(*info, stored)) {
    if (!rules.targets_parameter(name)) continue;
    if (!out.empty()) refuse_parameter(name, "has an adapter by adapter.targets too");
    if (options.has_magnitude()) refuse_parameter(name, kNoMagnitude);
    AdapterModule module = module_for(info,
                                      rules,
                                      options,
                                      "model." + without(info->name, kWeight),
                                      {wrapper_of(*info, rules, name)});
    module.parameter = name;
    if (!stored.whole.empty()) module.rows = rows_in(composition, *info);
    set_box(module, Shape(outputs.size(), 0), outputs);
    out.push_back(std::move(module));
    break;
  }
  return out;
}

void adapt_experts(nn::Params& params, Param& weight, const std::vector<AdapterModule>& modules) {
  std::vector<nn::ExpertLowRankPart> parts;
  for (const AdapterModule& module : modules) {
    // The rows of an expert's matrix that the module covers are neighbours.
    std::int64_t first = 0;
    for (std::size_t d = 1; d < module.part.begin.size(); ++d)
      first = first * module.weight->shape[d] + module.part.begin[d];
    parts.push_back({.module = module.part.module,
                     .begin = first,
                     .end = first + module.outputs,
                     .rank = module.part.rank,
                     .scale = module.part.scale});
  }
  nn::add_expert_low_rank(params, weight, std::move(parts));
}

}  // namespace tessera::models
