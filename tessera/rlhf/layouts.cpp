// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/layouts.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/block.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/offload_rules.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/offload.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/validate.h"

namespace tessera::rlhf {

namespace {

struct AskedRanks {
  std::int64_t first = 0, count = 0, tensor = 1;
};

AskedRanks asked_ranks(const tasks::RlModel& model, const planner::Plan& policy) {
  const auto [first, count] =
      model.rank_range().value_or(std::pair<std::int64_t, std::int64_t>(0, policy.ranks()));
  return {first, count, model.tensor.value_or(policy.layout().grid.size())};
}

/// The policy's ranks, or those of the layout.
ModelRanks ranks_of(const ReadLayout& layout, const planner::Plan& policy) {
  return layout.ranks.value_or(
      ModelRanks{.count = policy.ranks(), .tensor = policy.ranks() / policy.layout().data_ranks});
}

/// Returns ", 2 ranks share its layers, on ranks 2 to 3 alone".
std::string text_of(const std::optional<ModelRanks>& ranks, const planner::Plan& policy) {
  if (!ranks) return "";
  std::string out;
  if (ranks->tensor > 1) out += fmt::format(", {} ranks share its layers", ranks->tensor);
  if (ranks->count == policy.ranks()) return out;
  if (ranks->count == 1) return out + fmt::format(", on rank {} alone", ranks->first);
  return out +
         fmt::format(", on ranks {} to {} alone", ranks->first, ranks->first + ranks->count - 1);
}

}  // namespace

bool has_ranks(const tasks::RlModel& model, const planner::Plan& policy) {
  const auto [first, count, tensor] = asked_ranks(model, policy);
  return first + count <= policy.ranks() && count % tensor == 0;
}

std::optional<ModelRanks> ranks_of(const tasks::RlModel& model,
                                   std::string_view key,
                                   const planner::Plan& policy) {
  if (!model.has_own_groups()) return std::nullopt;
  const auto [first, count, tensor] = asked_ranks(model, policy);
  TESSERA_REQUIRE(first + count <= policy.ranks(),
                  Config,
                  fmt::format("rl.models.{}: ranks {} has a rank {}, and {} rank{} learn{}",
                              key,
                              model.ranks.dump(),
                              first + count - 1,
                              policy.ranks(),
                              policy.ranks() == 1 ? "" : "s",
                              policy.ranks() == 1 ? "s" : ""),
                  "start more ranks (-n), or list existing ranks");
  TESSERA_REQUIRE(
      count % tensor == 0,
      Config,
      fmt::format("rl.models.{}: {} ranks cannot be divided into groups of {} that share layers",
                  key,
                  count,
                  tensor),
      "choose a tensor that divides the number of ranks of the model");
  const auto of = [](std::int64_t number) { return static_cast<int>(number); };
  return ModelRanks{.first = of(first), .count = of(count), .tensor = of(tensor)};
}

namespace {

/// Returns where the weights of a model rest, if they do.
std::optional<parallel::WeightOffload> disk_of(const tasks::RlModel& model, std::string_view key) {
  if (!model.offload.to_disk()) return std::nullopt;
  planner::require_disk_folder(fmt::format("rl.models.{}.offload.nvme_path", key),
                               model.offload.nvme_path);
  return parallel::weight_offload_of(model.offload);
}

}  // namespace

ReadLayout layout_of(const tasks::RlModel& model,
                     std::string_view key,
                     const planner::Plan& policy) {
  const bool bf16 = model.dtype ? *model.dtype == "bf16" : policy.layout().working == DType::BF16;
  std::optional<engine::OpenOffload> offload;
  if (const auto weights = disk_of(model, key)) offload = {*weights, policy.layout().disk};
  return {.as = bf16 ? engine::ReadAs::BF16 : engine::ReadAs::F32,
          .copies = model.zero_stage == 0 ? engine::Copies::Each : engine::Copies::One,
          .ranks = ranks_of(model, key, policy),
          .offload = std::move(offload)};
}

std::string text_of(const ReadLayout& layout, const planner::Plan& policy) {
  const ModelRanks ranks = ranks_of(layout, policy);
  std::string out(name(layout.as));
  if (ranks.count > ranks.tensor)
    out +=
        layout.copies == engine::Copies::One ? ", sharded" : ", whole on each data-parallel rank";
  if (layout.offload) out += ", on a disk";
  return out + text_of(layout.ranks, policy);
}

namespace {

struct Elements {
  std::int64_t all = 0, largest = 0;  ///< the largest of one parameter
};

Elements elements_of(const nn::ParamInfos& params) {
  Elements out;
  for (const auto& param : params) {
    out.all += param->numel();
    out.largest = std::max(out.largest, param->numel());
  }
  return out;
}

}  // namespace

std::int64_t bytes_of(const models::Resolved& model,
                      const ReadLayout& layout,
                      const planner::Plan& policy) {
  const Elements elements = elements_of(nn::parameters_of(model.model));
  const ModelRanks ranks = ranks_of(layout, policy);
  const std::int64_t width = layout.as == engine::ReadAs::BF16 ? 2 : 4, sharers = ranks.tensor;
  if (layout.offload) {
    // Parts of blocks in buffers, those that stay in memory, and the block that runs and the next
    // one in full.
    std::int64_t block = 0;
    for (const nn::BlockSpec& spec : model.model.blocks)
      block = std::max(block, elements_of(nn::declared_by(spec)).all);
    const std::int64_t parts = layout.offload->weights.buffers * block / ranks.count,
                       kept = std::min(elements.all / sharers, layout.offload->weights.in_memory) *
                              sharers / ranks.count;
    return (std::min(elements.all / ranks.count, parts + kept) + 2 * block / sharers) * width;
  }
  const bool whole = layout.copies == engine::Copies::Each || ranks.count == ranks.tensor;
  const std::int64_t on_each =
      whole ? elements.all / sharers : elements.all / ranks.count + 2 * elements.largest / sharers;
  return on_each * width;
}

std::optional<planner::DiskNeed> disk_need_of(const models::Resolved& model,
                                              const ReadLayout& layout,
                                              std::string_view key,
                                              const std::string& name,
                                              const planner::Plan& policy) {
  if (!layout.offload) return std::nullopt;
  const engine::OpenOffload& offload = *layout.offload;
  const std::int64_t ranks = ranks_of(layout, policy).count,
                     width = layout.as == engine::ReadAs::BF16 ? 2 : 4;
  planner::DiskNeed out{.key = fmt::format("rl.models.{}.offload.nvme_path", key),
                        .what = "weights of the " + name,
                        .folder = offload.weights.folder,
                        .saved = false,
                        .ranks = static_cast<int>(ranks)};
  // As buffers stay in memory in the order of the model; see WeightOptions::in_memory.
  std::int64_t before = 0;
  for (const nn::BlockSpec& spec : model.model.blocks) {
    const std::int64_t numel = elements_of(nn::declared_by(spec)).all;
    before += numel;
    if (before > offload.weights.in_memory)
      out.bytes += offload.disk.in_blocks(numel * width / ranks);
  }
  return out;
}

std::int64_t bytes_beside_trunk(const models::Resolved& model, const planner::Plan& lender) {
  const auto width = static_cast<std::int64_t>(size_of(lender.layout().working));
  const std::int64_t sharers = lender.ranks() / lender.layout().data_ranks;
  // Sharded weights have memory of their own while they are gathered.
  const bool gathers = lender.layout().zero_stage == 3 && lender.layout().data_ranks > 1;
  const std::int64_t gathered =
      gathers ? 2 * elements_of(nn::parameters_of(model.model)).largest / sharers : 0;
  return (elements_of(nn::declared_by(model.model.blocks.back())).all / sharers + gathered) * width;
}

std::string text_of_trained(const planner::Plan& plan,
                            const std::optional<ModelRanks>& ranks,
                            const planner::Plan& policy) {
  std::string out(planner::precision_text(plan.layout(), plan.recipe()));
  if (plan.layout().data_ranks > 1) out += fmt::format(", ZeRO stage {}", plan.layout().zero_stage);
  if (const models::Adapter* const adapter = plan.model().adapter.get())
    out += fmt::format(", {} of rank {}", adapter->options.type, adapter->options.r);
  return out + text_of(ranks, policy);
}

parallel::Layout layout_of_trained(const tasks::RlModel& model,
                                   const std::optional<ModelRanks>& ranks,
                                   parallel::Layout policy,
                                   std::int64_t global_batch) {
  parallel::Layout out = std::move(policy);
  if (ranks) {
    out.data_ranks = out.shard_ranks = ranks->count / ranks->tensor;
    // The last micro-batches may have no samples.
    const std::int64_t each = out.micro_batch * out.data_ranks;
    out.accumulation = (global_batch + each - 1) / each;
  }
  out.zero_stage = static_cast<int>(model.zero_stage.value_or(out.zero_stage));
  if (model.offload.device) out.weight_offload = disk_of(model, "critic");
  if (model.offload.device == config::OffloadDevice::None) out.weights_on_host = false;
  TESSERA_REQUIRE(
      !out.weight_offload || !model.offload.to_disk() || out.zero_stage == 3,
      Config,
      fmt::format("rl.models.critic.offload: weights rest on a disk in parts, as in ZeRO stage 3, "
                  "and the critic's stage is {}, the policy's",
                  out.zero_stage),
      "set rl.models.critic.zero_stage to 3, or remove it");
  const bool other = model.dtype || out.working == DType::F16;
  if (!other) return out;
  const DType working = model.dtype == "bf16" ? DType::BF16 : DType::F32;
  if (working == out.working) return out;
  out.working = working;
  out.kept = {};  // masters and moments in fp32
  out.sums = DType::F32;
  return out;
}

}  // namespace tessera::rlhf
