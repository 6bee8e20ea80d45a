// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/rank_product.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/text.h"

namespace tessera::parallel {

std::int64_t ranks_per_model(const json::Value& source) {
  const json::Value* const section = source.is_object() ? source.find("parallel") : nullptr;
  if (section == nullptr) return 1;
  ParallelOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(*section, options, problems, origins);
  return problems.empty() ? options.ranks_per_model() : 1;
}

bool sizes_are_known(const config::Problems& problems) {
  constexpr std::array kSizes = {
      "parallel.pipeline.size", "parallel.tensor.size", "parallel.context.size"};
  return std::none_of(
      kSizes.begin(), kSizes.end(), [&](const char* path) { return problems.concern(path); });
}

void check_product(const ParallelOptions& options,
                   int ranks,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const std::int64_t unit = options.ranks_per_model();
  if (ranks % unit == 0) return;
  std::vector<std::string> nearest;
  for (const std::int64_t count : {ranks / unit * unit, (ranks / unit + 1) * unit}) {
    if (count > 0 && count <= kMostRanks) nearest.push_back(fmt::format("-n {}", count));
  }
  problems.add(origins.place("parallel"),
               "parallel",
               fmt::format("{} {} cannot be divided into pipeline {} x tensor {} x context {} = {}",
                           ranks,
                           ranks == 1 ? "rank" : "ranks",
                           options.pipeline.size,
                           options.tensor.size,
                           options.context.size,
                           unit),
               nearest.empty() ? fmt::format("lower them: there are at most {} ranks", kMostRanks)
                               : "use " + text::join(nearest, " or "));
}

}  // namespace tessera::parallel
