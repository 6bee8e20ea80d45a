// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/trained_tensors.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/weight_map.h"
#include "tessera/nn/block.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::planner {
namespace {

constexpr const char* kTrained = "optimizer.trained";

struct TensorPattern {
  std::string text;
  text::tokenizers::PatternPtr regex;
  bool used = false;
};

bool is_found(TensorPattern& pattern, const std::string& tensor) {
  text::tokenizers::Ranges found;
  pattern.regex->find(tensor, found);
  pattern.used = pattern.used || !found.empty();
  return !found.empty();
}

}  // namespace

void freeze_others(const std::vector<std::string>& patterns,
                   const NamedModel& model,
                   std::vector<parallel::ParamGroup>& groups,
                   std::vector<std::string>& notes,
                   config::Problems& problems,
                   const config::Origins& origins) {
  if (patterns.empty()) return;
  const auto refuse = [&](std::string what, std::string fix) {
    problems.add(origins.place(kTrained), kTrained, std::move(what), std::move(fix));
  };
  if (model.resolved.description.find("family") == nullptr)
    return refuse("the program's own model has no files of Hugging Face",
                  "remove it, and freeze parameters with optimizer.groups");
  if (model.adapted)
    return refuse("an adapter trains its own parameters alone",
                  "remove it; adapter.modules_to_save names layers that are trained as well");
  std::vector<TensorPattern> wanted;
  for (const std::string& text : patterns) {
    try {
      wanted.push_back({text, text::tokenizers::regex_pattern(text)});
    } catch (const Error&) {
      return refuse(fmt::format("\"{}\" is not a valid regular expression", text),
                    "escape its special characters with two backslashes");
    }
  }
  const models::WeightMap& map = models::families().get(model.family).weight_map;
  std::set<std::string> frozen;
  std::int64_t trained = 0;
  std::string example;
  for (const auto& info : nn::parameters_of(model.resolved.model)) {
    std::set<std::string> yes, no;
    const models::Composition composition = map.compose(*info);
    for (const models::Composition::Part& part : composition.parts()) {
      example = part.tensor;
      // Every pattern is tried, so that those without a tensor are known.
      const auto matching = std::count_if(wanted.begin(), wanted.end(), [&](TensorPattern& one) {
        return is_found(one, part.tensor);
      });
      (matching > 0 ? yes : no).insert(part.tensor);
    }
    if (!yes.empty() && !no.empty())
      return refuse(fmt::format("{} and {} are one parameter here, and only the first is trained",
                                *yes.begin(),
                                *no.begin()),
                    "let the patterns match both or none");
    if (yes.empty()) {
      frozen.insert(info->name);
    } else {
      trained += info->numel();
    }
  }
  for (const TensorPattern& pattern : wanted) {
    if (!pattern.used)
      refuse(fmt::format("\"{}\" matches no tensor", pattern.text),
             fmt::format("names look like {}", example));
  }
  notes.push_back(fmt::format("optimizer.trained: {} of {} parameters are trained",
                              text::with_commas(trained),
                              text::with_commas(model.resolved.num_parameters)));
  if (frozen.empty()) return;
  parallel::ParamGroup group;
  group.pattern = kTrained;
  group.names = std::move(frozen);
  group.frozen = true;
  group.place = origins.place(kTrained);
  groups.insert(groups.begin(), std::move(group));
}

}  // namespace tessera::planner
