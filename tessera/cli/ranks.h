// SPDX-License-Identifier: Apache-2.0
// How many ranks a command runs on, and how it starts them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/cli/arguments.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {

/// -n under all the names that launchers have for it.
inline constexpr const char* kRanksOption =
    "-n,--nproc-per-node,--nproc_per_node,--num-gpus,--num_gpus,--num-accelerators,"
    "--num_accelerators";

/// `asked` of -n, else 1, unless a launcher has started the ranks already. Error{Config}.
int ranks_of(std::optional<std::int64_t> asked);

/// -n and --threads of a command that reads a model.
struct RankWords {
  std::optional<std::int64_t> ranks, threads;
  void declare(Arguments& arguments);
};

/// Loads the model on one rank or several, with weights `as` those, and runs `fn` on each; the exit
/// code. `is_leader` on the rank that prints.
int with_model(std::unique_ptr<engine::OpenModel> model,
               const RankWords& words,
               engine::ReadAs as,
               const std::function<void(engine::OpenModel& model, bool is_leader)>& fn);

}  // namespace tessera::cli
