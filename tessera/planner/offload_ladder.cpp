// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/offload_ladder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/memory/device.h"
#include "tessera/memory/tiers/measure.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

std::string in_bytes(std::int64_t count) {
  return text::bytes(static_cast<std::uint64_t>(count));
}

// What the disk costs in a step of `ranks` ranks, which share it.
std::string disk_cost(const OffloadBytes& disk, int ranks, const std::string& folder) {
  const std::optional<memory::TierSpeed> speed = memory::remembered_speed(folder);
  const std::int64_t most = std::max(disk.read, disk.written) * ranks;
  return fmt::format("a step reads {} and writes {} on each rank{}",
                     in_bytes(disk.read),
                     in_bytes(disk.written),
                     speed ? fmt::format(", {:.1f} s of the disk alone", speed->update_s(most))
                           : ", and the speed of the disk is not measured (tessera bench io)");
}

class Ladder {
 public:
  Ladder(const Plan& plan, std::uint64_t available, const std::string& folder)
      : plan_(plan), available_(available), folder_(folder), layout_(plan.layout()) {}

  std::vector<OffloadRung> climb() {
    const int most = highest_stage(plan_);
    // Rules that compress what ranks exchange keep their states in memory.
    const bool on_cpu = memory::device_kind(plan_.run().options.device) == DeviceKind::Cpu;
    if (!recompute() && !shards(most) && most == 3) {
      if (on_cpu) {
        rests();
      } else {
        moves_to_host();
      }
    }
    return std::move(rungs_);
  }

 private:
  /// Adds a rung; returns whether it fits.
  bool add(std::string keys, std::string cost) {
    const Plan plan = with(plan_, layout_);
    OffloadRung rung{.keys = std::move(keys),
                     .need = estimate_memory(plan),
                     .disk = offload_bytes(plan),
                     .cost = std::move(cost)};
    if (layout_.uses_disk()) rung.cost = disk_cost(rung.disk, plan_.ranks(), folder_);
    rung.fits = rung.need.unknown.empty() && fits(rung.need, plan_.ranks(), available_);
    rungs_.push_back(std::move(rung));
    return rungs_.back().fits;
  }

  bool recompute() {
    std::vector<bool>& blocks = layout_.recompute.blocks;
    const std::size_t count = plan_.model().resolved.model.blocks.size();
    if (blocks.size() == count && std::ranges::all_of(blocks, [](bool on) { return on; }))
      return false;
    blocks.assign(count, true);
    layout_.recompute.regions = false;  // granularity full excludes selective
    return add("activation_checkpointing.granularity full", "one more forward pass");
  }

  bool shards(int most) {
    while (layout_.data_ranks > 1 && layout_.zero_stage < most) {
      ++layout_.zero_stage;
      if (add(fmt::format("zero_optimization.stage {}", layout_.zero_stage),
              layout_.zero_stage == 3 ? "half as many bytes more between ranks"
                                      : "as many bytes between ranks"))
        return true;
    }
    return false;
  }

  /// The name of a stage that the next rung needs, with which nothing else begins to fit.
  std::string raised_to(int stage) {
    if (layout_.zero_stage >= stage) return "";
    layout_.zero_stage = stage;
    return fmt::format("zero_optimization.stage {}, ", stage);
  }

  void rests() {
    if (!layout_.offload) {
      const std::string stage = raised_to(1);
      layout_.offload = parallel::StateOffload{.folder = folder_};
      if (add(stage + place("offload_optimizer"), "")) return;
    }
    if (!layout_.weight_offload && !excludes_parts()) {
      const std::string stage = raised_to(3);
      layout_.weight_offload = parallel::WeightOffload{.folder = folder_};
      if (add(stage + place("offload_param"), "")) return;
    }
    const bool sums_whole = layout_.reduction_options().locally();
    if (layout_.offload->gradients || sums_whole) return;
    layout_.offload->gradients = true;
    const std::int64_t before = rungs_.back().need.total();
    add("zero_optimization.offload_optimizer.gradients true", "");
    // Few blocks need as much memory for buffers as for their gradients.
    if (rungs_.back().need.total() >= before) rungs_.pop_back();
  }

  /// The memory of the host of a device; whether that suffices is checked by itself.
  void moves_to_host() {
    const auto place_on_host = [](const char* section) {
      return fmt::format(R"({} {{"device": "cpu"}})", section);
    };
    if (!layout_.moves_activations()) {
      layout_.host_activations = parallel::ActivationOffload().buffers;
      if (add(place_on_host("activation_checkpointing.offload"),
              "the inputs of blocks travel to the host and back"))
        return;
    }
    if (layout_.kept.masters != DType::F32) return;
    if (!layout_.offload && !layout_.states_on_host) {
      const std::string stage = raised_to(1);
      layout_.states_on_host = true;
      if (add(stage + place_on_host("zero_optimization.offload_optimizer"),
              "the host updates: gradients travel down and weights up"))
        return;
    }
    // Early updates are refused together with weights on the host.
    if (layout_.weights_on_host || layout_.early_updates || excludes_parts()) return;
    const std::string stage = raised_to(3);
    layout_.weights_on_host = true;
    add(stage + place_on_host("zero_optimization.offload_param"),
        "each micro-batch copies the weights up twice");
  }

  /// True if ranks keep or send their parts of the weights in a way that these cannot rest.
  [[nodiscard]] bool excludes_parts() const {
    return layout_.shard_ranks < layout_.data_ranks ||
           layout_.trained_gather != parallel::GatherForm::Values ||
           layout_.frozen_gather != parallel::GatherForm::Values;
  }

  [[nodiscard]] std::string place(const char* section) const {
    return fmt::format(
        R"(zero_optimization.{} {{"device": "nvme", "nvme_path": "{}"}})", section, folder_);
  }

  const Plan& plan_;
  std::uint64_t available_;
  const std::string& folder_;
  parallel::Layout layout_;
  std::vector<OffloadRung> rungs_;
};

}  // namespace

std::string OffloadRung::text() const {
  return fmt::format(
      "{}: {} a rank{}{}; {}",
      keys,
      need.unknown.empty() ? in_bytes(need.total()) : "at least " + in_bytes(need.total()),
      need.on_host > 0 ? fmt::format(", {} in the host's memory", in_bytes(need.on_host)) : "",
      disk.total() > 0 ? fmt::format(", {} on the disk", in_bytes(disk.total())) : "",
      cost);
}

std::vector<OffloadRung> offload_ladder(const Plan& plan,
                                        std::uint64_t available,
                                        const std::string& folder) {
  return Ladder(plan, available, folder).climb();
}

std::string less_on_host(const Plan& plan) {
  return fmt::format(
      "{}keep less there: set zero_optimization.offload_optimizer.device, offload_param.device or "
      "activation_checkpointing.offload.device to \"nvme\", or to \"none\" with an optimizer that "
      "updates on the GPU; or divide it among the ranks: zero_optimization.stage 1 or more",
      plan.layout().early_updates
          ? "set zero_optimization.offload_optimizer.super_offload to false, which takes about "
            "half of masters and states, or "
          : "");
}

}  // namespace tessera::planner
