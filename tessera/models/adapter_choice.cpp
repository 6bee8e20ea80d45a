// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/adapter_choice.h"

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

constexpr const char* kMark = "/";

/// The adapters of a weight.
struct Choices {
  bool table = false;
  std::vector<nn::LowRankChoice> adapters;
};

std::map<std::string, Choices> choices_of(const std::vector<NamedAdapter>& adapters) {
  std::map<std::string, Choices> out;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const NamedAdapter& one = adapters[i];
    TESSERA_REQUIRE(
        one.adapter.trained.empty(),
        Unsupported,
        fmt::format(
            "not built: the adapter {} together with others, because it replaces {} of its base",
            one.name,
            *one.adapter.trained.begin()),
        "merge it: tessera adapter merge");
    for (const AdapterModule& module : one.adapter.modules) {
      TESSERA_REQUIRE(
          module.experts == 0,
          Unsupported,
          fmt::format("not built: the adapter {} together with others, because it adapts the "
                      "experts {}",
                      one.name,
                      module.part.module),
          "merge it: tessera adapter merge");
      Choices& choices = out[module.weight->name];
      choices.table = module.table;
      choices.adapters.resize(adapters.size());
      nn::LowRankPart part = module.part;
      part.module = one.name + kMark + part.module;
      choices.adapters[i].push_back(std::move(part));
    }
  }
  return out;
}

}  // namespace

nn::Model with_adapters(const nn::Model& model, const std::vector<NamedAdapter>& adapters) {
  const auto choices = std::make_shared<const std::map<std::string, Choices>>(choices_of(adapters));
  nn::Model out = model;
  for (std::size_t b = 0; b < out.blocks.size(); ++b) {
    const bool head = b + 1 == out.blocks.size();
    out.blocks[b].declared.reset();
    out.blocks[b].adapt = [choices, head](nn::Params& params) {
      const auto declared = params.list();
      for (const auto& param : declared) {
        const auto found = choices->find(param->info().name);
        if (found == choices->end()) continue;
        if (!found->second.table) {
          nn::add_low_rank_choice(params, *param, found->second.adapters);
        } else if (!head) {
          // A head that shares the table multiplies by the unadapted table.
          nn::add_low_rank_table_choice(params, *param, found->second.adapters);
        }
      }
    };
  }
  nn::declare_all(out);
  return out;
}

WeightSource weights_with_adapters(const std::vector<NamedAdapter>& adapters, WeightSource base) {
  return [adapters, base = std::move(base)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    for (const NamedAdapter& one : adapters) {
      const std::string mark = one.name + kMark;
      if (!info.name.starts_with(mark)) continue;
      const auto found = one.adapter.parameters.find(info.name.substr(mark.size()));
      if (found != one.adapter.parameters.end())
        return one.weights(*found->second, begin, end, out);
    }
    base(info, begin, end, out);
  };
}

}  // namespace tessera::models
