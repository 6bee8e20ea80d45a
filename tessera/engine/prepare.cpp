// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/prepare.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/stall_watch.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/peer_copies.h"
#include "tessera/data/token_dataset.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluated_metrics.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/host_part.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/memory/device.h"
#include "tessera/memory/device_trial.h"
#include "tessera/memory/nvidia.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/offload_ladder.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/planner/with_data.h"
#include "tessera/report/monitors/monitor.h"
#include "tessera/tasks/task.h"

namespace tessera::engine {
namespace {

/// Shows the progress of tokenizing at most a few times a second.
data::TokenizeOptions tokenize_options(const data::DataOptions& options,
                                       Console* console,
                                       const launch::EarlyStop& early) {
  data::TokenizeOptions how;
  how.poll = [&early] { early.check(); };
  how.text_field = options.text_field;
  how.invalid_utf8 = options.invalid_utf8;
  how.threads = launch::usable_cores();
  how.progress = [console, last = 0.0](std::int64_t done, std::int64_t total) mutable {
    const double now = now_s();
    if (console == nullptr || (now - last < 0.25 && done < total)) return;
    last = now;
    console->live(done >= total ? std::string()
                                : fmt::format("tokenizing {} of {} ({:.0f}%)",
                                              text::bytes(static_cast<std::uint64_t>(done)),
                                              text::bytes(static_cast<std::uint64_t>(total)),
                                              100.0 * static_cast<double>(done) /
                                                  static_cast<double>(total)));
  };
  return how;
}

Local local_of(const planner::Plan& plan, const hosts::HostPart* part) {
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  Local out;
  out.is_leader = launcher ? launcher->rank == 0 : part == nullptr || part->host == 0;
  out.launched = launcher.has_value();
  const tasks::Task* const task = planner::task_of(plan).get();
  out.extra_ranks = task == nullptr ? 0 : task->extra_ranks();
  const int all = plan.ranks() + out.extra_ranks;
  const int launched = launcher ? launcher->local_world_size : all;
  out.ranks = part != nullptr ? part->local_ranks : launched;
  out.first_rank = part != nullptr ? part->first_rank : launcher ? launcher->first_rank() : 0;
  out.several_hosts = out.ranks < all;
  return out;
}

/// Throws if the host lacks devices that the ranks need, or if one of them does not work; warns of
/// those that others use.
void check_devices(const std::string& asked, const Local& local) {
  std::vector<Device> devices;
  for (int rank = 0; rank < local.ranks; ++rank) {
    const Device device = devices.emplace_back(memory::device_of_rank(asked, rank, local.ranks));
    const memory::DeviceEntry& entry = memory::device_entry(device.kind);
    const std::string busy = entry.busy == nullptr ? "" : entry.busy(device);
    if (!busy.empty() && local.is_leader) log::warn("run.device: " + busy);
  }
  const bool on_gpus = !devices.empty() && devices.front().kind == DeviceKind::Cuda;
  if (const std::vector<std::string> settings = memory::nccl_settings();
      on_gpus && local.is_leader && local.ranks > 1 && !settings.empty())
    log::info("NCCL has the settings " + text::join(settings, ", "));
  // Ranks that a launcher started are processes of their own, and each finds out for itself.
  if (!local.launched) memory::try_devices(devices);
}

/// Returns the bytes that a rank may use of the memory of its device: that of the smallest one;
/// nothing if it is the memory of the host.
std::optional<std::int64_t> device_memory(const std::string& asked, int ranks) {
  // The driver's context with the kernels of all libraries, the workspaces of cuBLAS and cuDNN, and
  // NCCL's buffers (2.28: 16 channels of 4 MiB for each direction of a communicator, of which a
  // training has up to three). Source: nvidia-smi of idle processes, NCCL_BUFFSIZE's default.
  constexpr std::int64_t kContext = std::int64_t{640} << 20, kWorkspaces = std::int64_t{128} << 20,
                         kOfNccl = std::int64_t{384} << 20;
  const std::int64_t reserved = kContext + kWorkspaces + (ranks > 1 ? kOfNccl : 0);
  std::optional<std::int64_t> least;
  for (int rank = 0; rank < ranks; ++rank) {
    const Device device = memory::device_of_rank(asked, rank, ranks);
    const memory::DeviceEntry& entry = memory::device_entry(device.kind);
    if (entry.shared) return std::nullopt;
    for (const memory::DeviceInfo& info : entry.found()) {
      const std::int64_t free = std::max<std::int64_t>(0, info.bytes - reserved);
      if (info.index == device.index) least = std::min(least.value_or(free), free);
    }
  }
  return least;
}

/// Returns the memory that all ranks of the plan may use, if every host has as much for each of
/// them as this one, which may also have ranks that do not train.
std::uint64_t memory_of_hosts(const planner::Plan& plan, const Local& local) {
  const int learners = std::clamp(plan.ranks() - local.first_rank, 0, local.ranks),
            writers = local.ranks - learners;
  if (const auto of_device = device_memory(plan.run().options.device, local.ranks))
    return static_cast<std::uint64_t>(*of_device) * static_cast<std::uint64_t>(plan.ranks());
  std::uint64_t available = launch::available_memory();
  if (writers > 0)
    available =
        experience_of(planner::task_of(plan).get())->memory_beside(plan, available, writers);
  // No limit for the ranks of other hosts.
  if (learners == 0) return std::numeric_limits<std::int64_t>::max();
  return available / static_cast<std::uint64_t>(learners) *
         static_cast<std::uint64_t>(plan.ranks());
}

std::string host_memory_text(const planner::PlacedPlan& plan, int ranks, std::uint64_t available) {
  const planner::HostBytes bytes = planner::host_bytes(plan);
  std::vector<std::string> parts;
  for (const auto& [what, count] : {std::pair("masters and states", bytes.states),
                                    std::pair("weights", bytes.weights),
                                    std::pair("activations", bytes.activations)}) {
    if (count > 0)
      parts.push_back(fmt::format("{} {}", what, text::bytes(static_cast<std::uint64_t>(count))));
  }
  return fmt::format(
      "in the host's memory, {} a rank ({}) x {} ranks do not fit into {:.0f} % of its {} that are "
      "free",
      text::bytes(static_cast<std::uint64_t>(plan.memory().on_host)),
      text::join(parts, ", "),
      ranks,
      100 * planner::kUsableMemory,
      text::bytes(available));
}

/// Throws if what the ranks of this host keep in its memory, while the rest is on devices, does not
/// fit.
void check_host_memory(const planner::PlacedPlan& plan, int local_ranks) {
  const std::int64_t each = plan.memory().on_host;
  if (each == 0) return;
  const auto need = static_cast<std::uint64_t>(each) * static_cast<std::uint64_t>(local_ranks),
             available = launch::available_memory();
  TESSERA_REQUIRE(
      static_cast<double>(need) <= planner::kUsableMemory * static_cast<double>(available),
      Memory,
      host_memory_text(plan, local_ranks, available),
      planner::less_on_host(plan));
}

std::shared_ptr<const checkpoint::Checkpoint> copies_of(const hosts::HostPart* part) {
  if (part == nullptr || !part->copies.from.exists()) return nullptr;
  return std::make_shared<const checkpoint::Checkpoint>(
      checkpoint::open_copies(part->copies, part->secret));
}

/// Opens the run folder. While a lost host still holds its lock, hosts that start again wait.
std::unique_ptr<const RunFolder> open_folder(const std::string& dir,
                                             RunFolder::Access access,
                                             bool again) {
  constexpr double kPatienceS = 20.0;
  constexpr std::chrono::milliseconds kRetry{200};
  for (const double deadline = now_s() + kPatienceS;;) {
    try {
      return std::make_unique<const RunFolder>(dir, access);
    } catch (const Error&) {
      if (!again || now_s() > deadline) throw;
    }
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace

Prepared prepare(const planner::Plan& plan, const TrainCommand& command) {
  // Training continues if the reader of its output exits, because the run folder has everything.
  std::signal(SIGPIPE, SIG_IGN);
  // An unknown TESSERA_ISA or TESSERA_KERNELS is refused before a rank starts.
  static_cast<void>(ops::isa());
  static_cast<void>(ops::backend(c10::DeviceType::CPU));
  const hosts::HostPart* const part = command.how.part.get();
  const bool again = part != nullptr && part->generation > 0;
  Opened opened;
  opened.local = local_of(plan, part);
  const Local& local = opened.local;
  check_devices(plan.run().options.device, local);
  opened.early = std::make_unique<launch::EarlyStop>();
  // Under a launcher only rank 0 owns the folder; the others only write their logs into it.
  opened.folder = open_folder(plan.run().dir,
                              !local.is_leader  ? RunFolder::Access::Look
                              : command.dry_run ? RunFolder::Access::Check
                                                : RunFolder::Access::Own,
                              again);
  // A training that goes on after a loss is not stopped by what only shows it.
  if (local.is_leader && !again) report::require_writable_outputs(plan.run().sections);
  opened.copies = copies_of(part);
  const bool keeps_copies = part != nullptr && part->copies.own >= 0;
  if (local.is_leader && !again && !keeps_copies && plan.run().checkpoint.peer_copies > 0)
    log::warn("checkpoint.peer_copies has no effect: it needs several hosts of a hostfile");
  Console* const console = local.is_leader && !command.quiet ? command.console : nullptr;
  {
    const StallWatch watch("opening the data", [](const std::string& text) {
      log::warn(text + ": it waits for a disk, a file server, or another program");
    });
    opened.data =
        open_data(plan, tokenize_options(planner::data_options_of(plan), console, *opened.early));
  }
  if (local.extra_ranks > 0) {
    opened.run_divided = [kind = experience_of(planner::task_of(plan).get()), data = opened.data](
                             const auto& placed, comm::World& job, const auto& train) {
      return kind->run_divided(placed, job, *data->train, train);
    };
  }
  const planner::PlanWithData with_data = planner::with_data(plan, *opened.data);
  // A set of copies, half of what the plan counts, is there already.
  const std::int64_t held = opened.copies ? planner::copy_bytes(with_data) / 2 * plan.ranks() : 0;
  planner::PlacedPlan placed = planner::place(
      with_data,
      {.ranks_of_each = part != nullptr || local.launched ? local.ranks : 0, .available = [&] {
         opened.available = memory_of_hosts(with_data, local) + static_cast<std::uint64_t>(held);
         return opened.available;
       }});
  check_host_memory(placed, local.ranks);
  check_evaluations(placed, *opened.data);
  opened.early->check();
  return {std::move(placed), std::move(opened)};
}

}  // namespace tessera::engine
