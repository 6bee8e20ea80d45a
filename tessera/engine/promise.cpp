// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/promise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/family.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

// Bounds for sums that are split, and therefore rounded, differently: in fp32, and in 16 bits,
// where the rounding of every layer adds up.
constexpr double kGradient = 2e-6, kLoss = 2e-5;
constexpr double kNarrowGradient = 2e-2, kNarrowLoss = 2e-3;
// Number of layers of the model for which the 16-bit bound was measured.
constexpr double kLayers = 12;

void erase(json::Value& object, std::string_view key) {
  if (!object.is_object()) return;
  std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
}

bool sums_first(const planner::Plan& plan) {
  return plan.layout().reduction == parallel::Reduction::Once && plan.layout().accumulation > 1;
}

bool gathers_codes(const planner::Plan& plan) {
  return plan.layout().data_ranks > 1 &&
         plan.layout().residency() == parallel::Residency::Sharded &&
         plan.layout().trained_gather == parallel::GatherForm::Int8;
}

std::vector<std::string> what_rounds_elsewhere(const planner::Plan& plan) {
  std::vector<std::string> out;
  if (plan.layout().grid.size() > 1) out.emplace_back("ranks that share a layer sum parts of it");
  if (plan.layout().context > 1)
    out.emplace_back("ranks that share tokens sum each other's gradients");
  const bool spread = plan.layout().data_ranks > 1;
  if (spread && sums_first(plan))
    out.emplace_back("gradient_reduction \"once\" sums each rank's micro-batches first");
  if (spread && plan.layout().sums != DType::F32)
    out.emplace_back("16-bit sums of gradients are rounded where ranks meet");
  if (gathers_codes(plan)) out.emplace_back("ranks that gather weights round them to 8 bits");
  if (spread && plan.layout().reduction_options().keeps_residuals(plan.layout().data_ranks))
    out.emplace_back("each rank adds what its gradients lost in 8 bits to its next ones");
  return out;
}

double spacing_of(const planner::Plan& plan, bool narrow) {
  if (!narrow) return 0x1p-23;
  const std::array dtypes = {plan.layout().working, plan.layout().sums, plan.layout().sent};
  const bool halves =
      !gathers_codes(plan) &&
      std::none_of(dtypes.begin(), dtypes.end(), [](DType d) { return d == DType::BF16; });
  return halves ? 0x1p-10 : 0x1p-7;
}

// Keeps only the stage in run.derived, because the loss scale distinguishes an explicit stage from
// one derived from the ranks. Returns whether the list had it.
bool derive_stage_alone(json::Value& resolved) {
  json::Value* const run = resolved.find("run");
  json::Value* const derived = run == nullptr ? nullptr : run->find("derived");
  if (derived == nullptr || !derived->is_array()) return false;
  std::erase_if(derived->items(), [](const json::Value& name) {
    return !name.is_string() || name.as_string() != "zero_optimization.stage";
  });
  return !derived->items().empty();
}

}  // namespace

Promise promise_of(const planner::Plan& plan) {
  TESSERA_REQUIRE(
      plan.layout().data_ranks == 1 || !optim::exchange_needs(plan.recipe().optimizer).compressed,
      Unsupported,
      fmt::format("{} promises nothing against one rank: what its ranks compress depends on how "
                  "many there are",
                  plan.recipe().optimizer.type),
      "verify the layout with another optimizer: --set optimizer.type=AdamW --set "
      "optimizer.params={}");
  Promise out;
  const std::vector<std::string> reasons = what_rounds_elsewhere(plan);
  if (reasons.empty()) return out;
  const bool narrow = plan.layout().working != DType::F32 || plan.layout().sums != DType::F32 ||
                      plan.layout().sent != DType::F32 || gathers_codes(plan);
  const auto layers = static_cast<double>(planner::model_of(plan).num_layers);
  out.bits = false;
  out.gradient = narrow ? kNarrowGradient * std::sqrt(layers / kLayers) : kGradient;
  out.loss = narrow ? kNarrowLoss : kLoss;
  out.spacing = spacing_of(plan, narrow);
  out.why = text::join(reasons, "; ");
  return out;
}

json::Value on_one_rank(const planner::Plan& plan) {
  json::Value out = plan.resolved();
  erase(out, "parallel");
  const bool derived = derive_stage_alone(out);
  erase(out["run"], "derived");
  out["train_batch_size"] = json::Value::integer(plan.recipe().global_batch);
  out["train_micro_batch_size_per_gpu"] = json::Value::integer(plan.layout().micro_batch);
  out["gradient_accumulation_steps"] =
      json::Value::integer(plan.layout().accumulation * plan.layout().data_ranks);
  // The loss scale has another rule in stage 0, and stage 1 shards nothing on one rank.
  const bool scaled = plan.layout().working == DType::F16 && plan.recipe().scaling_stage > 0;
  if (derived) {
    erase(out, "zero_optimization");
  } else {
    out["zero_optimization"] =
        json::Value::object({{"stage", json::Value::integer(scaled ? 1 : 0)}});
  }
  // If a rank first sums several micro-batches itself, stage 0 does so in place.
  const bool in_place = sums_first(plan) && plan.layout().reduction_options().locally();
  if (!in_place && !optim::exchange_needs(plan.recipe().optimizer).compressed)
    out["gradient_reduction"] = json::Value::string("each");
  return out;
}

json::Value keeping_gradient(json::Value resolved) {
  const json::Value* const before = resolved.find("optimizer");
  const json::Value* const groups = before == nullptr ? nullptr : before->find("groups");
  json::Value optimizer =
      json::Value::object({{"type", json::Value::string("SGD")},
                           {"params",
                            json::Value::object({{"lr", json::Value::number(0)},
                                                 {"momentum", json::Value::number(0.9)},
                                                 {"weight_decay", json::Value::number(0)}})}});
  if (groups != nullptr && groups->is_array()) {
    // The choice of trained parameters is kept.
    json::Value kept = *groups;
    for (json::Value& group : kept.items()) {
      erase(group, "lr");
      erase(group, "weight_decay");
    }
    optimizer["groups"] = std::move(kept);
  }
  resolved["optimizer"] = std::move(optimizer);
  erase(resolved, "scheduler");
  derive_stage_alone(resolved);
  resolved["gradient_clipping"] = json::Value::number(0);
  resolved["gradient_clip_value"] = json::Value::number(0);
  if (json::Value* const bf16 = resolved.find("bf16")) {
    if (bf16->is_object()) (*bf16)["bf16_optimizer_states"] = json::Value::boolean(false);
  }
  return resolved;
}

}  // namespace tessera::engine
