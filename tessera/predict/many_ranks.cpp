// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/many_ranks.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/rank_product.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::predict {
namespace {

constexpr const char* kGlobal = "train_batch_size";

}  // namespace

planner::Plan with_data_ranks(const planner::Plan& plan, int data_ranks) {
  parallel::Layout layout = plan.layout();
  planner::Recipe recipe = plan.recipe();
  recipe.global_batch = recipe.global_batch / layout.data_ranks * data_ranks;
  if (layout.shard_ranks == layout.data_ranks) layout.shard_ranks = data_ranks;
  layout.data_ranks = data_ranks;
  return planner::with(planner::with(plan, std::move(layout)), std::move(recipe));
}

planner::Plan plan_of_many(const json::Value& source, int ranks, const std::string& name_of_file) {
  TESSERA_REQUIRE(ranks >= 1 && ranks <= kMostPlannedRanks,
                  Config,
                  fmt::format("-n {}: expected 1 to {} ranks", ranks, kMostPlannedRanks),
                  "");
  if (ranks <= kMostRanks) return planner::make_plan(source, ranks, name_of_file);
  const std::int64_t unit = std::max<std::int64_t>(parallel::ranks_per_model(source), 1);
  TESSERA_REQUIRE(ranks % unit == 0,
                  Config,
                  fmt::format("-n {}: {} ranks together hold one copy of the model, which does not "
                              "divide it",
                              ranks,
                              unit),
                  fmt::format("-n {}", ranks / unit * unit));
  const std::int64_t data = ranks / unit;
  std::int64_t few = std::min<std::int64_t>(data, std::max<std::int64_t>(kMostRanks / unit, 1));
  json::Value smaller = source;
  const json::Value* const global = source.find(kGlobal);
  const std::optional<std::int64_t> batch =
      global != nullptr && global->is_number() ? global->as_integer() : std::nullopt;
  if (batch) {
    TESSERA_REQUIRE(*batch % data == 0,
                    Config,
                    fmt::format("{} {} is not a multiple of the {} data-parallel ranks of {} ranks",
                                kGlobal,
                                *batch,
                                data,
                                ranks),
                    fmt::format("{} {}", kGlobal, std::max<std::int64_t>(*batch / data, 1) * data));
    smaller[kGlobal] = json::Value::integer(*batch / data * few);
  }
  return with_data_ranks(planner::make_plan(smaller, static_cast<int>(few * unit), name_of_file),
                         static_cast<int>(data));
}

}  // namespace tessera::predict
