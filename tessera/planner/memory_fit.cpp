// SPDX-License-Identifier: Apache-2.0
// Checks if a plan fits into the available memory, and finds the smallest changes that make it fit.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/family.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/stages.h"

namespace tessera::planner {
namespace {

// Ignores activations if they are not predicted.
bool fits(const MemoryEstimate& need, int ranks, std::uint64_t available) {
  return static_cast<double>(need.total()) * ranks <=
         kUsableMemory * static_cast<double>(available);
}

bool fits(const Plan& plan, std::uint64_t available) {
  return fits(estimate_memory(plan), plan.ranks, available);
}

// The plan with another preset's sizes; nothing if they are incompatible.
std::optional<Plan> with_preset(const Plan& plan, const std::string& preset) {
  models::ModelOptions options = plan.config.model;
  options.choose_preset(preset);
  models::ObjectiveChoice objective;
  if (plan.task != nullptr)
    objective = {plan.task->objective(), plan.task->objective_options(plan.config.data)};
  config::Problems problems;
  Plan out = plan;
  out.probes = make_probe_cache();
  out.model = models::resolve(options,
                              plan.model.tokenizer_size,
                              plan.sequence_length,
                              problems,
                              config::Origins(),
                              objective);
  out.stages = place_blocks(out.config.parallel.pipeline,
                            out.model.model,
                            out.sequence_length,
                            problems,
                            config::Origins());
  if (!problems.empty() || out.model.num_parameters >= plan.model.num_parameters)
    return std::nullopt;
  return out;
}

// Smaller presets, the largest first.
std::vector<std::pair<std::string, Plan>> smaller_presets(const Plan& plan) {
  std::vector<std::pair<std::string, Plan>> out;
  if (plan.config.model->from) return out;
  const models::Family& family = models::families().get(plan.config.model.family());
  for (const std::string& preset : models::names_of(family.presets)) {
    if (auto smaller = with_preset(plan, preset)) out.emplace_back(preset, std::move(*smaller));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.model.num_parameters > b.second.model.num_parameters;
  });
  return out;
}

// Searches for changes, one kind after the other, from the smallest change on.
class Search {
 public:
  Search(const Plan& plan, std::uint64_t available) : plan_(plan), available_(available) {}

  std::vector<std::string> run() {
    smaller_micro(plan_, "");
    shorter_sequence();
    fewer_ranks();
    in_bf16();
    higher_stage();
    run_twice();
    for (const auto& [name, smaller] : smaller_presets(plan_)) {
      if (found_.size() >= kMost) break;
      try_preset(name, smaller);
    }
    found_.resize(std::min(found_.size(), kMost));
    return std::move(found_);
  }

 private:
  static constexpr std::size_t kMost = 3;

  bool offer(const Plan& plan, const std::string& text) {
    if (!fits(plan, available_) || !estimate_memory(plan).unknown.empty()) return false;
    found_.push_back(text);
    return true;
  }

  // Keeps the global batch: accumulation grows as the micro-batch shrinks.
  bool smaller_micro(Plan plan, const std::string& before) {
    const std::int64_t each = plan.micro_batch * plan.accumulation;
    for (std::int64_t micro = plan.micro_batch / 2; micro >= 1; micro /= 2) {
      if (each % micro != 0) continue;
      plan.micro_batch = micro;
      plan.accumulation = each / micro;
      const std::string text =
          fmt::format("train_micro_batch_size_per_gpu {} and gradient_accumulation_steps {}",
                      micro,
                      plan.accumulation);
      if (offer(plan, before + text)) return true;
    }
    return false;
  }

  void shorter_sequence() {
    Plan plan = plan_;
    for (std::int64_t length = plan_.sequence_length / 2; length >= 32; length /= 2) {
      plan.sequence_length = length;
      for (std::size_t i = 0; i < plan.sample.size(); ++i) {
        std::ranges::replace(
            plan.sample[i].shape = plan_.sample[i].shape, plan_.sequence_length, length);
      }
      if (length % plan_.config.parallel.token_unit() != 0) continue;
      if (offer(plan, fmt::format("data.sequence_length {}", length))) return;
    }
  }

