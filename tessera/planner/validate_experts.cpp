// SPDX-License-Identifier: Apache-2.0
// Rules between experts and the layout: parallel.expert, and what the other forms of parallelism
// require of sparse layers.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/nn/expert_load.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {
namespace {

constexpr const char* kKey = "parallel.expert";

/// The ranks that together hold one copy of the weights, among which experts can be divided.
int divisible(const parallel::Layout& layout) {
  const bool groups = layout.zero_stage == 3 && layout.shard_ranks > 1;
  return groups ? std::min(layout.shard_ranks, layout.data_ranks) : layout.data_ranks;
}

/// The divisors of `ranks` next to `wanted`: "2 or 4".
std::string nearest_divisors(int ranks, std::int64_t wanted) {
  int below = 1, above = ranks;
  for (int k = 1; k <= ranks; ++k) {
    if (ranks % k != 0) continue;
    if (k < wanted) below = k;
    if (k > wanted && above == ranks) above = k;
  }
  return below == above ? std::to_string(below) : fmt::format("{} or {}", below, above);
}

/// The smallest number of experts of a layer; 0: the model has none.
std::int64_t fewest_experts(const nn::Model& model) {
  std::int64_t fewest = 0;
  for (const auto& info : nn::parameters_of(model)) {
    if (!info->stacked()) continue;
    fewest = fewest == 0 ? info->shape.front() : std::min(fewest, info->shape.front());
  }
  return fewest;
}

/// True if experts of some layer drop tokens beyond a capacity.
bool drops(const nn::Model& model) {
  return std::any_of(model.blocks.begin(), model.blocks.end(), [](const nn::BlockSpec& spec) {
    const auto block = spec.make();
    const auto* const experts = dynamic_cast<const nn::HasExperts*>(block.get());
    return experts != nullptr && experts->router().drops;
  });
}

class Check {
 public:
  Check(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}
  void add(const char* path, std::string what, std::string fix) const {
    problems_.add(origins_.place(path), path, std::move(what), std::move(fix));
  }

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

/// Rules for more than one rank along the axis of experts.
void check_divided(const TrainConfig& config,
                   std::int64_t experts,
                   const parallel::Layout& layout,
                   const Check& check) {
  const std::int64_t size = config.parallel.expert;
  if (experts == 0) {
    check.add(kKey,
              fmt::format("{} ranks would divide experts, and the model has none", size),
              "remove it, or give model.moe.num_experts");
    return;
  }
  if (size > experts) {
    check.add(
        kKey,
        fmt::format("{} ranks cannot share {} experts: each needs at least one", size, experts),
        fmt::format("set it to at most {}", experts));
  }
  const int ranks = divisible(layout);
  if (layout.data_ranks > 0 && ranks % size != 0) {
    const bool groups = ranks < layout.data_ranks;
    check.add(
        kKey,
        fmt::format("{} data-parallel ranks{} cannot be divided into groups of {} for experts",
                    ranks,
                    groups ? " of a group of shards" : "",
                    size),
        fmt::format("set it to {}", nearest_divisors(ranks, size)));
  }
  if (optim::exchange_needs(config.optimizer).compressed) {
    check.add("optimizer.type",
              fmt::format("{} compresses gradients that all ranks sum, and those of experts are "
                          "summed over fewer ranks (parallel.expert)",
                          config.optimizer.type),
              "use AdamW, or set parallel.expert to 1");
  }
  if (config.zero_optimization.zeropp_loco_param.on()) {
    check.add(
        "zero_optimization.zeropp_loco_param",
        "does not go with parallel.expert: what a rank of it keeps would not be in checkpoints",
        "remove the key, or set parallel.expert to 1");
  }
}

}  // namespace

void divide_experts(const TrainConfig& config,
                    const CheckedModel& checked,
                    parallel::Layout& layout,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const nn::Model& model = checked.model.model;
  if (model.blocks.empty() || problems.concern(kKey)) return;
  const std::int64_t size = config.parallel.expert;
  if (layout.data_ranks > 0 && divisible(layout) % size == 0)
    layout.expert_ranks = static_cast<int>(size);
  const Check check(problems, origins);
  const std::int64_t experts = fewest_experts(model);
  if (config.parallel.expert > 1 && !problems.concern("optimizer"))
    check_divided(config, experts, layout, check);
  if (experts == 0) return;
  const parallel::ParallelOptions& parallel = config.parallel;
  if (parallel.sequence && parallel.tensor.size > 1) {
    check.add("parallel.sequence",
              "experts need whole tokens of a sample on every rank of parallel.tensor",
              "set it to false");
  }
  if (parallel.context.size > 1 && drops(model)) {
    check.add(
        "model.moe.capacity",
        "the capacity of an expert counts whole micro-batches, and ranks share the tokens of a "
        "sample (parallel.context)",
        "set it to 0, or parallel.context.size to 1");
  }
}

}  // namespace tessera::planner
