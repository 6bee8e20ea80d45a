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
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/placement.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/offload_ladder.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

// The plan with another preset's sizes; nothing if they are incompatible.
std::optional<Plan> with_preset(const Plan& plan, const std::string& preset) {
  const models::Resolved& now = plan.model().resolved;
  const DataPlan& data = plan.data();
  models::ModelOptions options = plan.model().options;
  options.choose_preset(preset);
  models::ObjectiveChoice objective;
  if (data.task != nullptr)
    objective = {data.task->objective(), data.task->objective_options(data.options)};
  config::Problems problems;
  ModelPlan model = plan.model();
  model.resolved = models::resolve(
      options, now.tokenizer_size, data.sequence_length, problems, config::Origins(), objective);
  parallel::Layout layout = plan.layout();
  const parallel::PipelineOptions pipeline = {.size = layout.stages.stages,
                                              .schedule = layout.schedule,
                                              .chunks = layout.stages.chunks,
                                              .partition = layout.partition};
  layout.stages = parallel::place_blocks(
      pipeline, model.resolved.model, data.sequence_length, problems, config::Origins());
  if (!problems.empty() || model.resolved.num_parameters >= now.num_parameters) return std::nullopt;
  return with(with(plan, std::move(layout)), std::move(model));
}

// Smaller presets, the largest first.
std::vector<std::pair<std::string, Plan>> smaller_presets(const Plan& plan) {
  std::vector<std::pair<std::string, Plan>> out;
  const models::ModelOptions& options = plan.model().options;
  if (options->from) return out;
  const models::Family& family = models::families().get(options.family());
  for (const std::string& preset : models::names_of(family.presets)) {
    if (auto smaller = with_preset(plan, preset)) out.emplace_back(preset, std::move(*smaller));
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.model().resolved.num_parameters > b.second.model().resolved.num_parameters;
  });
  return out;
}

// Searches for changes, one kind after the other, from the smallest change on.
class Search {
 public:
  Search(const Plan& plan, std::uint64_t available) : plan_(plan), available_(available) {}

  std::vector<std::string> run() {
    smaller_micro(plan_, plan_.layout(), "");
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
    const MemoryEstimate need = estimate_memory(plan);
    if (!fits(need, plan.ranks(), available_) || !need.unknown.empty()) return false;
    found_.push_back(text);
    return true;
  }
  bool offer(const parallel::Layout& layout, const std::string& text) {
    return offer(with(plan_, layout), text);
  }

  // Keeps the global batch: accumulation grows as the micro-batch shrinks.
  bool smaller_micro(const Plan& plan, parallel::Layout layout, const std::string& before) {
    const std::int64_t each = layout.micro_batch * layout.accumulation;
    for (std::int64_t micro = layout.micro_batch / 2; micro >= 1; micro /= 2) {
      if (each % micro != 0) continue;
      layout.micro_batch = micro;
      layout.accumulation = each / micro;
      const std::string text =
          fmt::format("train_micro_batch_size_per_gpu {} and gradient_accumulation_steps {}",
                      micro,
                      layout.accumulation);
      if (offer(with(plan, layout), before + text)) return true;
    }
    return false;
  }

  void shorter_sequence() {
    const std::int64_t now = plan_.data().sequence_length;
    for (std::int64_t length = now / 2; length >= 32; length /= 2) {
      if (length % plan_.layout().token_unit() != 0) continue;
      DataPlan data = plan_.data();
      data.sequence_length = length;
      for (data::TensorSpec& spec : data.sample)
        std::ranges::replace(spec.shape, now, length);
      if (offer(with(plan_, std::move(data)), fmt::format("data.sequence_length {}", length)))
        return;
    }
  }

  void fewer_ranks() {
    const parallel::Layout& now = plan_.layout();
    const std::int64_t global_batch = plan_.recipe().global_batch;
    parallel::Layout layout = now;
    for (int ranks = now.data_ranks / 2; ranks >= 1; ranks /= 2) {
      layout.data_ranks = ranks;
      if (ranks == 1) layout.zero_stage = 0;
      if (now.shard_ranks == now.data_ranks) layout.shard_ranks = ranks;
      if (ranks % layout.shard_ranks != 0) continue;
      if (layout.shard_ranks % layout.expert_ranks != 0) continue;
      if (global_batch % (layout.micro_batch * ranks) != 0) continue;
      layout.accumulation = global_batch / layout.micro_batch / ranks;
      if (offer(
              layout,
              fmt::format(
                  "-n {} and gradient_accumulation_steps {}", layout.ranks(), layout.accumulation)))
        return;
    }
  }

  void in_bf16() {
    if (plan_.layout().working != DType::F32) return;
    parallel::Layout layout = plan_.layout();
    layout.working = DType::BF16;
    if (!offer(layout, "bf16.enabled true")) smaller_micro(plan_, layout, "bf16.enabled true, ");
  }

  void higher_stage() {
    parallel::Layout layout = plan_.layout();
    const int most = highest_stage(plan_);
    while (layout.data_ranks > 1 && layout.zero_stage < most) {
      ++layout.zero_stage;
      if (offer(layout, fmt::format("zero_optimization.stage {}", layout.zero_stage))) return;
    }
  }

