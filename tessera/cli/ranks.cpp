// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/ranks.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/engine/launch.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMostThreads = 1024;

int threads_of(const RankWords& words) {
  const std::int64_t threads = words.threads.value_or(1);
  TESSERA_REQUIRE(threads >= 1 && threads <= kMostThreads,
                  Config,
                  fmt::format("--threads {}: expected 1 to {}", threads, kMostThreads),
                  "use about the number of cores per rank");
  return static_cast<int>(words.threads.value_or(0));
}

}  // namespace

int ranks_of(std::optional<std::int64_t> asked) {
  const auto launcher = launch::detect_launcher();
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

void RankWords::declare(Arguments& arguments) {
  arguments.option(kRanksOption, &ranks, "Local ranks over which the weights are sharded [1]");
  arguments.option("--threads", &threads, "Threads per rank [cores / ranks]");
}

int with_model(std::unique_ptr<engine::OpenModel> model,
               const RankWords& words,
               engine::ReadAs as,
               const std::function<void(engine::OpenModel& model, bool is_leader)>& fn) {
  const int ranks = ranks_of(words.ranks), threads = threads_of(words);
  engine::check_memory(*model, ranks, launch::available_memory(), as);
  if (ranks == 1) {
    engine::load_model(*model, threads, as);
    fn(*model, true);
    return kExitOk;
  }
  return engine::run_ranks(
      mesh::Mesh::data_parallel(ranks), threads, engine::log_failure, [&](comm::World& world) {
        // Destroyed before its world.
        const std::unique_ptr<engine::OpenModel> mine = std::move(model);
        engine::load_model(*mine, world, as);
        fn(*mine, world.is_leader());
        world.transport().barrier(world.everyone(), TESSERA_HERE("end of the command"))->wait();
        return kExitOk;
      });
}

}  // namespace tessera::cli
