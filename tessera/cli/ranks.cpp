// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/ranks.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/launch.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/launch/launch.h"
#include "tessera/memory/device.h"
#include "tessera/memory/device_trial.h"
#include "tessera/parallel/tensor_rules.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMostThreads = 1024;

int threads_of(const RankFlags& words) {
  const std::int64_t threads = words.threads.value_or(1);
  TESSERA_REQUIRE(threads >= 1 && threads <= kMostThreads,
                  Config,
                  fmt::format("--threads {}: expected 1 to {}", threads, kMostThreads),
                  "use about the number of cores per rank");
  return static_cast<int>(words.threads.value_or(0));
}

/// Axes of the ranks of a command: --tensor of them share every layer, and the weights are sharded
/// over the rest. Throws Error{Config} for numbers that do not fit each other or the model.
mesh::Mesh mesh_of(const models::Resolved& model, const RankFlags& words, int ranks) {
  const std::int64_t sharers = words.tensor.value_or(1);
  TESSERA_REQUIRE(sharers >= 1 && ranks % sharers == 0,
                  Config,
                  fmt::format("--tensor {} does not divide {} ranks", sharers, ranks),
                  "choose a divisor, or remove -n");
  parallel::TensorOptions tensor;
  tensor.size = sharers;
  tensor.share_head = parallel::ranks_that_share_a_head(model.model, sharers);
  config::Problems problems;
  parallel::check_shared_layers(tensor, model.model, problems);
  problems.raise();
  const parallel::TensorOptions::Grid grid = tensor.grid();
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  return mesh::Mesh({.dp_shard = ranks / of(sharers),
                     .tp_depth = of(grid.depth),
                     .tp_row = of(grid.row),
                     .tp_col = of(grid.col)});
}

/// Returns the memory of the devices of all local ranks. Throws if the host lacks some, or if one
/// of them does not work.
std::uint64_t memory_of_devices(const RankFlags& words, int ranks) {
  std::vector<Device> devices;
  std::uint64_t bytes = 0;
  const auto launcher = hosts::detect_launcher();
  const int local = launcher ? launcher->local_world_size : ranks;
  for (int rank = 0; rank < local; ++rank) {
    const Device device = devices.emplace_back(memory::device_of_rank(words.device, rank, local));
    for (const memory::DeviceInfo& info : memory::device_entry(device.kind).found()) {
      if (info.index == device.index) bytes += static_cast<std::uint64_t>(info.bytes);
    }
  }
  if (!launcher) memory::try_devices(devices);
  return bytes / static_cast<std::uint64_t>(local) * static_cast<std::uint64_t>(ranks);
}

}  // namespace

int ranks_of(std::optional<std::int64_t> asked) {
  const auto launcher = hosts::detect_launcher();
  const std::int64_t fallback = launcher ? launcher->world_size : 1;
  const std::int64_t ranks = asked.value_or(fallback);
  TESSERA_REQUIRE(
      !launcher || ranks == launcher->world_size,
      Config,
      fmt::format("-n {}, but {} started {} ranks", ranks, launcher->name, launcher->world_size),
      "remove -n: the launcher determines the number of ranks");
  TESSERA_REQUIRE(ranks >= 1 && ranks <= kMostRanks,
                  Config,
                  fmt::format("-n {}: expected 1 to {} ranks", ranks, kMostRanks),
                  "use at most about one rank per core");
  return static_cast<int>(ranks);
}

void RankFlags::declare(Arguments& arguments) {
  arguments.option(kRanksOption, &ranks, "Local ranks over which the weights are sharded [1]");
  arguments.option("--tensor",
                   &tensor,
                   "Ranks that compute each layer together, in parts (parallel.tensor); without -n "
                   "there are as many [1]");
  arguments.option("--threads", &threads, "Threads per rank [cores / ranks]");
  arguments.option("--device",
                   &device,
                   "Where the ranks compute, as in run.device: cpu, cuda, cuda:0,2 or auto [cpu]");
}

int with_model(std::unique_ptr<engine::OpenModel> model,
               const RankFlags& words,
               engine::ReadAs as,
               const std::function<void(engine::OpenModel& model, bool is_leader)>& fn,
               const engine::OpenModel* beside) {
  const int ranks = ranks_of(words.ranks ? words.ranks : words.tensor), threads = threads_of(words);
  const mesh::Mesh mesh = mesh_of(model->shape, words, ranks);
  const bool on_host = memory::device_kind(words.device) == DeviceKind::Cpu;
  engine::check_memory(*model,
                       ranks,
                       on_host ? launch::available_memory() : memory_of_devices(words, ranks),
                       as,
                       mesh.size(mesh::AxisSet::tp()),
                       beside);
  if (ranks == 1 && on_host) {
    engine::load_model(*model, threads, as);
    fn(*model, true);
    return kExitOk;
  }
  return engine::run_ranks(
      mesh,
      threads,
      engine::log_failure,
      [&](comm::World& world) {
        // Destroyed before its world.
        const std::unique_ptr<engine::OpenModel> mine = std::move(model);
        engine::load_model(*mine, world, as);
        fn(*mine, world.is_leader());
        if (world.is_leader()) require_output_written();
        world.barrier(TESSERA_HERE("end of the command"));
        return kExitOk;
      },
      "auto",
      words.device);
}

}  // namespace tessera::cli
