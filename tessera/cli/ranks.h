// SPDX-License-Identifier: Apache-2.0
// The number of ranks of a command, and how it starts them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/cli/arguments.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {

/// -n and its names in other launchers.
inline constexpr const char* kRanksOption =
    "-n,--nproc-per-node,--nproc_per_node,--num-gpus,--num_gpus,--num-accelerators,"
    "--num_accelerators";

/// The value of -n, by default 1, unless a launcher has already started the ranks. Throws
/// Error{Config}.
int ranks_of(std::optional<std::int64_t> asked);

/// -n, --tensor, --threads and --device of a command that reads a model.
struct RankFlags {
  std::optional<std::int64_t> ranks, tensor, threads;
  std::string device = "cpu";  ///< as run.device
  void declare(Arguments& arguments);
};

/// Loads the model on one or more ranks, with weights in the dtype `as`, and runs `fn` on each;
/// returns the exit code. `is_leader` is true on the rank that prints. `beside`: a found model that
/// `fn` loads too, whose memory is checked with that of the first; nullptr: there is none.
int with_model(std::unique_ptr<engine::OpenModel> model,
               const RankFlags& words,
               engine::ReadAs as,
               const std::function<void(engine::OpenModel& model, bool is_leader)>& fn,
               const engine::OpenModel* beside = nullptr);

}  // namespace tessera::cli