  void fewer_ranks() {
    Plan plan = plan_;
    const int unit = plan_.ranks / plan_.data_ranks;
    for (int ranks = plan_.data_ranks / 2; ranks >= 1; ranks /= 2) {
      plan.data_ranks = ranks;
      plan.ranks = ranks * unit;
      if (ranks == 1) plan.zero_stage = 0;
      if (plan_.shard_ranks == plan_.data_ranks) plan.shard_ranks = ranks;
      if (ranks % plan.shard_ranks != 0) continue;
      if (plan.global_batch % (plan.micro_batch * ranks) != 0) continue;
      plan.accumulation = plan.global_batch / plan.micro_batch / ranks;
      if (offer(plan,
                fmt::format(
                    "-n {} and gradient_accumulation_steps {}", plan.ranks, plan.accumulation)))
        return;
    }
  }

  void in_bf16() {
    if (plan_.working != DType::F32) return;
    Plan plan = plan_;
    plan.working = DType::BF16;
    if (!offer(plan, "bf16.enabled true")) smaller_micro(plan, "bf16.enabled true, ");
  }

  void higher_stage() {
    Plan plan = plan_;
    const ExchangeNeeds needs = exchange_needs(plan_.config.optimizer);
    const int most = needs.local_weights ? 0 : needs.compressed ? 1 : 3;
    while (plan.data_ranks > 1 && plan.zero_stage < most) {
      ++plan.zero_stage;
      if (offer(plan, fmt::format("zero_optimization.stage {}", plan.zero_stage))) return;
    }
  }

  void run_twice() {
    Plan plan = plan_;
    plan.recompute.blocks.assign(plan.model.model.blocks.size(), true);
    offer(plan, "activation_checkpointing.granularity full");
  }

  void try_preset(const std::string& name, const Plan& plan) {
    const std::string text = "model.preset " + name;
    if (!offer(plan, text)) smaller_micro(plan, text + ", ");
  }

  const Plan& plan_;
  std::uint64_t available_;
  std::vector<std::string> found_;
};

}  // namespace

void save_as_memory_allows(Plan& plan, const MemoryEstimate& need, std::uint64_t available) {
  const std::int64_t copy = saving_bytes(plan);
  const auto all = static_cast<double>((need.total() + copy) * plan.ranks);
  const bool known = need.unknown.empty();
  if (known && all <= kUsableMemory * static_cast<double>(available)) return;
  if (copy > 0) {
    plan.notes.push_back(fmt::format(
        "training waits while a checkpoint is written: {}a copy of {} a rank to write it from {}",
        known ? "" : "it is not known whether ",
        text::bytes(static_cast<std::uint64_t>(copy)),
        known ? "does not fit into memory"
              : "fits into memory, because the activations are not predicted"));
  }
  plan.save_in_background = false;
}

void recompute_what_memory_needs(Plan& plan, std::uint64_t available) {
  if (const std::string unknown = estimate_memory(plan).unknown; !unknown.empty()) {
    plan.notes.push_back(
        fmt::format("activation_checkpointing.granularity auto recomputes nothing: the activations "
                    "are not predicted ({})",
                    unknown));
    return;
  }
  auto& blocks = plan.recompute.blocks;
  for (std::size_t b = 1; b + 1 < blocks.size() && !fits(plan, available); ++b)
    blocks[b] = true;
}

std::vector<std::string> changes_that_fit(const Plan& plan, std::uint64_t available) {
  return Search(plan, available).run();
}

MemoryEstimate check_memory(const Plan& plan, std::uint64_t available) {
  check_blocks(plan);
  MemoryEstimate need = estimate_memory(plan);
  if (fits(need, plan.ranks, available)) return need;
  const std::vector<std::string> changes = changes_that_fit(plan, available);
  throw Error(
      Error::Kind::Memory,
      fmt::format("{} a rank x {} {} = {} do not fit into {:.0f} % of the {} that are free ({})",
                  text::bytes(static_cast<std::uint64_t>(need.total())),
                  plan.ranks,
                  plan.ranks == 1 ? "rank" : "ranks",
                  text::bytes(static_cast<std::uint64_t>(need.total()) *
                              static_cast<std::uint64_t>(plan.ranks)),
                  100 * kUsableMemory,
                  text::bytes(available),
                  need.text()),
      changes.empty() ? "use a machine with more memory"
                      : "one of these fits: " + text::join(changes, "; or "));
}

}  // namespace tessera::planner
