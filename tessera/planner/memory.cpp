// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/memory.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/data/sources.h"
#include "tessera/memory/device.h"
#include "tessera/parallel/gradient_bytes.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/planned_buffers.h"
#include "tessera/parallel/saved_bytes.h"
#include "tessera/parallel/state_bytes.h"
#include "tessera/parallel/travel_bytes.h"
#include "tessera/parallel/weight_bytes.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

// True if checkpoints contain frozen parameters; those of an adapter name its base instead.
bool saves_frozen(const Plan& plan) {
  return plan.model().adapter == nullptr ||
         (!plan.model().options->from && !plan.model().rules.packed);
}

std::vector<parallel::PlannedStage> stages_of_plan(const Plan& plan) {
  return parallel::plan_stages(plan.model().resolved.model, plan.layout(), plan.model().rules);
}

parallel::WeightBytes weight_bytes_of(const Plan& plan, const parallel::PlannedStage& stage) {
  return parallel::weight_bytes(
      stage, plan.layout().gather, plan.layout().accumulation, plan.model().rules.packing);
}

bool on_device(const Plan& plan) {
  return memory::device_kind(plan.run().options.device) != DeviceKind::Cpu;
}

// The number of different tokens that the data may have: in text those of the tokenizer, while a
// file of tokens may have any that the model has.
std::int64_t num_ids(const DataPlan& data) {
  const bool text = data.tokenizer != nullptr && data.options.sources.is_null() &&
                    std::ranges::none_of(data.options.train, [](const std::string& file) {
                      return data::names_token_file(file);
                    });
  return text ? data.tokenizer->size() : std::numeric_limits<std::int64_t>::max();
}

parallel::GradientBytes gradients_of(const Plan& plan, const parallel::PlannedStage& stage) {
  return parallel::gradient_bytes(stage,
                                  plan.layout(),
                                  plan.layout().micro_batch * plan.data().sequence_length,
                                  num_ids(plan.data()));
}

// True if ranks are on a device, and masters and states in the host's memory.
bool updates_on_host(const Plan& plan) {
  if (!on_device(plan)) return false;
  return plan.layout().states_on_host || plan.layout().offload ||
         make_rule(plan.recipe())->host_only();
}

// True if the working weights of a buffer are on the host of a device.
bool is_on_host(const parallel::PlannedBuffer& buffer) {
  return buffer.group.residency == parallel::Residency::OnHost ||
         buffer.group.residency == parallel::Residency::Resting;
}

parallel::StateBytes states_of(const Plan& plan, const parallel::PlannedStage& stage) {
  std::function<bool(const parallel::PlannedBuffer&)> apart;
  if (on_device(plan)) {
    apart = [on_host = updates_on_host(plan)](const parallel::PlannedBuffer& buffer) {
      return is_on_host(buffer) != on_host;
    };
  }
  parallel::Layout layout = plan.layout();
  layout.early_updates = layout.early_updates && updates_on_host(plan);  // else without effect
  return parallel::state_bytes(stage, layout, *make_rule(plan.recipe()), saves_frozen(plan), apart);
}

// The memory through which the gradient and the weights of a buffer travel if the states are in
// other memory than the gradient or the weights.
std::int64_t travelling(const Plan& plan,
                        const parallel::PlannedStage& stage,
                        bool update_on_host) {
  const auto value = static_cast<std::int64_t>(size_of(plan.layout().working));
  std::int64_t largest = 0, largest_apart = 0;
  for (const parallel::PlannedBuffer& buffer : stage.buffers) {
    if (!buffer.group.trainable) continue;
    largest = std::max(largest, buffer.owned.numel);
    if (is_on_host(buffer) != update_on_host)
      largest_apart = std::max(largest_apart, buffer.owned.numel);
  }
  // An update of the device sends fp32 weights from their masters.
  const bool staged = update_on_host || plan.layout().working != DType::F32;
  return (update_on_host ? 4 * largest : 0) + (staged ? value * largest_apart : 0);
}

// What is in the memory of the host of ranks on a device, besides activations.
HostBytes host_bytes_of(const Plan& plan,
                        const parallel::PlannedStage& stage,
                        const parallel::WeightBytes& weights,
                        const parallel::StateBytes& states) {
  HostBytes out;
  if (!on_device(plan)) return out;
  if (updates_on_host(plan)) out.states = states.memory + travelling(plan, stage, true);
  out.weights = weights.on_host;
  if (plan.layout().weight_offload) out.weights += weights.buffers + weights.staged;
  return out;
}

// The states of every stage.
std::vector<parallel::StateBytes> states_of(const Plan& plan) {
  std::vector<parallel::StateBytes> out;
  for (const parallel::PlannedStage& stage : stages_of_plan(plan))
    out.push_back(states_of(plan, stage));
  return out;
}

