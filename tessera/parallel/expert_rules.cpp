// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/expert_rules.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/nn/expert_load.h"
#include "tessera/nn/low_rank_names.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/layout.h"

namespace tessera::parallel {
namespace {

constexpr const char* kExpertKey = "parallel.expert";

/// The ranks that together hold one copy of the weights, among which experts can be divided.
int divisible(const Layout& layout) {
  const bool groups = layout.zero_stage == 3 && layout.shard_ranks > 1;
  return groups ? std::min(layout.shard_ranks, layout.data_ranks) : layout.data_ranks;
}

/// Ways to spread the experts of a layer over ranks.
struct ExpertSpread {
  bool context = false, tensor = false;
  int over_model = 1;  ///< ranks of the two together
};
/// In the order in which they are tried.
std::vector<ExpertSpread> spreads_of(const ParallelOptions& options) {
  const int cp = static_cast<int>(options.context.size), tp = static_cast<int>(options.tensor.size);
  const bool may_tensor =
      tp > 1 && options.expert_tensor == 1 && options.tensor.layout() == TensorLayout::OneD;
  std::vector<ExpertSpread> out = {{}};
  if (cp > 1) out.push_back({.context = true, .over_model = cp});
  if (may_tensor) out.push_back({.tensor = true, .over_model = tp});
  if (cp > 1 && may_tensor) out.push_back({.context = true, .tensor = true, .over_model = cp * tp});
  return out;
}

/// The numbers of ranks among which experts can be divided, next to `wanted`: "2 or 4".
std::string nearest_divisions(const ParallelOptions& options, int ranks, std::int64_t wanted) {
  std::set<std::int64_t> all;
  for (const ExpertSpread& spread : spreads_of(options)) {
    for (int k = 1; k <= ranks; ++k) {
      if (ranks % k == 0) all.insert(static_cast<std::int64_t>(k) * spread.over_model);
    }
  }
  const auto above = all.upper_bound(wanted);
  const std::int64_t below = *std::prev(above);
  return above == all.end() ? std::to_string(below) : fmt::format("{} or {}", below, *above);
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

/// The smallest width of an expert of the model.
std::int64_t narrowest_expert(const nn::Model& model) {
  std::int64_t narrowest = std::numeric_limits<std::int64_t>::max();
  for (const auto& info : nn::parameters_of(model)) {
    if (!info->stacked()) continue;
    for (std::size_t d = 0; d < info->axes.size(); ++d) {
      if (info->axes[d] == LogicalAxis::Ffn) narrowest = std::min(narrowest, info->shape[d]);
    }
  }
  return narrowest;
}

/// True if matrices of experts have adapters.
bool adapts_experts(const nn::Model& model) {
  for (const auto& info : nn::parameters_of(model)) {
    if (info->stacked() && nn::is_low_rank(*info)) return true;
  }
  return false;
}

/// True if experts of some layer drop tokens beyond a capacity.
bool drops(const nn::Model& model) {
  return std::any_of(model.blocks.begin(), model.blocks.end(), [](const nn::BlockSpec& spec) {
    const auto block = spec.make();
    const auto* const experts = dynamic_cast<const nn::HasExperts*>(block.get());
    return experts != nullptr && experts->router().drops;
  });
}

/// The first way to form groups of parallel.expert ranks; absent: there is none.
std::optional<ExpertSpread> spread_for(const ParallelOptions& options, const Layout& layout) {
  const std::int64_t size = options.expert, ranks = divisible(layout);
  for (const ExpertSpread& spread : spreads_of(options)) {
    if (size % spread.over_model == 0 && ranks % (size / spread.over_model) == 0) return spread;
  }
  return std::nullopt;
}

class ExpertCheck {
 public:
  ExpertCheck(config::Problems& problems, const config::Origins& origins)
      : problems_(problems), origins_(origins) {}
  void add(const char* path, std::string what, std::string fix) const {
    problems_.add(origins_.place(path), path, std::move(what), std::move(fix));
  }

 private:
  config::Problems& problems_;
  const config::Origins& origins_;
};

/// Rules for more than one rank along the axis of experts.
void check_divided(const ExpertChoice& choice,
                   std::int64_t experts,
                   const Layout& layout,
                   const ExpertCheck& check) {
  const ParallelOptions& options = choice.parallel;
  const std::int64_t size = options.expert;
  if (experts == 0) {
    check.add(kExpertKey,
              fmt::format("{} ranks would divide experts, and the model has none", size),
              "remove it, or give model.moe.num_experts");
    return;
  }
  if (size > experts) {
    check.add(
        kExpertKey,
        fmt::format("{} ranks cannot share {} experts: each needs at least one", size, experts),
        fmt::format("set it to at most {}", experts));
  }
  if (const int ranks = divisible(layout); layout.data_ranks > 0 && !spread_for(options, layout)) {
    const bool groups = ranks < layout.data_ranks;
    const ExpertSpread most = spreads_of(options).back();
    const std::string model = most.over_model == 1
                                  ? ""
                                  : fmt::format(" with {}{}{}",
                                                most.context ? "parallel.context" : "",
                                                most.context && most.tensor ? " and " : "",
                                                most.tensor ? "parallel.tensor" : "");
    check.add(
        kExpertKey,
        fmt::format("{} data-parallel ranks{}{} cannot be divided into groups of {} for experts",
                    ranks,
                    groups ? " of a group of shards" : "",
                    model,
                    size),
        fmt::format("set it to {}", nearest_divisions(options, ranks, size)));
  }
  if (optim::exchange_needs(choice.optimizer).compressed) {
    check.add("optimizer.type",
              fmt::format("{} compresses gradients that all ranks sum, and those of experts are "
                          "summed over fewer ranks (parallel.expert)",
                          choice.optimizer.type),
              "use AdamW, or set parallel.expert to 1");
  }
  if (choice.zero.zeropp_loco_param.on()) {
    check.add(
        "zero_optimization.zeropp_loco_param",
        "does not go with parallel.expert: what a rank of it keeps would not be in checkpoints",
        "remove the key, or set parallel.expert to 1");
  }
}

/// Rules for parallel.expert_tensor.
void split_experts(const ParallelOptions& options,
                   const nn::Model& model,
                   std::int64_t experts,
                   Layout& layout,
                   const ExpertCheck& check) {
  constexpr const char* kSplit = "parallel.expert_tensor";
  const std::int64_t ranks = options.expert_tensor, tensor = options.tensor.size;
  if (ranks == 1) return;
  if (experts == 0) {
    check.add(kSplit,
              fmt::format("{} ranks would split experts, and the model has none", ranks),
              "remove it, or give model.moe.num_experts");
  } else if (ranks != tensor) {
    check.add(
        kSplit,
        fmt::format("{} ranks cannot split experts: it is 1 or parallel.tensor.size, which is "
                    "{}",
                    ranks,
                    tensor),
        tensor > 1 ? fmt::format("set it to 1 or {}", tensor) : "set it to 1");
  } else if (options.tensor.layout() != TensorLayout::OneD) {
    check.add(kSplit, "experts are split in mode 1d of parallel.tensor only", "set it to 1");
  } else if (const std::int64_t width = narrowest_expert(model); width < ranks) {
    check.add(kSplit,
              fmt::format("{} ranks cannot split an expert of width {}", ranks, width),
              "set it to 1, or raise model.moe.ffn_hidden_size");
  } else if (adapts_experts(model)) {
    check.add(kSplit,
              "experts that ranks split cannot have adapters",
              "set it to 1, or leave experts out of adapter.targets and adapter.target_parameters");
  } else {
    layout.splits_experts = true;
  }
}

// A capacity of less than one token would accept one all the same.
void check_capacity(const ExpertChoice& choice, const ExpertCheck& check) {
  const json::Value* const moe = choice.description.find("moe");
  const auto number = [&](const char* key) {
    const json::Value* const value = moe != nullptr && moe->is_object() ? moe->find(key) : nullptr;
    return value != nullptr && value->is_number() ? value->as_double() : 0.0;
  };
  const double factor = number("capacity"), top_k = number("top_k"),
               experts = number("num_experts"),
               tokens = static_cast<double>(choice.tokens_of_micro_batch);
  if (factor <= 0.0 || experts <= 0.0 || tokens <= 0.0 || number("min_capacity") >= 1.0) return;
  const double accepted = factor * top_k * tokens / experts;
  if (accepted >= 1.0) return;
  check.add("model.moe.capacity",
            fmt::format("an expert would accept {:.3g} of a token: capacity {:.3g} x top_k {} x {} "
                        "tokens of a micro-batch / {} experts",
                        accepted,
                        factor,
                        top_k,
                        tokens,
                        experts),
            "raise it, or set model.moe.min_capacity to 1 or more");
}

}  // namespace

void divide_experts(const ExpertChoice& choice,
                    const nn::Model& model,
                    Layout& layout,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const ParallelOptions& options = choice.parallel;
  if (model.blocks.empty() || problems.concern(kExpertKey)) return;
  const ExpertCheck check(problems, origins);
  const std::int64_t experts = fewest_experts(model);
  if (layout.data_ranks > 0) {
    if (const auto spread = spread_for(options, layout)) {
      layout.expert_ranks = static_cast<int>(options.expert / spread->over_model);
      layout.experts_over_context = spread->context;
      layout.experts_over_tensor = spread->tensor;
    }
  }
  split_experts(options, model, experts, layout, check);
  if (options.expert > 1 && !problems.concern("optimizer"))
    check_divided(choice, experts, layout, check);
  if (experts == 0) return;
  if (options.sequence && options.tensor.size > 1) {
    check.add("parallel.sequence",
              "experts need whole tokens of a sample on every rank of parallel.tensor",
              "set it to false");
  }
  check_capacity(choice, check);
  if (options.context.size > 1 && drops(model)) {
    const json::Value* const moe = choice.description.find("moe");
    const bool by_sample = moe != nullptr && moe->find("expert_capacity") != nullptr;
    check.add(
        by_sample ? "model.moe.expert_capacity" : "model.moe.capacity",
        fmt::format("the capacity of an expert counts whole {}, and ranks share the tokens of a "
                    "sample (parallel.context)",
                    by_sample ? "samples" : "micro-batches"),
        "set it to 0, or parallel.context.size to 1");
  }
}

}  // namespace tessera::parallel