  void run_twice() {
    parallel::Layout layout = plan_.layout();
    layout.recompute.blocks.assign(plan_.model().resolved.model.blocks.size(), true);
    offer(layout, "activation_checkpointing.granularity full");
  }

  void try_preset(const std::string& name, const Plan& plan) {
    const std::string text = "model.preset " + name;
    try {
      if (!offer(plan, text)) smaller_micro(plan, plan.layout(), text + ", ");
    } catch (const Error& error) {
      // Its heads cannot be divided over the tensor-parallel ranks: it is no proposal.
      if (error.kind() != Error::Kind::Config) throw;
    }
  }

  const Plan& plan_;
  std::uint64_t available_;
  std::vector<std::string> found_;
};

// The folder on a disk that is proposed: one that the plan names, or that of the run.
std::string folder_on_disk(const Plan& plan) {
  const OffloadBytes disk = offload_bytes(plan);
  for (const std::string& folder :
       {disk.states_folder, disk.weights_folder, disk.activations_folder}) {
    if (!folder.empty()) return folder;
  }
  return ".";
}

// The rungs as a part of a sentence; empty if there are none.
std::string ladder_text(const std::vector<OffloadRung>& rungs) {
  if (rungs.empty()) return "";
  std::vector<std::string> texts;
  for (const OffloadRung& rung : rungs)
    texts.push_back((rung.fits ? "this fits: " : "") + rung.text());
  return (rungs.back().fits ? "with the same results, rung by rung: "
                            : "with the same results, none of these is enough: ") +
         text::join(texts, "; then ");
}

}  // namespace

bool fits(const MemoryEstimate& need, int ranks, std::uint64_t available) {
  return static_cast<double>(need.total()) * ranks <=
         kUsableMemory * static_cast<double>(available);
}

int highest_stage(const Plan& plan) {
  const optim::ExchangeNeeds needs = optim::exchange_needs(plan.recipe().optimizer);
  return needs.local_weights ? 0 : needs.compressed ? 1 : 3;
}

Saving saving_as_memory_allows(const Plan& plan,
                               const MemoryEstimate& need,
                               std::uint64_t available) {
  const std::int64_t copy = saving_bytes(plan);
  const auto all = static_cast<double>((need.total() + copy) * plan.ranks());
  const bool known = need.unknown.empty();
  if (known && all <= kUsableMemory * static_cast<double>(available))
    return {.in_background = plan.run().saves_in_background, .note = ""};
  if (copy == 0) return {.in_background = false, .note = ""};
  return {.in_background = false,
          .note = fmt::format(
              "training waits while a checkpoint is written: {}a copy of {} a rank to write it "
              "from {}",
              known ? "" : "it is not known whether ",
              text::bytes(static_cast<std::uint64_t>(copy)),
              known ? "does not fit into memory"
                    : "fits into memory, because the activations are not predicted")};
}

std::vector<bool> blocks_to_recompute(const Plan& plan,
                                      std::uint64_t available,
                                      std::vector<std::string>& notes) {
  parallel::Layout layout = plan.layout();
  auto& blocks = layout.recompute.blocks;
  const MemoryEstimate need = estimate_memory(plan);
  if (!need.unknown.empty()) {
    notes.push_back(
        fmt::format("activation_checkpointing.granularity auto recomputes nothing: the activations "
                    "are not predicted ({})",
                    need.unknown));
    return blocks;
  }
  bool enough = fits(need, plan.ranks(), available);
  for (std::size_t b = 1; b + 1 < blocks.size() && !enough; ++b) {
    blocks[b] = true;
    enough = fits(estimate_memory(with(plan, layout)), plan.ranks(), available);
  }
  return blocks;
}

std::vector<std::string> changes_that_fit(const Plan& plan, std::uint64_t available) {
  return Search(plan, available).run();
}

MemoryEstimate check_memory(const Plan& plan, std::uint64_t available) {
  check_blocks(plan);
  MemoryEstimate need = estimate_memory(plan);
  const int ranks = plan.ranks();
  if (fits(need, ranks, available)) return need;
  const std::vector<std::string> changes = changes_that_fit(plan, available);
  const std::string ladder = ladder_text(offload_ladder(plan, available, folder_on_disk(plan)));
  const std::string one =
      changes.empty() ? "" : "one of these fits: " + text::join(changes, "; or ");
  throw Error(
      Error::Kind::Memory,
      fmt::format(
          "{} a rank x {} {} = {} do not fit into {:.0f} % of the {} that are free ({})",
          text::bytes(static_cast<std::uint64_t>(need.total())),
          ranks,
          ranks == 1 ? "rank" : "ranks",
          text::bytes(static_cast<std::uint64_t>(need.total()) * static_cast<std::uint64_t>(ranks)),
          100 * kUsableMemory,
          text::bytes(available),
          need.text()),
      one.empty() && ladder.empty() ? "use a machine with more memory"
                                    : one + (one.empty() || ladder.empty() ? "" : "; ") + ladder);
}

}  // namespace tessera::planner