// The estimate for a rank of a stage.
MemoryEstimate estimate_stage(const Plan& plan, int stage, const parallel::PlannedStage& planned) {
  const parallel::WeightBytes weights = weight_bytes_of(plan, planned);
  const parallel::StateBytes states = states_of(plan, planned);
  const parallel::GradientBytes gradients = gradients_of(plan, planned);
  Activations activations = predict_activations(plan, stage, gradients.sums_of_blocks);
  if (plan.layout().streamed_updates) {
    activations.training += gradients.widened;
    activations.with_sums += gradients.widened;
  }
  // A save makes its copies when there are no activations, and so does an update.
  const std::int64_t saved = states.widened_by_saves + gradients.residuals,
                     resting = std::max({activations.evaluation, saved, gradients.widened});
  MemoryEstimate out;
  out.parameters = weights.resting + weights.gathered;
  const HostBytes host = host_bytes_of(plan, planned, weights, states);
  if (host.states > 0) {
    out.on_host = host.states;
  } else {
    out.optimizer = states.memory + (on_device(plan) ? travelling(plan, planned, false) : 0);
  }
  if (on_device(plan) && plan.layout().weight_offload) out.parameters -= weights.buffers;
  out.on_host += host.weights + activations.on_host;
  out.disk = states.disk + gradients.disk + weights.disk + activations.disk;
  out.gradients = gradients.total();
  out.activations = std::max(activations.training, resting);
  if (memory::device_kind(plan.run().options.device) == DeviceKind::Cpu) {
    out.messages = parallel::message_bytes(planned, plan.layout(), stage, activations.flow);
  }
  out.unknown = std::move(activations.unknown);
  if (out.unknown.empty()) {
    const std::int64_t sums = std::accumulate(
        gradients.sums_of_blocks.begin(), gradients.sums_of_blocks.end(), std::int64_t{0});
    const std::int64_t most = std::max(activations.with_sums, sums + resting);
    out.shared = std::max<std::int64_t>(0, sums + out.activations - most);
  }
  out.other =
      kProcessBytes + plan.model().teacher_bytes + plan.needs().beside + plan.needs().traveling;
  out.copies = copy_bytes(plan);
  return out;
}

}  // namespace

std::string MemoryEstimate::text() const {
  const auto in_bytes = [](std::int64_t count) {
    return text::bytes(static_cast<std::uint64_t>(count));
  };
  return fmt::format(
      "parameters {}, gradients {}, optimizer {}{}, activations {}{}, other {}{}{}",
      in_bytes(parameters),
      in_bytes(gradients),
      in_bytes(optimizer),
      (disk > 0 ? fmt::format(" (and {} on the disk)", in_bytes(disk)) : "") +
          (on_host > 0 ? fmt::format(" (and {} in the host's memory)", in_bytes(on_host)) : ""),
      unknown.empty() ? in_bytes(activations) : fmt::format("not predicted ({})", unknown),
      messages > 0 ? ", messages " + in_bytes(messages) : "",
      in_bytes(other),
      copies > 0 ? ", copies " + in_bytes(copies) : "",
      shared > 0 ? "; " + in_bytes(shared) + " are shared by gradients and activations" : "");
}

MemoryEstimate estimate_memory(const Plan& plan) {
  MemoryEstimate most;
  std::int64_t on_host = 0;  // the stage that needs most there may be another one
  const std::vector<parallel::PlannedStage> stages = stages_of_plan(plan);
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    MemoryEstimate need = estimate_stage(plan, stage, stages[static_cast<std::size_t>(stage)]);
    on_host = std::max(on_host, need.on_host);
    if (stage == 0 || need.total() > most.total()) most = std::move(need);
  }
  most.on_host = on_host;
  return most;
}

HostBytes host_bytes(const Plan& plan) {
  HostBytes most;
  if (!on_device(plan)) return most;
  const std::vector<parallel::PlannedStage> stages = stages_of_plan(plan);
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    const parallel::PlannedStage& planned = stages[static_cast<std::size_t>(stage)];
    const HostBytes one =
        host_bytes_of(plan, planned, weight_bytes_of(plan, planned), states_of(plan, planned));
    most.states = std::max(most.states, one.states);
    most.weights = std::max(most.weights, one.weights);
    if (plan.layout().moves_activations())
      most.activations = std::max(most.activations, predict_activations(plan, stage).on_host);
  }
  return most;
}

OffloadBytes offload_bytes(const Plan& plan) {
  OffloadBytes most;
  if (!plan.layout().uses_disk()) return most;
  if (plan.layout().activation_offload)
    most.activations_folder = plan.layout().activation_offload->folder;
  if (plan.layout().offload) most.states_folder = plan.layout().offload->folder;
  if (plan.layout().weight_offload) most.weights_folder = plan.layout().weight_offload->folder;
  const std::vector<parallel::PlannedStage> stages = stages_of_plan(plan);
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    const parallel::PlannedStage& planned = stages[static_cast<std::size_t>(stage)];
    const std::int64_t states = states_of(plan, planned).disk;
    const parallel::WeightBytes weights = weight_bytes_of(plan, planned);
    const parallel::GradientBytes gradients = gradients_of(plan, planned);
    Activations activations;
    if (plan.layout().activation_offload) activations = predict_activations(plan, stage);
    most.activations = std::max(most.activations, activations.disk);
    most.states = std::max(most.states, states);
    most.weights = std::max(most.weights, weights.disk);
    most.gradients = std::max(most.gradients, gradients.disk);
    most.gradient_buffers = std::max(most.gradient_buffers, gradients.buffers);
    most.read = std::max(
        most.read, states + gradients.read + weights.updated + weights.read + activations.moved);
    most.written =
        std::max(most.written, states + gradients.written + weights.updated + activations.moved);
  }
  return most;
}

void note_what_stays(const Plan& plan, std::vector<std::string>& notes) {
  const auto rule = make_rule(plan.recipe());
  const auto stays = [&](const auto& info) { return parallel::keeps_lines(*rule, *info); };
  if (plan.layout().offload &&
      std::ranges::any_of(nn::parameters_of(plan.model().resolved.model), stays)) {
    notes.push_back(fmt::format(
        "zero_optimization.offload_optimizer: the states of {} by rows and columns stay "
        "in memory",
        plan.recipe().optimizer.type));
  }
  const OffloadBytes disk = offload_bytes(plan);
  if (plan.layout().offload && plan.layout().offload->gradients && disk.gradients == 0) {
    notes.push_back(
        fmt::format("zero_optimization.offload_optimizer.gradients: all gradients stay in memory, "
                    "because a rank's part of each block is smaller than a transfer ({})",
                    text::bytes(static_cast<std::uint64_t>(plan.layout().disk.block_bytes))));
  }
  if (!plan.layout().weight_offload) return;
  if (plan.model().rules.packed) {
    notes.emplace_back(
        "zero_optimization.offload_param: the weights that adapter.quantize_base packs stay in "
        "memory, in their fewer bits");
  }
  if (disk.weights == 0) {
    notes.emplace_back(
        "zero_optimization.offload_param: all weights stay in memory, because of max_in_cpu or "
        "stage3_param_persistence_threshold");
  }
}

std::int64_t travel_bytes(const Plan& plan, int host_ranks) {
  std::int64_t most = 0;
  for (const parallel::PlannedStage& planned : stages_of_plan(plan)) {
    const std::int64_t gathered = weight_bytes_of(plan, planned).elements;
    most = std::max(most, parallel::travel_bytes(planned, plan.layout(), host_ranks, gathered));
  }
  return most;
}

std::int64_t checkpoint_bytes(const Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  return parallel::saved_bytes(
      plan.model().resolved.model,
      {.data_ranks = layout.data_ranks,
       .residuals = layout.reduction_options().keeps_residuals(layout.data_ranks)},
      plan.model().rules,
      *make_rule(plan.recipe()),
      saves_frozen(plan));
}

std::int64_t copy_bytes(const Plan& plan) {
  const std::int64_t holders = 1 + plan.run().checkpoint.peer_copies;
  if (holders == 1) return 0;
  constexpr std::int64_t kSets = 2;  // the last one is complete until the next one is
  return kSets * holders * checkpoint_bytes(plan) / plan.ranks();
}

bool copies_while_training(const Plan& plan) {
  const checkpoint::Options& options = plan.run().checkpoint;
  // The last checkpoint, and that after a signal, are written directly from the tensors.
  const bool during = options.interval_s() || options.when().any() || options.keeps_best();
  return (plan.run().saves_in_background && during) || options.peer_copies > 0;
}

std::int64_t saving_bytes(const Plan& plan) {
  if (!copies_while_training(plan)) return 0;
  // Ranks that share tokens hold the same data, and the first of them writes it.
  const std::int64_t writers = plan.ranks() / plan.layout().context;
  std::int64_t on_disk = 0;
  if (plan.layout().rests_on_disk()) {
    on_disk = std::ranges::min(states_of(plan), {}, &parallel::StateBytes::saved_from_disk)
                  .saved_from_disk;
  }
  return std::max<std::int64_t>(0, checkpoint_bytes(plan) / writers - on_disk);
}

}  // namespace tessera::planner
